//! Asking for memory ahead of its use.

/// Brings the cache line at `from` into the first-level cache. Any address will do.
#[inline(always)]
pub(crate) fn near<T>(from: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch changes no state that a program can see and never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(from.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) from, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = from;
}

/// Brings the cache line at `to` into the first-level cache for writing, a transfer that
/// otherwise begins with the first store. Any address will do.
#[cfg(any(test, target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn own<T>(to: *mut T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above; processors without this instruction take it for none.
    unsafe {
        std::arch::asm!("prefetchw [{0}]", in(reg) to, options(nostack, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{0}]", in(reg) to, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = to;
}

/// Brings the cache line at `from` into the second-level cache. Any address will do.
#[inline(always)]
pub(crate) fn far<T>(from: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(from.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{0}]", in(reg) from, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = from;
}
