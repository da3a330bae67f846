//! Sizes of what blocks of attention stage in shared memory. The kernels check these numbers.

use lockstep_backend::AttentionShape;

use crate::tensors::Element;

/// Queries of a tile (`QUERIES`) and positions of a block (`BLOCK`), as in `tile.cuh`.
const QUERIES: usize = 16;
const BLOCK: usize = 64;
/// Queries of a wide tile in `wide.cu`.
const WIDE_QUERIES: usize = 64;
/// Widest head whose sums fit in the registers of `wide.cu`.
const WIDEST: usize = 128;
/// Widest head whose values are staged beside their keys. Of wider ones, with one buffer, two blocks
/// run on a multiprocessor where one would with two.
const WIDEST_BESIDE: usize = 256;
/// Warps of a tile in `tiles.cuh`.
const WARPS: usize = 4;
/// Shared memory that each block takes for the system.
const SYSTEM_SHARED: usize = 1 << 10;

/// Buffers of a block of positions in `attention.cu`: one of keys and one of values, or one for both.
pub(super) fn buffers(shape: &AttentionShape) -> usize {
    match shape.latent.is_some() || shape.head_dim > WIDEST_BESIDE {
        true => 1,
        false => 2,
    }
}

/// Blocks of `attend` that a multiprocessor with so much shared memory runs at once: `AT_ONCE` in
/// `attention.cu`, or one where two have no room.
pub(super) fn blocks_at_once(shape: &AttentionShape, cached: Element, shared_memory: usize) -> u32 {
    let bytes = stage_bytes(shape, cached);
    if 2 * (bytes + SYSTEM_SHARED) > shared_memory {
        1
    } else if bytes > 48 << 10 {
        2
    } else {
        4
    }
}

/// Bytes of `Stage` in `attention.cu`.
pub(crate) fn stage_bytes(shape: &AttentionShape, cached: Element) -> usize {
    bytes(shape, cached, 1, buffers(shape))
}

/// A kernel's way to take wide tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wide {
    /// True if a block has a tile of queries in the registers of each warp (`wide.cu`), false if
    /// it has two tiles whose columns warps share (`pairs.cu`).
    pub(super) in_registers: bool,
    /// Buffers of a block of positions in `pairs.cu`.
    pub(super) buffers: usize,
    /// Threads of a block.
    pub(crate) threads: u32,
    /// Bytes of `Stage`.
    pub(crate) bytes: usize,
    /// Blocks that a multiprocessor runs at once.
    pub(super) at_once: u32,
}

impl Wide {
    /// Returns the way for heads of this shape on a GPU whose blocks may have so much memory;
    /// `None` if there is none.
    pub(crate) fn of(shape: &AttentionShape, cached: Element, block_memory: usize) -> Option<Self> {
        if cached != Element::Bf16 {
            return None;
        }
        let ways = if in_registers(shape) {
            [Some(Self::in_registers(shape)), None]
        } else {
            [2, 1].map(|buffers| Some(Self::in_pairs(shape, buffers)))
        };
        let fits = |way: &Self| way.bytes <= block_memory;
        ways.into_iter().flatten().find(fits)
    }

    fn in_registers(shape: &AttentionShape) -> Self {
        let rows = (WIDE_QUERIES + 4 * BLOCK) * row(shape.head_dim, Element::Bf16);
        Self {
            in_registers: true,
            buffers: 0,
            threads: 128,
            bytes: Element::Bf16.bytes() * rows + 4 * (WIDE_QUERIES + 2 * BLOCK),
            at_once: 2,
        }
    }

    fn in_pairs(shape: &AttentionShape, buffers: usize) -> Self {
        Self {
            in_registers: false,
            buffers,
            threads: 256,
            bytes: bytes(shape, Element::Bf16, 2, buffers),
            at_once: 1,
        }
    }
}

/// Queries of a wide tile of heads of this shape.
pub(super) fn wide_queries(shape: &AttentionShape) -> usize {
    match in_registers(shape) {
        true => WIDE_QUERIES,
        false => 2 * QUERIES,
    }
}

/// True if sums of 16 queries fit in the registers of a warp.
fn in_registers(shape: &AttentionShape) -> bool {
    shape.latent.is_none() && shape.head_dim <= WIDEST
}

/// Bytes of `Staged` in `tiles.cuh`.
fn bytes(shape: &AttentionShape, cached: Element, tiles: usize, buffers: usize) -> usize {
    let (size, padding) = (cached.bytes(), 16 / cached.bytes());
    let rows = (tiles * QUERIES + buffers * BLOCK) * row(shape.head_dim, cached);
    let weights = tiles * QUERIES * (BLOCK + padding);
    size * (rows + weights) + 4 * (tiles * (2 * WARPS * QUERIES + QUERIES) + 2 * BLOCK)
}

/// Elements of a staged row of a head.
fn row(head_dim: usize, cached: Element) -> usize {
    head_dim.next_multiple_of(16) + 16 / cached.bytes()
}
