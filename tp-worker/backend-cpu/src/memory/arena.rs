//! Huge pages that several buffers share.
//!
//! A buffer with a mapping of its own has small pages wherever it does not fill a huge one. For
//! the matrices of experts that would be much of them, and from small pages weights come a fifth
//! slower.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use super::Mapping;

/// Bytes of a region, in whole huge pages. A region goes back to the system with its last buffer.
/// Part of the huge page at its end may be lost, so a region is many huge pages.
const REGION: usize = 256 << 20;
/// Sizes of buffers that share regions: smaller ones are no weights that matter, and larger ones
/// fill huge pages of their own.
const SIZES: Range<usize> = 1 << 20..32 << 20;
/// Buffers start at multiples of this number of bytes.
const ALIGNMENT: usize = 4_096;

/// Memory for buffers that are made one after another and live about equally long, as matrices
/// of a model do. What nobody wrote costs no memory, but for the rest of a huge page.
pub(crate) struct Arena {
    /// Bytes of regions.
    len: usize,
    /// The last region, while a buffer lies in it.
    region: Weak<Mapping>,
    /// Bytes of the region that are given away.
    used: usize,
}

impl Default for Arena {
    fn default() -> Self {
        Self::of_regions(REGION)
    }
}

impl Arena {
    /// An arena of regions of `len` bytes, which is no less than any buffer's.
    fn of_regions(len: usize) -> Self {
        Self {
            len,
            region: Weak::new(),
            used: 0,
        }
    }

    /// Returns true if buffers of so many bytes share regions.
    pub(super) fn takes(bytes: usize) -> bool {
        SIZES.contains(&bytes)
    }

    /// A place of `bytes` zeros, and what keeps it; `None` if the system refuses.
    pub(super) fn place(&mut self, bytes: usize) -> Option<(NonNull<u8>, Arc<Mapping>)> {
        let known = self.region.upgrade();
        let region = match known.filter(|region| region.len - self.used >= bytes) {
            Some(region) => region,
            None => {
                let region = Arc::new(Mapping::new(self.len)?);
                (self.region, self.used) = (Arc::downgrade(&region), 0);
                region
            }
        };
        // SAFETY: the place lies in the region, whose length was just checked.
        let start = unsafe { region.start.add(self.used) };
        let end = (self.used + bytes).next_multiple_of(ALIGNMENT);
        self.used = end.min(region.len);
        Some((start, region))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Buffer, HUGE_PAGE};
    use super::*;

    #[test]
    fn buffers_lie_one_behind_another_and_apart() {
        let mut arena = Arena::of_regions(64 << 20);
        let sizes = [
            SIZES.start + 12,
            3_145_728,
            9_000_004,
            31 << 20,
            30 << 20,
            SIZES.start,
        ];
        let mut buffers: Vec<_> = sizes
            .iter()
            .map(|bytes| Buffer::<u32>::zeroed_in(&mut arena, bytes / 4, "test").unwrap())
            .collect();
        for (number, buffer) in buffers.iter_mut().enumerate() {
            assert!(buffer.as_ptr().addr().is_multiple_of(ALIGNMENT));
            assert!(buffer.iter().all(|&x| x == 0), "{number}");
            buffer.fill(number as u32 + 1);
        }
        for (number, buffer) in buffers.iter().enumerate() {
            let all = buffer.iter().all(|&x| x == number as u32 + 1);
            assert!(all, "{number}");
        }
        let [first, second] = [0, 1].map(|number: usize| buffers[number].as_ptr().addr());
        assert_eq!(first % HUGE_PAGE, 0);
        assert_eq!(second, (first + sizes[0]).next_multiple_of(ALIGNMENT));
    }

    #[test]
    fn a_region_lives_as_long_as_its_last_buffer() {
        let mut arena = Arena::of_regions(64 << 20);
        let mut buffers: Vec<_> = (0..3)
            .map(|_| Buffer::<u8>::zeroed_in(&mut arena, 30 << 20, "test").unwrap())
            .collect();
        let first = Arc::downgrade(buffers[0].mapping.as_ref().unwrap());
        buffers.remove(0);
        assert!(first.upgrade().is_some());
        buffers.remove(0);
        assert!(first.upgrade().is_none());
        buffers[0][5] = 1;
    }

    #[test]
    fn a_refused_region_leaves_what_the_last_one_holds() {
        let mut arena = Arena::of_regions(3 << 20);
        let (first, _kept) = arena.place(2 << 20).expect("room");
        arena.len = 1 << 60;
        assert!(arena.place(2 << 20).is_none());
        let (second, _) = arena.place(1 << 20).expect("room");
        assert_eq!(second.addr().get(), first.addr().get() + (2 << 20));
    }

    #[test]
    fn other_sizes_have_mappings_of_their_own() {
        let mut arena = Arena::default();
        for bytes in [1, SIZES.start - 1, SIZES.end] {
            let buffer = Buffer::<u8>::zeroed_in(&mut arena, bytes, "test").unwrap();
            assert_eq!(buffer.len(), bytes);
            assert_eq!(arena.region.strong_count(), 0);
        }
    }
}
