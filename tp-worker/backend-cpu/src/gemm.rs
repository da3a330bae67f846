//! `out = x · wᵀ + bias`, from one row to thousands.
//!
//! Weights are panels of 32 columns ([`crate::pack`]); rows are packed per call
//! into blocks of up to [`tiles::Tiles::rows`] with their steps interleaved.
//! Few rows stream several panels at once; many rows reuse a slice of a panel
//! in the first-level cache and a group of row blocks in the second. Whatever
//! the blocking, each output element is one chain of multiply-adds over
//! `0..steps` and then the bias, so a row's result does not depend on its
//! neighbours.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
#[cfg(target_arch = "aarch64")]
mod neon;
mod quantised;
mod scalar;
mod tile;
mod tiles;

use std::ops::Range;

use lockstep_backend::BackendError;

use crate::isa::Isa;
use crate::memory::Buffer;
use crate::number::pack_row;
use crate::pack::CpuMatrix;
use crate::partition::{Shared, share};
use crate::pool::Pool;

pub(crate) use quantised::describe as describe_quantised;
pub(crate) use tile::{PANEL, Tile, TileFn};
pub(crate) use tiles::{Element, Input, Packed, Tiles, select};

/// Words of a panel kept in the first-level cache: 32 KiB.
const BLOCK_WORDS: usize = 8_192;
/// Panels that share one pass over a group of row blocks.
const PANEL_GROUP: usize = 4;
/// Rows whose steps stay in the second-level cache.
const ROWS_GROUP: usize = 240;
/// Up to this many packed steps, the caller packs alone.
const PACK_ALONE: usize = 16_384;

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
    let tiles = w.element.tiles(isa);
    let packed = n * tiles.input.len(w.cols);
    scratch.grow(packed, "packed activations")?;
    pack_rows(pool, isa, tiles, x, w.cols, &mut scratch[..packed]);
    let blocks = n.div_ceil(tiles.rows());
    let (row_shares, panel_shares) = shares(pool.threads(), blocks, w.panels());
    let product = Product {
        tiles,
        w,
        bias,
        rows: n,
        a: scratch,
        out: Shared::new(out),
    };
    pool.run(|thread| {
        let panels = share(w.panels(), panel_shares, thread % panel_shares);
        let blocks = share(blocks, row_shares, thread / panel_shares);
        product.run(panels, blocks);
    });
    Ok(())
}

/// Packs rows into blocks `[inputs of a row][rows of the block]`.
fn pack_rows(pool: &mut Pool, isa: Isa, tiles: &Tiles, x: &[f32], width: usize, out: &mut [u32]) {
    let (block_rows, len) = (tiles.rows(), tiles.input.len(width));
    let rows = out.len() / len.max(1);
    let blocks = rows.div_ceil(block_rows);
    let pack = |block: usize, out: &mut [u32]| {
        let first = block * block_rows;
        let count = block_rows.min(rows - first);
        for row in 0..count {
            let values = &x[(first + row) * width..(first + row + 1) * width];
            pack_row(isa, tiles.input, values, out, row, count);
        }
    };
    let range = |block: usize| block * block_rows * len..((block + 1) * block_rows).min(rows) * len;
    if out.len() <= PACK_ALONE {
        return (0..blocks).for_each(|block| pack(block, &mut out[range(block)]));
    }
    let (shares, shared) = (pool.threads(), Shared::new(out));
    pool.run(|thread| {
        for block in share(blocks, shares, thread) {
            // SAFETY: each block belongs to one thread.
            pack(block, unsafe { shared.slice(range(block)) });
        }
    });
}

/// How many ways rows and panels are cut: the cut whose largest part is
/// smallest, preferring to cut panels, which reads each weight once.
fn shares(threads: usize, blocks: usize, panels: usize) -> (usize, usize) {
    let largest = |rows: usize| blocks.div_ceil(rows) * panels.div_ceil(threads / rows);
    let cuts = (1..=threads.min(blocks)).filter(|rows| threads.is_multiple_of(*rows));
    let rows = cuts.min_by_key(|&rows| (largest(rows), rows)).unwrap_or(1);
    (rows, threads / rows)
}

/// One product, shared by all threads.
struct Product<'a> {
    tiles: &'static Tiles,
    w: &'a CpuMatrix,
    bias: Option<&'a [f32]>,
    rows: usize,
    a: &'a [u32],
    out: Shared<'a, f32>,
}

impl Product<'_> {
    fn run(&self, panels: Range<usize>, blocks: Range<usize>) {
        if self.rows <= self.tiles.rows() {
            if !blocks.is_empty() {
                self.stream(panels);
            }
            return;
        }
        let group = (ROWS_GROUP / self.tiles.rows()).max(1);
        for first_block in blocks.clone().step_by(group) {
            let blocks = first_block..blocks.end.min(first_block + group);
            for first in panels.clone().step_by(PANEL_GROUP) {
                self.group(first..panels.end.min(first + PANEL_GROUP), blocks.clone());
            }
        }
    }

    /// A single block of rows: every panel is read once, several at a time.
    fn stream(&self, panels: Range<usize>) {
        let (tile, at_once) = self.tiles.stream[self.rows - 1];
        let steps = 0..self.w.steps();
        let full = panels.end.min(self.w.rows / PANEL);
        let mut panel = panels.start;
        while panel + at_once <= full {
            self.tile(tile, panel, 0, steps.clone());
            panel += at_once;
        }
        for panel in panel..panels.end {
            self.tile_or_edge(panel, 0, steps.clone());
        }
        self.add_bias(panels, 0..self.rows);
    }

    /// A group of panels times a group of row blocks.
    fn group(&self, panels: Range<usize>, blocks: Range<usize>) {
        let steps = self.w.steps();
        // A matrix without inputs still has to set its outputs.
        let at_once = (BLOCK_WORDS / self.w.element.step_words()).max(1);
        for start in (0..steps.max(1)).step_by(at_once) {
            let part = start..steps.min(start + at_once);
            for panel in panels.clone() {
                for block in blocks.clone() {
                    self.tile_or_edge(panel, block, part.clone());
                }
            }
        }
        let rows = |block: usize| (block * self.tiles.rows()).min(self.rows);
        self.add_bias(panels, rows(blocks.start)..rows(blocks.end));
    }

    fn block_rows(&self, block: usize) -> usize {
        self.tiles.rows().min(self.rows - block * self.tiles.rows())
    }

    fn tile_or_edge(&self, panel: usize, block: usize, steps: Range<usize>) {
        let rows = self.block_rows(block);
        let tile = self.tiles.single[rows - 1];
        let columns = self.w.rows.min((panel + 1) * PANEL) - panel * PANEL;
        if columns == PANEL {
            return self.tile(tile, panel, block, steps);
        }
        // The last panel's padding has no place in `out`.
        let mut edge = [0.0; PANEL * PANEL];
        let resume = steps.start > 0;
        let first = block * self.tiles.rows();
        let range = |row: usize| {
            let start = (first + row) * self.w.rows + panel * PANEL;
            start..start + columns
        };
        if resume {
            for row in 0..rows {
                // SAFETY: this thread alone works on this panel and block.
                let part = unsafe { self.out.slice(range(row)) };
                edge[row * PANEL..row * PANEL + columns].copy_from_slice(part);
            }
        }
        self.call(tile, panel, block, steps, edge.as_mut_ptr(), PANEL);
        for row in 0..rows {
            // SAFETY: as above.
            let part = unsafe { self.out.slice(range(row)) };
            part.copy_from_slice(&edge[row * PANEL..row * PANEL + columns]);
        }
    }

    fn tile(&self, tile: TileFn, panel: usize, block: usize, steps: Range<usize>) {
        let first = block * self.tiles.rows();
        // SAFETY: the tile's first element lies inside `out`.
        let c = unsafe { self.out.as_ptr().add(first * self.w.rows + panel * PANEL) };
        self.call(tile, panel, block, steps, c, self.w.rows);
    }

    fn call(
        &self,
        tile: TileFn,
        panel: usize,
        block: usize,
        steps: Range<usize>,
        c: *mut f32,
        ldc: usize,
    ) {
        let (all, rows) = (self.w.steps(), self.block_rows(block));
        let (input, element) = (self.tiles.input, self.w.element);
        let first = block * self.tiles.rows() * input.len(self.w.cols);
        let a = &self.a[first + steps.start * input.step_words() * rows..];
        let b = &self.w.data[(panel * all + steps.start) * element.step_words()..];
        let work = Tile {
            a: a.as_ptr(),
            b: b.as_ptr(),
            panel_stride: all * element.step_words(),
            steps: steps.len(),
            c,
            ldc,
            resume: steps.start > 0,
        };
        // SAFETY: `tile` was compiled for an instruction set this machine runs
        // and for `rows` rows; the slices above begin where the block's steps
        // and the panel's steps do and reach past the last of them; `c` has
        // room for the rows at `ldc`, and no other thread touches it.
        unsafe { tile(&work) };
    }

    fn add_bias(&self, panels: Range<usize>, rows: Range<usize>) {
        let Some(bias) = self.bias else { return };
        let columns = panels.start * PANEL..self.w.rows.min(panels.end * PANEL);
        if columns.is_empty() {
            return;
        }
        for row in rows {
            let start = row * self.w.rows;
            // SAFETY: this thread alone works on these panels and rows.
            let out = unsafe { self.out.slice(start + columns.start..start + columns.end) };
            for (out, bias) in out.iter_mut().zip(&bias[columns.clone()]) {
                *out += bias;
            }
        }
    }
}
