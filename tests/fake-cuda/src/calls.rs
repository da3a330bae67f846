//! Counts for tests: calls of each function of the libraries, and bytes that copies and kernels
//! have moved.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};

use crate::abi::{Code, Out, Text, called, export};
use crate::order::symbol;

thread_local! {
    /// Bytes that kernels have copied to shared memory asynchronously, by the kernels' names.
    /// Only kernels count that ran while the calling thread waited.
    static FETCHED: RefCell<HashMap<String, u64>> = RefCell::default();
    /// Bytes of the calling thread's copies to devices that do not wait.
    static BROUGHT: Cell<u64> = const { Cell::new(0) };
}

/// Adds the bytes of a copy to a device.
pub(crate) fn note_brought(bytes: usize) {
    BROUGHT.set(BROUGHT.get() + bytes as u64);
}

/// Adds the bytes that a launch of `kernel` has fetched asynchronously.
pub(crate) fn note_fetched(kernel: &str, bytes: u64) {
    FETCHED.with_borrow_mut(|fetched| {
        let sum = fetched.entry(kernel.to_owned()).or_default();
        *sum += bytes;
    });
}

export! {
    /// Tells the bytes fetched on the calling thread by kernels whose names begin with `names`.
    fn fakeCudaFetched(names: Text, bytes: Out<u64>) {
        let names = names.text();
        let sum = FETCHED.with_borrow(|fetched| {
            let named = fetched.iter().filter(|(name, _)| name.starts_with(&names));
            named.map(|(_, bytes)| bytes).sum()
        });
        bytes.set(sum);
        Ok(())
    }

    /// Tells the bytes of the calling thread's copies to devices.
    fn fakeCudaBrought(_nothing: Text, bytes: Out<u64>) {
        bytes.set(BROUGHT.get());
        Ok(())
    }

    /// Tells the number of the calling thread's calls of `function`.
    fn fakeCudaCalls(function: Text, count: Out<u64>) {
        count.set(called(&function.text()));
        Ok(())
    }
}

/// Number of the calling thread's calls of a function of CUDA's libraries, such as
/// `cuGraphLaunch`. `None` for the real libraries, which don't count.
#[must_use]
pub fn calls(function: &CStr) -> Option<u64> {
    ask(c"fakeCudaCalls", function)
}

/// Bytes that kernels whose names begin with `names` have copied to shared memory, or to a cache,
/// asynchronously, as products do with their weights. Only launches that the calling thread has
/// run count: work runs on the thread that waits for it. `None` as with [`calls`].
#[must_use]
pub fn fetched(names: &CStr) -> Option<u64> {
    ask(c"fakeCudaFetched", names)
}

/// Bytes of the calling thread's copies to devices that do not wait. `None` as with [`calls`].
#[must_use]
pub fn brought() -> Option<u64> {
    ask(c"fakeCudaBrought", c"")
}

/// Calls one of the functions above, and returns its count.
fn ask(function: &CStr, about: &CStr) -> Option<u64> {
    let symbol = symbol(function)?;
    let mut count = 0;
    // SAFETY: only the functions above have such names, and all of them have this type.
    let ask = unsafe {
        std::mem::transmute::<*mut c_void, extern "C" fn(*const c_char, &mut u64) -> Code>(symbol)
    };
    (ask(about.as_ptr(), &mut count) == 0).then_some(count)
}
