//! The memory that the ranks of one machine share: its layout, and views of it.
#![expect(unsafe_code, reason = "views of raw shared memory")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::MmapRaw;

use crate::{ATTACHED_WORDS, Operation, Shown};

/// Bytes that keep two ranks' words off each other's cache lines, and off the line that the
/// prefetcher fetches along.
const LINES: usize = 128;
const PAGE: usize = 4096;

/// Memory laid out as a [`Header`], one [`Control`] per rank, and two buffers
/// of `capacity` elements per rank.
pub(crate) struct Region {
    base: NonNull<u8>,
    ranks: usize,
    capacity: usize,
    _memory: Memory,
}

/// Identifies a group's memory while ranks join.
#[repr(C, align(128))]
pub(crate) struct Header {
    /// [`super::join::MAGIC`] once the memory is ready.
    pub magic: AtomicU64,
    /// Number of ranks of the group.
    pub ranks: AtomicU64,
    /// Number of elements per buffer.
    pub capacity: AtomicU64,
    /// One bit per rank that has mapped the memory.
    pub joined: AtomicU64,
    /// 1 once all ranks have mapped the memory and the file is gone.
    pub complete: AtomicU64,
    /// Changes with each of these fields, for waiting.
    pub joins: AtomicU32,
}

/// A rank's words for its peers. Only the rank itself writes, except `waiters`.
#[repr(C, align(128))]
pub(crate) struct Control {
    /// The last phase this rank has published (wrapping).
    pub arrived: AtomicU32,
    /// Non-zero once the rank takes part no more: see [`super::wait`].
    pub state: AtomicU32,
    /// The rank's operation, for even and odd phases.
    pub operations: [[AtomicU64; Operation::WORDS]; 2],
    /// Shape of the rank's attachment, for even and odd phases.
    pub shapes: [AtomicU64; 2],
    /// Words of the rank's attachment, for even and odd phases.
    pub attached: [AttachedWords; 2],
    /// Number of peers that sleep on `arrived`.
    pub waiters: Waiters,
    /// The words that the rank shows beside all phases.
    pub shown: ShownWords,
}

impl Control {
    /// Returns the operation of the phase of this parity that the rank published.
    pub fn operation(&self, parity: usize) -> Operation {
        let words = &self.operations[parity];
        Operation::from_words(std::array::from_fn(|word| {
            words[word].load(Ordering::Relaxed)
        }))
    }
}

/// Words of an attachment, on cache lines that other phases don't touch.
#[repr(C, align(128))]
pub(crate) struct AttachedWords(pub [AtomicU32; ATTACHED_WORDS]);

/// The number of sleepers, on cache lines of its own.
#[repr(C, align(128))]
pub(crate) struct Waiters(pub AtomicU32);

/// The words that a rank shows, on cache lines of their own.
#[repr(C, align(128))]
pub(crate) struct ShownWords(pub [AtomicU64; size_of::<Shown>() / size_of::<u64>()]);

enum Memory {
    Mapped { _map: MmapRaw },
    Allocated { base: NonNull<u8>, layout: Layout },
}

// SAFETY: `base` points to memory that `memory` owns for the life of the value.
// It is shared only as atomics (`header`, `control`) or as raw pointers
// (`buffer`), whose users answer for their own accesses.
unsafe impl Send for Region {}
// SAFETY: as above; no method hands out a reference to non-atomic memory.
unsafe impl Sync for Region {}

impl Region {
    /// Returns the bytes of a region for `ranks` ranks with buffers of `capacity` elements;
    /// `None` if that overflows.
    pub fn bytes(ranks: usize, capacity: usize) -> Option<usize> {
        let buffers = buffer_bytes(capacity)?.checked_mul(2)?.checked_mul(ranks)?;
        buffers_offset(ranks)?
            .checked_add(buffers)?
            .checked_next_multiple_of(PAGE)
    }

    /// Makes a region inside this process.
    pub fn allocate(ranks: usize, capacity: usize) -> Self {
        let bytes = Self::bytes(ranks, capacity).unwrap_or(usize::MAX);
        let Ok(layout) = Layout::from_size_align(bytes, PAGE) else {
            handle_alloc_error(Layout::new::<u8>());
        };
        // SAFETY: a region has at least its header, so the size is not zero.
        let pointer = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(pointer) else {
            handle_alloc_error(layout)
        };
        Self {
            base,
            ranks,
            capacity,
            _memory: Memory::Allocated { base, layout },
        }
    }

    /// Makes a region in a mapping; `None` unless it has [`Self::bytes`] bytes or more.
    pub fn mapped(map: MmapRaw, ranks: usize, capacity: usize) -> Option<Self> {
        let bytes = Self::bytes(ranks, capacity)?;
        let base = NonNull::new(map.as_mut_ptr())?;
        let fits = map.len() >= bytes && base.as_ptr().addr().is_multiple_of(PAGE);
        fits.then_some(Self {
            base,
            ranks,
            capacity,
            _memory: Memory::Mapped { _map: map },
        })
    }

    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Returns the number of elements per buffer.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    pub fn header(&self) -> &Header {
        // SAFETY: the region starts with a page-aligned header; it holds only
        // atomics, valid for any bits, and lives as long as `self`.
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    pub fn control(&self, rank: usize) -> &Control {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        // SAFETY: `rank` is in range, so this lies within the region, aligned
        // because header and controls are multiples of their alignment. It
        // holds only atomics, valid for any bits.
        unsafe {
            self.base
                .add(size_of::<Header>())
                .cast::<Control>()
                .add(rank)
                .as_ref()
        }
    }

    /// Returns the first of `capacity` elements of a rank's buffer for phases of the given
    /// parity. The caller must keep to the protocol of [`super::member`].
    pub fn buffer(&self, rank: usize, parity: usize) -> NonNull<f32> {
        assert!(
            rank < self.ranks && parity < 2,
            "rank {rank} of {}",
            self.ranks
        );
        let offset = buffers_offset(self.ranks).zip(buffer_bytes(self.capacity));
        let (start, bytes) = offset.expect("the region's size was computed from these");
        // SAFETY: `rank` and `parity` are in range, so the buffer lies within
        // the `bytes(ranks, capacity)` bytes of the region.
        unsafe { self.base.add(start + (rank * 2 + parity) * bytes).cast() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Self::Allocated { base, layout } = self {
            // SAFETY: allocated with this layout by `Region::allocate`.
            unsafe { dealloc(base.as_ptr(), *layout) }
        }
    }
}

fn buffer_bytes(capacity: usize) -> Option<usize> {
    capacity
        .checked_mul(size_of::<f32>())?
        .checked_next_multiple_of(LINES)
}

fn buffers_offset(ranks: usize) -> Option<usize> {
    let controls = ranks.checked_mul(size_of::<Control>())?;
    controls
        .checked_add(size_of::<Header>())?
        .checked_next_multiple_of(PAGE)
}
