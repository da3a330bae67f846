//! How often each function of the libraries was called.

use std::ffi::{CStr, c_char, c_void};

use crate::abi::{Code, Out, Text, called, export};
use crate::order::symbol;

export! {
    /// How often the calling thread has called `function`.
    fn fakeCudaCalls(function: Text, count: Out<u64>) {
        count.set(called(&function.text()));
        Ok(())
    }
}

/// How often the calling thread has called a function of CUDA's libraries, such as
/// `cuGraphLaunch`; `None` where the libraries are real ones, which don't count.
#[must_use]
pub fn calls(function: &CStr) -> Option<u64> {
    let symbol = symbol(c"fakeCudaCalls")?;
    let mut count = 0;
    // SAFETY: only the function above has this name.
    let ask = unsafe {
        std::mem::transmute::<*mut c_void, extern "C" fn(*const c_char, &mut u64) -> Code>(symbol)
    };
    (ask(function.as_ptr(), &mut count) == 0).then_some(count)
}
