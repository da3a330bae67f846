//! Freed memory that the allocator keeps, given back to the system.

use std::{convert::Infallible, fs, time::Duration};

/// Pause between two looks.
const EVERY: Duration = Duration::from_secs(5);
/// Freed bytes that a process may keep, beyond those that it kept after the last time.
const KEPT: usize = 8 << 20;

/// Gives freed memory back for as long as it is polled. glibc by itself does so only from the
/// end of an arena, and one small block there prevents it.
pub async fn give_back() -> Infallible {
    let mut ticks = tokio::time::interval(EVERY);
    let mut least = usize::MAX;
    loop {
        ticks.tick().await;
        let kept = tokio::task::spawn_blocking(move || look(least)).await;
        least = kept.unwrap_or(least);
    }
}

/// Gives freed memory back if much more than `least` bytes are kept. Returns the smallest
/// number of kept bytes.
fn look(least: usize) -> usize {
    let before = kept();
    if before < least.saturating_add(KEPT) {
        return least.min(before);
    }
    trim();
    kept()
}

/// Resident bytes that no allocation uses, and the bytes of the program itself.
fn kept() -> usize {
    // `proc(5)`, `statm`: resident pages are the second number.
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1);
    let pages: usize = pages.and_then(|pages| pages.parse().ok()).unwrap_or(0);
    let resident = pages.saturating_mul(rustix::param::page_size());
    resident.saturating_sub(used())
}

#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "the allocator has no safe interface")]
fn used() -> usize {
    // SAFETY: the call takes nothing, and counts under the allocator's own locks.
    let counts = unsafe { libc::mallinfo2() };
    counts.uordblks.saturating_add(counts.hblkhd)
}

#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "the allocator has no safe interface")]
fn trim() {
    // SAFETY: the call touches only free memory, under the allocator's own locks.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators keep little.
#[cfg(not(target_env = "gnu"))]
fn used() -> usize {
    usize::MAX
}

#[cfg(not(target_env = "gnu"))]
fn trim() {}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn what_one_small_block_holds_in_place_is_given_back() {
        let least = look(usize::MAX);
        // Too small for mappings of their own; the last block stays behind all others.
        let mut blocks: Vec<Box<[u8; 1024]>> = Vec::new();
        blocks.resize_with(64 << 10, || Box::new([1; 1024]));
        let last = blocks.pop();
        drop(blocks);
        let before = kept();
        assert!(before > least + (48 << 20), "{least}, {before}");
        let after = look(least);
        assert!(after < least + (16 << 20), "{least}, {before}, {after}");
        drop(last);
    }
}
