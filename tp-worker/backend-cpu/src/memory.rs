//! Zeroed memory straight from the system, committed when first written.

mod arena;

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use bytemuck::Pod;
use lockstep_backend::BackendError;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

pub(crate) use arena::Arena;

/// Bytes from which on huge pages are asked for: fewer TLB misses when weights stream.
const HUGE_PAGE_FROM: usize = 4 << 20;
/// Size of a transparent huge page on `x86_64`, and on `aarch64` with 4 KiB pages.
const HUGE_PAGE: usize = 2 << 20;

/// A fixed-size, page-aligned array of zeros. Pages that nobody wrote cost no memory.
///
/// Large buffers start on a huge page's boundary. So the kernel backs them by huge pages
/// from the first byte, where `/sys/kernel/mm/transparent_hugepage/enabled` lets it. Pages
/// reserved by `vm.nr_hugepages` are left to the programs that they were reserved for.
pub(crate) struct Buffer<T: Pod> {
    start: NonNull<T>,
    len: usize,
    item: PhantomData<T>,
    /// Keeps the memory, which buffers of an [`Arena`] share; `None` without elements.
    mapping: Option<Arc<Mapping>>,
}

// SAFETY: a buffer owns its part of a mapping alone, as a Vec owns its heap block.
unsafe impl<T: Pod + Send> Send for Buffer<T> {}
// SAFETY: shared access only reads.
unsafe impl<T: Pod + Sync> Sync for Buffer<T> {}

impl<T: Pod> Buffer<T> {
    /// A buffer of `len` zeros; `what` names it in the error.
    pub(crate) fn zeroed(len: usize, what: &'static str) -> Result<Self, BackendError> {
        Self::placed(len, what, |bytes| {
            let mapping = Arc::new(Mapping::new(bytes)?);
            Some((mapping.start, mapping))
        })
    }

    /// A buffer of `len` zeros in huge pages of `arena`, if it is of the size for that.
    pub(crate) fn zeroed_in(
        arena: &mut Arena,
        len: usize,
        what: &'static str,
    ) -> Result<Self, BackendError> {
        match Arena::takes(len.saturating_mul(size_of::<T>())) {
            true => Self::placed(len, what, |bytes| arena.place(bytes)),
            false => Self::zeroed(len, what),
        }
    }

    /// A buffer at the place of so many bytes of zeros that `place` returns.
    fn placed(
        len: usize,
        what: &'static str,
        place: impl FnOnce(usize) -> Option<(NonNull<u8>, Arc<Mapping>)>,
    ) -> Result<Self, BackendError> {
        if len == 0 {
            return Ok(Self::empty());
        }
        let bytes = len
            .checked_mul(size_of::<T>())
            .filter(|&bytes| bytes <= isize::MAX as usize);
        let refused = BackendError::OutOfMemory {
            what,
            bytes: bytes.unwrap_or(usize::MAX),
        };
        let Some((start, mapping)) = bytes.and_then(place) else {
            return Err(refused);
        };
        Ok(Self {
            start: start.cast(),
            len,
            item: PhantomData,
            mapping: Some(mapping),
        })
    }

    /// A buffer without elements and without a mapping.
    pub(crate) fn empty() -> Self {
        Self {
            start: NonNull::dangling(),
            len: 0,
            item: PhantomData,
            mapping: None,
        }
    }

    /// Makes room for at least `len` elements; contents are lost when it grows.
    pub(crate) fn grow(&mut self, len: usize, what: &'static str) -> Result<(), BackendError> {
        if self.len < len {
            *self = Self::zeroed(grown(len), what)?;
        }
        Ok(())
    }

    /// Bytes of address space of the buffer.
    pub(crate) fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }
}

/// Elements of a buffer that has grown to hold `len`.
pub(crate) fn grown(len: usize) -> usize {
    match len {
        0 => 0,
        _ => len.checked_next_power_of_two().unwrap_or(usize::MAX),
    }
}

/// Zeros from the system, which go back when nothing keeps them.
struct Mapping {
    start: NonNull<u8>,
    /// Bytes of the mapping.
    len: usize,
}

// SAFETY: the address alone; what lies there belongs to buffers.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Room for a buffer of `bytes`, which is neither 0 nor more than `isize::MAX`; `None` if the
    /// system refuses.
    fn new(bytes: usize) -> Option<Self> {
        let start = map(bytes)?;
        advise_huge_pages(start, bytes);
        Some(Self {
            start,
            len: mapped_bytes(bytes),
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's own, and no buffer is left in it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Bytes of the mapping behind a buffer of `bytes`: whole huge pages where the buffer asks
/// for them. The part past the buffer is never written.
fn mapped_bytes(bytes: usize) -> usize {
    if bytes < HUGE_PAGE_FROM {
        bytes
    } else {
        bytes.next_multiple_of(HUGE_PAGE)
    }
}

/// Maps zeros, on a huge page's boundary if the buffer is large. `bytes` is neither 0 nor
/// more than `isize::MAX`.
fn map(bytes: usize) -> Option<NonNull<u8>> {
    let wanted = mapped_bytes(bytes);
    let slack = if bytes < HUGE_PAGE_FROM { 0 } else { HUGE_PAGE };
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice
    // aliases nothing.
    let mapped = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            wanted + slack,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | no_reserve(),
        )
    };
    let base = NonNull::new(mapped.ok()?.cast::<u8>())?;
    let skipped = if slack == 0 {
        0
    } else {
        base.as_ptr().addr().next_multiple_of(HUGE_PAGE) - base.as_ptr().addr()
    };
    // SAFETY: `skipped` is at most `slack`, so this lies in the mapping, with
    // `wanted` bytes behind it.
    let start = unsafe { base.add(skipped) };
    if skipped > 0 {
        // SAFETY: these whole pages are before the buffer and nobody's.
        let _ = unsafe { munmap(base.as_ptr().cast(), skipped) };
    }
    if slack > skipped {
        // SAFETY: as above, of the pages behind it.
        let _ = unsafe { munmap(start.as_ptr().add(wanted).cast(), slack - skipped) };
    }
    Some(start)
}

#[cfg(target_os = "linux")]
fn advise_huge_pages(start: NonNull<u8>, bytes: usize) {
    if bytes >= HUGE_PAGE_FROM {
        // The last, partly used huge page would cost memory for nothing.
        let whole = bytes - bytes % HUGE_PAGE;
        // SAFETY: the range is a buffer's own mapping; the advice changes no
        // contents. A kernel without huge pages refuses, which is fine.
        let _ = unsafe { madvise(start.as_ptr().cast(), whole, Advice::LinuxHugepage) };
    }
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_start: NonNull<u8>, _bytes: usize) {}

#[cfg(target_os = "linux")]
fn no_reserve() -> MapFlags {
    MapFlags::NORESERVE
}

#[cfg(not(target_os = "linux"))]
fn no_reserve() -> MapFlags {
    MapFlags::empty()
}

impl<T: Pod> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `start..start + len` is mapped while the mapping is kept, aligned, and all-zero bytes or
        // later writes of `T` are valid values of a `Pod` type.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Pod> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`; `&mut self` makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Pod> Drop for Buffer<T> {
    /// Gives up its part of the mapping, which goes back to the system with the last part.
    fn drop(&mut self) {
        drop(self.mapping.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zero_aligned_and_writable() {
        let mut buffer = Buffer::<u32>::zeroed(3_000_000, "test").unwrap();
        assert!(buffer.iter().all(|&x| x == 0));
        assert_eq!(buffer.as_ptr() as usize % 4096, 0);
        buffer[2_999_999] = 7;
        assert_eq!(buffer.last(), Some(&7));
    }

    #[test]
    fn large_buffers_start_on_a_huge_page() {
        let mut buffers = Vec::new();
        for bytes in [HUGE_PAGE_FROM, HUGE_PAGE_FROM + 1, 3 * HUGE_PAGE_FROM - 7] {
            let mut buffer = Buffer::<u8>::zeroed(bytes, "test").unwrap();
            assert_eq!(buffer.as_ptr().addr() % HUGE_PAGE, 0);
            buffer[0] = 1;
            buffer[bytes - 1] = 1;
            buffers.push(buffer);
        }
        // Unmapping one leaves its neighbours alone.
        while let Some(buffer) = buffers.pop() {
            let sum: u32 = buffer.iter().map(|&x| u32::from(x)).sum();
            assert_eq!((buffer.bytes(), sum), (buffer.len(), 2));
        }
    }

    #[test]
    fn more_than_the_address_space_is_an_error() {
        let error = Buffer::<f32>::zeroed(usize::MAX / 8, "keys").err().unwrap();
        assert!(error.to_string().contains("keys needs"));
        assert!(Buffer::<f32>::zeroed(usize::MAX, "keys").is_err());
    }

    #[test]
    fn growing_keeps_enough_room() {
        let mut buffer = Buffer::<f32>::empty();
        buffer.grow(10, "test").unwrap();
        let start = buffer.as_ptr();
        buffer.grow(16, "test").unwrap();
        assert_eq!(buffer.as_ptr(), start);
        assert_eq!(buffer.len(), 16);
    }
}
