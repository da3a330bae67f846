//! Sizes of what blocks of attention stage in shared memory. The kernels check these numbers.

use crate::tensors::Element;

/// Queries of a tile (`QUERIES`) and positions of a block (`BLOCK`), as in `tile.cuh`.
const QUERIES: usize = 16;
const BLOCK: usize = 64;
/// Queries of a wide tile, as in `work.cuh`.
pub(super) const WIDE_QUERIES: usize = 64;
/// Widest head whose sums fit in the registers of `wide.cu`.
const WIDEST: usize = 128;
/// Warps of a block in `attention.cu`.
const WARPS: usize = 4;

/// Bytes of `Stage` in `attention.cu`.
pub(crate) fn stage_bytes(head_dim: usize, cached: Element) -> usize {
    let (size, padding) = (cached.bytes(), 16 / cached.bytes());
    let rows = (QUERIES + 2 * BLOCK) * row(head_dim, cached);
    let weights = QUERIES * (BLOCK + padding);
    size * (rows + weights) + 4 * (2 * WARPS * QUERIES + QUERIES + 2 * BLOCK)
}

/// Bytes of `Stage` in `wide.cu`; `None` if that kernel does not serve such heads.
pub(crate) fn wide_bytes(head_dim: usize, cached: Element) -> Option<usize> {
    let serves = cached == Element::Bf16 && head_dim <= WIDEST;
    let rows = (WIDE_QUERIES + 4 * BLOCK) * row(head_dim, cached);
    serves.then_some(cached.bytes() * rows + 4 * (WIDE_QUERIES + 2 * BLOCK))
}

/// Elements of a staged row of a head.
fn row(head_dim: usize, cached: Element) -> usize {
    head_dim.next_multiple_of(16) + 16 / cached.bytes()
}
