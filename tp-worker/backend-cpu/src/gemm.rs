//! `out = x · wᵀ + bias`, from one row to thousands.
//!
//! Weights are panels of 32 columns ([`crate::pack`]); rows are packed per call
//! into blocks of up to [`tiles::Tiles::rows`] with their steps interleaved.
//! Few rows stream several panels at once; many rows reuse a slice of a panel
//! and a group of row blocks in the second-level cache. Whatever the blocking,
//! each output element is one chain of multiply-adds over `0..steps` and then
//! the bias, so a row's result does not depend on its neighbours.

mod ahead;
#[cfg(target_arch = "x86_64")]
mod amx;
mod amx_emulated;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
#[cfg(target_arch = "aarch64")]
mod neon;
mod product;
mod quantized;
mod scalar;
mod tile;
mod tiles;
mod widen;

use std::ops::Range;

use lockstep_backend::BackendError;

use crate::isa::Isa;
use crate::memory::Buffer;
use crate::number::pack_row;
use crate::pack::CpuMatrix;
use crate::partition::{Shared, share};
use crate::pool::Pool;

pub(crate) use ahead::Ahead;
use product::{PANEL_GROUP, Product, keeps_sums_aside, sums_words};
pub(crate) use quantized::describe as describe_quantized;
pub(crate) use tile::{PANEL, Tile};
pub(crate) use tiles::{BLOCK_STEPS, Element, Input, Packed, Tiles, select};

/// Parts that a thread's work is cut into, at least.
const CHUNKS_PER_THREAD: usize = 4;
/// Up to this many packed words, the caller packs alone.
const PACK_ALONE: usize = 4_096;
/// Columns that are packed at a time: whole groups of quantized inputs, and
/// whole chunks of [`pack_row`].
const PACK_COLUMNS: usize = 1_024;

/// Multiplies `x` `[n, in]` by `w`'s transpose into `out` `[n, out]`.
/// `scratch` grows to hold the packed rows.
pub(crate) fn matmul(
    pool: &mut Pool,
    isa: Isa,
    x: &[f32],
    w: &CpuMatrix,
    bias: Option<&[f32]>,
    scratch: &mut Buffer<u32>,
    out: &mut [f32],
) -> Result<(), BackendError> {
    let n = out.len() / w.rows.max(1);
    if n == 0 {
        return Ok(());
    }
    let tiles = w.element.tiles(isa, n);
    let packed = packed_words(w.element, isa, n, w.cols);
    scratch.grow(
        scratch_words(w.element, isa, n, [w.rows, w.cols]),
        "packed activations",
    )?;
    let (packed, sums) = scratch.split_at_mut(packed);
    // Blocks of about the same height: a low one wastes registers.
    let height = n.div_ceil(n.div_ceil(tiles.rows()));
    pack_rows(pool, isa, tiles.input, height, x, w.cols, packed);
    let blocks = n.div_ceil(height);
    let (row_shares, panel_shares) = shares(pool.threads(), blocks, w.panels());
    let aside = bias.is_none() && keeps_sums_aside(tiles, w, n, out);
    let sums = &mut sums[..sums_words(tiles, w.element, n, [w.rows, w.cols])];
    let product = Product {
        isa,
        tiles,
        w,
        bias,
        rows: n,
        height,
        a: packed,
        out: Shared::new(out),
        sums: aside.then(|| Shared::new(bytemuck::cast_slice_mut(sums))),
    };
    if row_shares > 1 {
        pool.run(|thread| {
            let panels = share(w.panels(), panel_shares, thread % panel_shares);
            let blocks = share(blocks, row_shares, thread / panel_shares);
            product.run(panels, blocks);
        });
        return Ok(());
    }
    // A thread that the machine disturbs leaves its last chunks to the others.
    let (threads, panels) = (pool.threads(), w.panels());
    let groups = product.row_groups(blocks);
    let parts = CHUNKS_PER_THREAD.div_ceil(groups);
    pool.for_chunks(threads * parts * groups, |_, index| {
        let (thread, index) = (index / (parts * groups), index % (parts * groups));
        let (group, part) = (index / parts, index % parts);
        product.run(
            chunk(panels, threads, parts, thread * parts + part),
            share(blocks, groups, group),
        );
    });
    Ok(())
}

/// Words that a product of `rows` rows and a matrix of so many outputs and inputs
/// works with: its packed inputs, and sums between slices.
pub(crate) fn scratch_words(element: Packed, isa: Isa, rows: usize, matrix: [usize; 2]) -> usize {
    let sums = sums_words(element.tiles(isa, rows), element, rows, matrix);
    packed_words(element, isa, rows, matrix[1]).saturating_add(sums)
}

/// Words that `rows` rows of inputs take when they are packed for a matrix of
/// `cols` columns.
fn packed_words(element: Packed, isa: Isa, rows: usize, cols: usize) -> usize {
    rows.saturating_mul(element.tiles(isa, rows).input.len(cols))
}

/// Packs rows into blocks `[inputs of a row][rows of the block]`.
fn pack_rows(
    pool: &mut Pool,
    isa: Isa,
    input: Input,
    height: usize,
    x: &[f32],
    width: usize,
    out: &mut [u32],
) {
    let len = input.len(width);
    let rows = out.len() / len.max(1);
    let parts = width.div_ceil(PACK_COLUMNS);
    // Columns `part` of a block's rows become one run of words.
    let pack = |unit: usize, out: &Shared<'_, u32>| {
        let (block, part) = (unit / parts, unit % parts);
        let first = block * height;
        let count = height.min(rows - first);
        let columns = part * PACK_COLUMNS..width.min((part + 1) * PACK_COLUMNS);
        let start = first * len;
        let words = input.len(columns.start) * count..input.len(columns.end) * count;
        // SAFETY: each unit is packed once, and units' words are disjoint.
        let out = unsafe { out.slice(start + words.start..start + words.end) };
        for row in 0..count {
            let values = &x[(first + row) * width..(first + row + 1) * width];
            pack_row(isa, input, &values[columns.clone()], out, row, count);
        }
    };
    let units = rows.div_ceil(height) * parts;
    let (words, out) = (out.len(), Shared::new(out));
    if words <= PACK_ALONE {
        return (0..units).for_each(|unit| pack(unit, &out));
    }
    pool.for_chunks(units, |_, unit| pack(unit, &out));
}

/// Panels of part `index` of `threads · parts`. Each thread's parts make up its
/// even share; they are cut at whole groups of panels where that leaves shares even.
fn chunk(panels: usize, threads: usize, parts: usize, index: usize) -> Range<usize> {
    let groups = panels.div_ceil(PANEL_GROUP);
    let even = groups.is_multiple_of(threads) || groups >= 16 * threads;
    let unit = if even { PANEL_GROUP } else { 1 };
    let own = share(panels.div_ceil(unit), threads, index / parts);
    let part = share(own.len(), parts, index % parts);
    let bound = |at: usize| ((own.start + at) * unit).min(panels);
    bound(part.start)..bound(part.end)
}

/// How many ways rows and panels are cut: the cut whose largest part is
/// smallest, preferring to cut panels, which reads each weight once.
fn shares(threads: usize, blocks: usize, panels: usize) -> (usize, usize) {
    let largest = |rows: usize| blocks.div_ceil(rows) * panels.div_ceil(threads / rows);
    let cuts = (1..=threads.min(blocks)).filter(|rows| threads.is_multiple_of(*rows));
    let rows = cuts.min_by_key(|&rows| (largest(rows), rows)).unwrap_or(1);
    (rows, threads / rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_all_panels_once_and_give_threads_even_shares() {
        for threads in [1, 2, 3, 64] {
            for panels in [0, 1, 7, 28, 36, 64, 304, 1_000, 4_748] {
                let cut = |i| chunk(panels, threads, CHUNKS_PER_THREAD, i);
                let parts: Vec<_> = (0..threads * CHUNKS_PER_THREAD).map(cut).collect();
                let all: Vec<usize> = parts.iter().cloned().flatten().collect();
                assert_eq!(all, (0..panels).collect::<Vec<_>>());
                let shares = parts.chunks(CHUNKS_PER_THREAD);
                let shares = shares.map(|parts| parts.iter().map(Range::len).sum::<usize>());
                let most = shares.max().unwrap();
                let even = panels.div_ceil(threads);
                assert!(
                    most <= even + even / 12,
                    "{most} of {panels} for one of {threads}"
                );
            }
        }
    }
}
