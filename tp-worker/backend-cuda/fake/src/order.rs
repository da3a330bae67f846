//! The order of what CUDA leaves open, drawn from a seed.

use std::cell::Cell;
use std::ffi::{CStr, c_void};

use crate::abi::{Code, export};
use crate::settings;

thread_local! {
    /// The state of the calling thread's generator. Threads have one each, so
    /// that a test sees the same order whatever others do meanwhile.
    static STATE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Never zero, which xorshift would stay at.
fn state_of(seed: u64) -> u64 {
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// The next number of the calling thread (xorshift64).
pub(crate) fn draw() -> u64 {
    let begin = || state_of(settings::number("FAKE_CUDA_SEED", 1));
    let mut state = STATE.get().unwrap_or_else(begin);
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    STATE.set(Some(state));
    state
}

/// One of `count`, which is not zero.
pub(crate) fn below(count: usize) -> usize {
    ((draw() >> 16) % count as u64) as usize
}

export! {
    /// Begins the calling thread's order anew.
    fn fakeCudaSeed(seed: u64) {
        STATE.set(Some(state_of(seed)));
        Ok(())
    }
}

/// Begins the order of what the calling thread waits for anew, drawn from
/// `seed`. Returns whether the libraries that are loaded are the fake ones: a
/// real device takes no orders.
#[must_use]
pub fn seed(seed: u64) -> bool {
    let Some(symbol) = symbol(c"fakeCudaSeed") else {
        return false;
    };
    // SAFETY: only the function above has this name.
    let set = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(u64) -> Code>(symbol) };
    set(seed) == 0
}

/// How often the calling thread has asked for the best algorithm of a product;
/// `None` where the libraries are real ones, which don't count.
#[must_use]
pub fn heuristics() -> Option<u64> {
    let symbol = symbol(c"fakeCudaHeuristics")?;
    let mut count = 0;
    // SAFETY: only the function that writes one number has this name.
    let ask =
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(&mut u64) -> Code>(symbol) };
    (ask(&mut count) == 0).then_some(count)
}

/// A function that fake libraries alone have.
fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: both texts end with a zero; the library is not closed again.
    let symbol = unsafe {
        let library = libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_NOW);
        if library.is_null() {
            return None;
        }
        libc::dlsym(library, name.as_ptr())
    };
    (!symbol.is_null()).then_some(symbol)
}
