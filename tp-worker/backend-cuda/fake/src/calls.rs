//! How often each function of the libraries was called, and what copies and kernels have
//! moved.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};

use crate::abi::{Code, Out, Text, called, export};
use crate::order::symbol;

thread_local! {
    /// Bytes that kernels have copied to shared memory asynchronously, by their names:
    /// of those that the calling thread has run, as it waited.
    static FETCHED: RefCell<HashMap<String, u64>> = RefCell::default();
    /// Bytes that the calling thread has had copied to devices, without waiting for it.
    static BROUGHT: Cell<u64> = const { Cell::new(0) };
}

/// So many bytes more are to be copied to a device.
pub(crate) fn note_brought(bytes: usize) {
    BROUGHT.set(BROUGHT.get() + bytes as u64);
}

/// A launch of `kernel` has copied so many bytes to shared memory asynchronously.
pub(crate) fn note_fetched(kernel: &str, bytes: u64) {
    FETCHED.with_borrow_mut(|fetched| {
        let sum = fetched.entry(kernel.to_owned()).or_default();
        *sum += bytes;
    });
}

export! {
    /// How many bytes kernels whose names begin so have fetched on the calling thread.
    fn fakeCudaFetched(names: Text, bytes: Out<u64>) {
        let names = names.text();
        let sum = FETCHED.with_borrow(|fetched| {
            let named = fetched.iter().filter(|(name, _)| name.starts_with(&names));
            named.map(|(_, bytes)| bytes).sum()
        });
        bytes.set(sum);
        Ok(())
    }

    /// How many bytes the calling thread has had copied to devices.
    fn fakeCudaBrought(_nothing: Text, bytes: Out<u64>) {
        bytes.set(BROUGHT.get());
        Ok(())
    }

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
    ask(c"fakeCudaCalls", function)
}

/// How many bytes kernels whose names begin with `names` have copied to shared memory
/// asynchronously, as products do with their weights, in launches that the calling
/// thread has run: work runs where it is waited for. `None` as with [`calls`].
#[must_use]
pub fn fetched(names: &CStr) -> Option<u64> {
    ask(c"fakeCudaFetched", names)
}

/// How many bytes the calling thread has had copied to devices by calls that do not wait
/// for it. `None` as with [`calls`].
#[must_use]
pub fn brought() -> Option<u64> {
    ask(c"fakeCudaBrought", c"")
}

/// What one of the functions above answers.
fn ask(function: &CStr, about: &CStr) -> Option<u64> {
    let symbol = symbol(function)?;
    let mut count = 0;
    // SAFETY: only functions above have such names, and all of these take this.
    let ask = unsafe {
        std::mem::transmute::<*mut c_void, extern "C" fn(*const c_char, &mut u64) -> Code>(symbol)
    };
    (ask(about.as_ptr(), &mut count) == 0).then_some(count)
}
