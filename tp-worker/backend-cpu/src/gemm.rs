//! `out = x · wᵀ + bias`, from one row to thousands.
//!
//! Weights are panels of 32 columns ([`crate::formats`]); rows are packed per call into blocks
//! of up to [`tiles::Tiles::rows`] with their steps interleaved. Few rows stream several
//! panels at once; many rows reuse a slice of a panel and a group of row blocks in the
//! second-level cache. Each output element is one chain of multiply-adds over `0..steps` and
//! then the bias, in any blocking. So a row's result does not depend on its neighbours.

#[cfg(target_arch = "x86_64")]
mod amx;
mod amx_emulated;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
mod cut;
mod fp8;
mod grouped;
mod groups;
mod layout;
mod mxfp4;
#[cfg(target_arch = "aarch64")]
mod neon;
mod panel;
mod prefetch;
mod product;
mod quantized;
mod scalar;
mod sum_buffers;
mod tile;
mod tiles;
mod widen;

use std::ops::Range;

use lockstep_backend::BackendError;

use crate::formats::{CpuMatrix, Format};
use crate::isa::Isa;
use crate::memory::Buffer;
use crate::number::pack_row;
use crate::partition::Shared;
use crate::pool::Pool;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::{FEW_ROWS, multiply_add};
use cut::{Cut, block_height};
pub(crate) use cut::{FLOAT_GROUPS, INTEGER_GROUPS, InputGroups, WIDE_GROUPS};
pub(crate) use fp8::{
    CODE_SCALE as FP8_CODE_SCALE, MOST_SCALES as FP8_MOST_SCALES, RUN as FP8_RUN,
    Widenings as Fp8Widenings, place as fp8_place, select as fp8, step_words as fp8_step_words,
};
pub(crate) use grouped::{Apart, Groups, Inputs, Scratch, grouped_matmul, grouped_words};
pub(crate) use groups::{describe as describe_groups, select as groups};
pub(crate) use layout::{Layout, Places};
pub(crate) use mxfp4::{
    GROUP as MXFP4_GROUP, STEP_WORDS as MXFP4_WORDS, places as mxfp4_places, select as mxfp4,
    widening as mxfp4_widening,
};
pub(crate) use prefetch::Ahead;
use product::Product;
pub(crate) use quantized::{INT4_WORDS, INT8_WORDS, describe as describe_quantized, int4, int8};
use sum_buffers::{Rooms, Sums};
pub(crate) use tile::{PANEL, Tile};
pub(crate) use tiles::{BLOCK_STEPS, Element, Input, Tiles, select};
pub(crate) use widen::{WIDEN_BF16, WIDEN_INT4, Widening};

/// Most packed words that the caller packs alone.
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
    let tiles = w.format.tiles(isa, n);
    let rooms = Rooms::new(pool.threads(), tiles, w.format, n, [w.rows, w.cols]);
    let packed = packed_words(w.format, isa, n, w.cols);
    let words = packed + rooms.map_or(0, |rooms| rooms.words());
    scratch.grow(words, "packed activations")?;
    let (packed, sums) = scratch[..words].split_at_mut(packed);
    let height = block_height(tiles, n);
    pack_rows(pool, isa, tiles.input, height, x, w.cols, packed);
    let rooms = rooms.filter(|_| bias.is_none() && sum_buffers::is_aligned(out));
    let product = Product {
        isa,
        tiles,
        w,
        bias,
        rows: n,
        height,
        a: packed,
        out: Shared::new(out),
        out_stride: w.rows,
        sums: rooms.map(|rooms| Sums::new(rooms, sums)),
    };
    let blocks = n.div_ceil(height);
    let passes = product.passes(pool.threads(), blocks);
    let cut = Cut::new(pool.threads(), w.panels(), blocks, passes);
    pool.for_chunks(cut.chunks(), |thread, index| {
        product.run(thread, cut.chunk(index));
    });
    Ok(())
}

/// Words of working memory for products of up to `rows` rows, on `threads` threads, with a
/// matrix of `[outputs, inputs]`: packed inputs, and sums between slices.
pub(crate) fn scratch_words(
    threads: usize,
    format: &dyn Format,
    isa: Isa,
    rows: usize,
    matrix: [usize; 2],
) -> usize {
    let sums = sum_buffers::most_words(threads, format.tiles(isa, rows), format, rows, matrix);
    packed_words(format, isa, rows, matrix[1]).saturating_add(sums)
}

/// Words of `rows` rows of inputs, packed for a matrix of `cols` columns.
fn packed_words(format: &dyn Format, isa: Isa, rows: usize, cols: usize) -> usize {
    rows.saturating_mul(format.tiles(isa, rows).input.len(cols))
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
        let rows = (first..first + count).map(|row| &x[row * width..(row + 1) * width]);
        pack_block(isa, input, rows, &columns, out);
    };
    let units = rows.div_ceil(height) * parts;
    let (words, out) = (out.len(), Shared::new(out));
    if words <= PACK_ALONE {
        return (0..units).for_each(|unit| pack(unit, &out));
    }
    pool.for_chunks(units, |_, unit| pack(unit, &out));
}

/// Packs `columns` of the rows of a block.
fn pack_block<'x>(
    isa: Isa,
    input: Input,
    rows: impl ExactSizeIterator<Item = &'x [f32]>,
    columns: &Range<usize>,
    out: &mut [u32],
) {
    let count = rows.len();
    for (row, values) in rows.enumerate() {
        pack_row(isa, input, &values[columns.clone()], out, row, count);
    }
}

#[cfg(test)]
mod tests;
