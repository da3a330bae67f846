//! Intel's Advanced Matrix Extensions: the permission to use tiles in this process, and the
//! shapes of the tiles on this thread.
//!
//! A thread gives its tiles shapes when it first needs them in a chunk of work and lets go
//! of them at the chunk's end ([`release`]). So nothing depends on earlier work, and an idle
//! thread has no tiles for a switch to save.

#[cfg(target_arch = "x86_64")]
mod signal_stack;
#[cfg(target_arch = "x86_64")]
mod tiles;

/// Guard that lets go of this thread's tiles when it is dropped, also after a panic.
pub(crate) struct Release;

impl Drop for Release {
    fn drop(&mut self) {
        release();
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) use signal_stack::grow_signal_stack;
#[cfg(target_arch = "x86_64")]
pub(crate) use tiles::{permission, release, shape, shape_few};

/// Does nothing: this processor has no tiles to let go of.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn release() {}
