//! Sleeping on a word of shared memory.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex;

/// State of a rank that takes part.
pub(crate) const PRESENT: u32 = 0;
/// State of a rank that failed or was dropped.
pub(crate) const LEFT: u32 = 1;
/// State of a rank that was aborted.
pub(crate) const ABORTED: u32 = 2;

/// The longest sleep before a rank looks around again.
const SLICE: Duration = Duration::from_millis(50);
/// Sleeps while `word` is `value`, until woken or for a while, at most `limit`.
/// May return early.
pub(crate) fn sleep(word: &AtomicU32, value: u32, limit: Duration) -> Result<(), Errno> {
    let limit = limit.min(SLICE);
    let timeout = futex::Timespec {
        tv_sec: 0,
        tv_nsec: limit.subsec_nanos().max(1).into(),
    };
    match futex::wait(word, futex::Flags::empty(), value, Some(&timeout)) {
        Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Wakes all threads that sleep on `word`.
pub(crate) fn wake(word: &AtomicU32) {
    // It can fail only for a bad address, which a live reference is not.
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

/// Returns true if `arrived` has reached `phase`. Both count modulo 2³².
pub(crate) fn reached(arrived: &AtomicU32, phase: u32) -> bool {
    arrived.load(Ordering::Acquire).wrapping_sub(phase) as i32 >= 0
}
