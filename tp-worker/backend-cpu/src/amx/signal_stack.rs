//! A stack for signal handlers that has room for tiles.
//!
//! Once a thread has used tiles, the kernel saves 8 KiB more of its registers before a
//! handler runs, for good. Rust's own alternate stack has no room for them: a stack overflow
//! would end in a bare SIGSEGV instead of the report that names the thread.

use std::cell::OnceCell;
use std::io;
use std::ptr::null_mut;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// Bytes of the stack, several times what the registers take.
const BYTES: usize = 64 << 10;
/// Bytes of the guard below the stack, which nobody may touch: at least one page of any
/// size.
const GUARD: usize = 64 << 10;

thread_local! {
    static GROWN: OnceCell<Option<SignalStack>> = const { OnceCell::new() };
}

/// Gives this thread the larger stack until it ends. Without memory for that the thread
/// keeps its present stack, and a stack overflow is not reported by name.
pub(crate) fn grow_signal_stack() {
    // A thread that is ending keeps its present stack, too.
    let _ = GROWN.try_with(|grown| {
        grown.get_or_init(|| SignalStack::install().ok());
    });
}

/// An alternate signal stack of the thread that made it. A drop puts the previous stack
/// back.
struct SignalStack {
    mapping: *mut libc::c_void,
    before: libc::stack_t,
}

impl SignalStack {
    fn install() -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let mapping = unsafe {
            mmap_anonymous(
                null_mut(),
                GUARD + BYTES,
                ProtFlags::empty(),
                MapFlags::PRIVATE,
            )?
        };
        // From here on a drop gives the mapping back.
        let mut own = Self {
            mapping,
            before: none(),
        };
        let stack = libc::stack_t {
            ss_sp: own.start(),
            ss_flags: 0,
            ss_size: BYTES,
        };
        // SAFETY: the upper part of the mapping, which nobody uses yet; it stays
        // mapped for as long as the kernel may put a handler there.
        let done = unsafe {
            mprotect(
                stack.ss_sp,
                BYTES,
                MprotectFlags::READ | MprotectFlags::WRITE,
            )?;
            libc::sigaltstack(&raw const stack, &raw mut own.before)
        };
        match done {
            0 => Ok(own),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn start(&self) -> *mut libc::c_void {
        self.mapping.wrapping_byte_add(GUARD)
    }
}

impl Drop for SignalStack {
    fn drop(&mut self) {
        // Rust takes all stacks away from a thread of its own that ends, and frees the
        // previous one: nothing is to be put back then.
        let own = current().is_some_and(|stack| stack.ss_sp == self.start());
        // SAFETY: the stack before is the thread's until it is replaced. Nothing
        // refers to the mapping once it is no signal stack; were it still one,
        // because that could not be changed, it would have to stay.
        unsafe {
            if !own || libc::sigaltstack(&raw const self.before, null_mut()) == 0 {
                let _ = munmap(self.mapping, GUARD + BYTES);
            }
        }
    }
}

/// No alternate stack.
fn none() -> libc::stack_t {
    libc::stack_t {
        ss_sp: null_mut(),
        ss_flags: libc::SS_DISABLE,
        ss_size: 0,
    }
}

/// This thread's alternate stack, if it has one.
fn current() -> Option<libc::stack_t> {
    let mut stack = none();
    // SAFETY: asks, and changes nothing.
    let done = unsafe { libc::sigaltstack(std::ptr::null(), &raw mut stack) };
    (done == 0 && stack.ss_flags & libc::SS_DISABLE == 0).then_some(stack)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds() -> Option<(*mut libc::c_void, usize)> {
        current().map(|stack| (stack.ss_sp, stack.ss_size))
    }

    #[test]
    fn the_stack_before_comes_back() {
        let before = bounds();
        assert!(before.is_some(), "Rust gives its threads one");
        let own = SignalStack::install().unwrap();
        assert_eq!(bounds(), Some((own.start(), BYTES)));
        drop(own);
        assert_eq!(bounds(), before);
    }

    #[test]
    fn a_thread_without_one_has_none_afterwards() {
        let before = current().unwrap();
        let set = |stack: libc::stack_t| {
            // SAFETY: no stack, or this thread's own, which stays mapped.
            unsafe { libc::sigaltstack(&raw const stack, null_mut()) }
        };
        assert_eq!(set(none()), 0);
        drop(SignalStack::install().unwrap());
        assert_eq!(bounds(), None);
        assert_eq!(set(before), 0);
    }

    /// Returns true if the memory at `address` is mapped and may be written.
    fn mapped(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let bound = |text: &str| usize::from_str_radix(text, 16).unwrap();
        maps.lines().any(|line| {
            let (start, end) = line
                .split_whitespace()
                .next()
                .unwrap()
                .split_once('-')
                .unwrap();
            (bound(start)..bound(end)).contains(&address) && line.contains(" rw-p ")
        })
    }

    #[test]
    fn a_thread_grows_it_once_and_gives_its_memory_back() {
        let grow = || {
            grow_signal_stack();
            let first = bounds().unwrap();
            grow_signal_stack();
            assert_eq!(bounds(), Some(first));
            assert_eq!(first.1, BYTES);
            assert!(mapped(first.0.addr()) && mapped(first.0.addr() + BYTES - 1));
            assert!(!mapped(first.0.addr() - 1));
            first.0.addr()
        };
        // Other threads may map something at the same place meanwhile, but not always.
        let given_back = || !mapped(std::thread::spawn(grow).join().unwrap());
        assert!((0..100).any(|_| given_back()));
    }
}
