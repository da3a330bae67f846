//! Sizes of what blocks of attention stage in shared memory. The kernels check these numbers.

use lockstep_backend::AttentionShape;

use crate::tensors::Element;

/// Queries of a tile (`QUERIES`) and positions of a block (`BLOCK`), as in `tile.cuh`.
const QUERIES: usize = 16;
const BLOCK: usize = 64;
/// Queries of a wide tile, as in `work.cuh`.
pub(super) const WIDE_QUERIES: usize = 64;
/// Widest head whose sums fit in the registers of `wide.cu`.
const WIDEST: usize = 128;
/// Widest head whose values are staged beside their keys. Of wider ones, with one buffer, two blocks
/// run on a multiprocessor where one would with two.
const WIDEST_BESIDE: usize = 256;
/// Warps of a block in `attention.cu`.
const WARPS: usize = 4;

/// Buffers of a block of positions in `attention.cu`: one of keys and one of values, or one for both.
pub(super) fn buffers(shape: &AttentionShape) -> usize {
    match shape.latent.is_some() || shape.head_dim > WIDEST_BESIDE {
        true => 1,
        false => 2,
    }
}

/// Blocks of `attend` that a multiprocessor runs at once, as `AT_ONCE` in `attention.cu`.
pub(super) fn blocks_at_once(shape: &AttentionShape, cached: Element) -> u32 {
    if stage_bytes(shape, cached) > 48 << 10 {
        2
    } else {
        4
    }
}

/// Bytes of `Stage` in `attention.cu`.
pub(crate) fn stage_bytes(shape: &AttentionShape, cached: Element) -> usize {
    let (size, padding) = (cached.bytes(), 16 / cached.bytes());
    let rows = (QUERIES + buffers(shape) * BLOCK) * row(shape.head_dim, cached);
    let weights = QUERIES * (BLOCK + padding);
    size * (rows + weights) + 4 * (2 * WARPS * QUERIES + QUERIES + 2 * BLOCK)
}

/// Bytes of `Stage` in `wide.cu`; `None` if that kernel does not serve such heads.
pub(crate) fn wide_bytes(shape: &AttentionShape, cached: Element) -> Option<usize> {
    let serves = cached == Element::Bf16 && shape.head_dim <= WIDEST && shape.latent.is_none();
    let rows = (WIDE_QUERIES + 4 * BLOCK) * row(shape.head_dim, cached);
    serves.then_some(cached.bytes() * rows + 4 * (WIDE_QUERIES + 2 * BLOCK))
}

/// Elements of a staged row of a head.
fn row(head_dim: usize, cached: Element) -> usize {
    head_dim.next_multiple_of(16) + 16 / cached.bytes()
}
