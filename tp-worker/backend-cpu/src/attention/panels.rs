//! A block of keys and values as panels of the matrix kernels.
//!
//! Keys are turned around so that positions lie in lanes; values lie that way in the cache
//! already. Codes of an int8 cache are whole numbers, which f32 and bf16 hold exactly. Their
//! scales are applied to scores and weights instead.

use lockstep_backend::BackendError;

use super::cache::{CpuKvCache, Data, MAX_HEAD_DIM};
use super::cells::{BLOCK, Cells};
use super::transpose::{LANES, transpose};
use crate::gemm::{Element, PANEL};
use crate::isa::Isa;
use crate::memory::{Buffer, grown};
use crate::multiversion::multiversion;
use crate::number::bf16_value;

/// Keys and values of a block, packed for tiles of some element.
pub(crate) struct Panels {
    /// `[2][steps of head_dim][32 positions]`.
    pub keys: Buffer<u32>,
    /// `[⌈head_dim / 32⌉][steps of 64 positions][32 columns]`.
    pub values: Buffer<u32>,
    /// Factors of each position's scores, and of its weights.
    pub key_scales: [f32; BLOCK],
    pub value_scales: [f32; BLOCK],
    /// Keys turned around, before they are widened: `[2][head_dim][32 positions]`.
    turned: Buffer<u32>,
}

impl Panels {
    pub(crate) fn new() -> Self {
        Self {
            keys: Buffer::empty(),
            values: Buffer::empty(),
            key_scales: [1.0; BLOCK],
            value_scales: [1.0; BLOCK],
            turned: Buffer::empty(),
        }
    }

    /// Bytes that these buffers have after [`Self::grow`].
    pub(crate) fn bytes(head_dim: usize) -> usize {
        let keys = 2 * grown(BLOCK * head_dim);
        4 * (keys + grown(BLOCK * head_dim.next_multiple_of(PANEL)))
    }

    /// Bytes that these buffers have now.
    pub(crate) fn held(&self) -> usize {
        self.keys.bytes() + self.turned.bytes() + self.values.bytes()
    }

    pub(crate) fn grow(&mut self, head_dim: usize) -> Result<(), BackendError> {
        const WHAT: &str = "packed keys and values";
        self.keys.grow(BLOCK * head_dim, WHAT)?;
        self.turned.grow(BLOCK * head_dim, WHAT)?;
        self.values
            .grow(BLOCK * head_dim.next_multiple_of(PANEL), WHAT)
    }

    /// Loads the factors of the scores and weights of `cells`. The factors of scores include
    /// `scale`.
    pub(crate) fn load_scales(&mut self, cache: &CpuKvCache, cells: &Cells, scale: f32) {
        let Data::Int8(_, scales) = &cache.data else {
            return self.key_scales.fill(scale);
        };
        let after = cache.values_after();
        // Weights past the block are zero, but stale factors may not be finite.
        self.value_scales[cells.len()..].fill(0.0);
        let keys = self.key_scales.chunks_mut(LANES);
        let slots = keys.zip(self.value_scales.chunks_mut(LANES));
        for ((keys, values), rows) in slots.zip(cells.rows().chunks(LANES)) {
            let (first, count) = (rows[0], rows.len());
            if rows.iter().zip(first..).all(|(&row, next)| row == next) {
                // Rows of one page, which follow each other.
                let from = &scales[first..first + count];
                keys.iter_mut()
                    .zip(from)
                    .for_each(|(key, from)| *key = from * scale);
                values[..count].copy_from_slice(&scales[first + after..first + after + count]);
            } else {
                for ((key, value), &row) in keys.iter_mut().zip(values).zip(rows) {
                    (*key, *value) = (scales[row] * scale, scales[row + after]);
                }
            }
        }
    }

    /// Packs the keys of `cells`; columns past them keep their old content.
    pub(crate) fn pack_keys(
        &mut self,
        isa: Isa,
        element: Element,
        cache: &CpuKvCache,
        cells: &Cells,
    ) {
        let head_dim = cache.shape.head_dim;
        let rows = cells.rows();
        match (&cache.data, element) {
            (Data::Bf16(data), Element::Bf16) => {
                turn(
                    isa,
                    bytemuck::cast_slice(data),
                    head_dim / 2,
                    rows,
                    &mut self.keys,
                );
            }
            (Data::F32(data), _) => {
                turn(
                    isa,
                    bytemuck::cast_slice(data),
                    head_dim,
                    rows,
                    &mut self.keys,
                );
            }
            (Data::Bf16(data), Element::F32) => {
                let len = turn(
                    isa,
                    bytemuck::cast_slice(data),
                    head_dim / 2,
                    rows,
                    &mut self.turned,
                );
                widen_pairs(isa, &self.turned[..len], &mut self.keys);
            }
            (Data::Int8(codes, _), _) => {
                let len = turn(
                    isa,
                    bytemuck::cast_slice(codes),
                    head_dim / 4,
                    rows,
                    &mut self.turned,
                );
                let turned = &self.turned[..len];
                match element {
                    Element::Bf16 => codes_to_pairs(isa, turned, &mut self.keys),
                    Element::F32 => codes_to_floats(isa, turned, &mut self.keys),
                }
            }
        }
    }

    /// Packs the values of `cells`, followed by zeros up to a whole step.
    pub(crate) fn pack_values(
        &mut self,
        isa: Isa,
        element: Element,
        cache: &CpuKvCache,
        cells: &Cells,
    ) {
        let (head_dim, after) = (cache.shape.head_dim, cache.values_after());
        let (rows, out) = (cells.rows(), &mut self.values[..]);
        match (&cache.data, element) {
            (Data::Bf16(data), Element::Bf16) => {
                pair_values(isa, data, rows, after, head_dim, out);
            }
            (Data::F32(data), _) => copy_values(isa, data, rows, after, head_dim, out),
            (Data::Bf16(data), Element::F32) => {
                widen_values(isa, data, rows, after, head_dim, out);
            }
            (Data::Int8(codes, _), _) => match element {
                Element::Bf16 => pair_codes(isa, codes, rows, after, head_dim, out),
                Element::F32 => widen_codes(isa, codes, rows, after, head_dim, out),
            },
        }
    }
}

/// Turns rows of `steps` elements of `data` into panels `[steps][32 rows]`;
/// returns the length of the panels.
fn turn(isa: Isa, data: &[u32], steps: usize, rows: &[usize], out: &mut [u32]) -> usize {
    let panel_len = steps * PANEL;
    let len = rows.len().div_ceil(PANEL) * panel_len;
    let out = &mut out[..len];
    for (group, rows) in rows.chunks(LANES).enumerate() {
        let mut from = [data.as_ptr(); LANES];
        for (from, &row) in from.iter_mut().zip(rows) {
            *from = data[row * steps..(row + 1) * steps].as_ptr();
        }
        let first = group * LANES / PANEL * panel_len + group * LANES % PANEL;
        let to = out[first..].as_mut_ptr();
        // SAFETY: a backend is built only for instruction sets this machine
        // runs; the rows are slices of `steps`, and half a panel begins at `to`.
        unsafe { transpose(isa, &from, rows.len(), steps, to, PANEL) };
    }
    len
}

/// The f32 of a whole number that bf16 holds, as bits.
#[inline(always)]
fn code_bits(code: i8) -> u32 {
    f32::from(code).to_bits()
}

/// A code and the next one as a pair of bf16.
#[inline(always)]
fn code_pair(low: i8, high: i8) -> u32 {
    (code_bits(low) >> 16) | (code_bits(high) & 0xffff_0000)
}

multiversion! {
    /// Widens steps of bf16 pairs to twice as many steps of f32.
    fn widen_pairs(pairs: &[u32], out: &mut [u32]) {
        let steps = pairs.as_chunks::<PANEL>().0.iter();
        for (pairs, out) in steps.zip(out.as_chunks_mut::<{ 2 * PANEL }>().0) {
            for lane in 0..PANEL {
                out[lane] = pairs[lane] << 16;
                out[PANEL + lane] = pairs[lane] & 0xffff_0000;
            }
        }
    }
}

multiversion! {
    /// Widens steps of four codes to twice as many steps of bf16 pairs.
    fn codes_to_pairs(codes: &[u32], out: &mut [u32]) {
        let steps = codes.as_chunks::<PANEL>().0.iter();
        for (codes, out) in steps.zip(out.as_chunks_mut::<{ 2 * PANEL }>().0) {
            for lane in 0..PANEL {
                let code = |i: u32| (codes[lane] >> (8 * i)) as i8;
                out[lane] = code_pair(code(0), code(1));
                out[PANEL + lane] = code_pair(code(2), code(3));
            }
        }
    }
}

multiversion! {
    /// Widens steps of four codes to four times as many steps of f32.
    fn codes_to_floats(codes: &[u32], out: &mut [u32]) {
        let steps = codes.as_chunks::<PANEL>().0.iter();
        for (codes, out) in steps.zip(out.as_chunks_mut::<{ 4 * PANEL }>().0) {
            for lane in 0..PANEL {
                for i in 0..4 {
                    out[i * PANEL + lane] = code_bits((codes[lane] >> (8 * i)) as i8);
                }
            }
        }
    }
}

/// Calls `step(columns of one row, columns of the next, out)` for each part of a panel and
/// each pair of rows. An odd last row is paired with zeros.
#[inline(always)]
fn pairs_of_rows<T: Copy + Default>(
    data: &[T],
    rows: &[usize],
    after: usize,
    head_dim: usize,
    out: &mut [u32],
    pair: impl Fn(T, T) -> u32,
) {
    let panel_len = Element::Bf16.steps(BLOCK) * PANEL;
    let zeros = [T::default(); MAX_HEAD_DIM];
    let row = |row: usize| &data[(row + after) * head_dim..(row + after + 1) * head_dim];
    for (step, rows) in rows.chunks(2).enumerate() {
        let first = row(rows[0]);
        let second = rows.get(1).map_or(&zeros[..head_dim], |&next| row(next));
        let (first, first_rest) = first.as_chunks::<PANEL>();
        let (second, second_rest) = second.as_chunks::<PANEL>();
        for (panel, (first, second)) in first.iter().zip(second).enumerate() {
            let out = &mut out[panel * panel_len + step * PANEL..][..PANEL];
            for lane in 0..PANEL {
                out[lane] = pair(first[lane], second[lane]);
            }
        }
        if !first_rest.is_empty() {
            let out = &mut out[first.len() * panel_len + step * PANEL..];
            let columns = first_rest.iter().zip(second_rest);
            for (out, (low, high)) in out.iter_mut().zip(columns) {
                *out = pair(*low, *high);
            }
        }
    }
}

/// Calls `step` like [`pairs_of_rows`], with one row to a step.
#[inline(always)]
fn single_rows<T: Copy>(
    data: &[T],
    rows: &[usize],
    after: usize,
    head_dim: usize,
    out: &mut [u32],
    convert: impl Fn(T) -> u32,
) {
    let panel_len = Element::F32.steps(BLOCK) * PANEL;
    for (step, row) in rows.iter().enumerate() {
        let row = &data[(row + after) * head_dim..(row + after + 1) * head_dim];
        for (panel, columns) in row.chunks(PANEL).enumerate() {
            let out = &mut out[panel * panel_len + step * PANEL..];
            for (out, column) in out.iter_mut().zip(columns) {
                *out = convert(*column);
            }
        }
    }
}

multiversion! {
    /// Packs bf16 values, two positions to a step.
    fn pair_values(data: &[u16], rows: &[usize], after: usize, head_dim: usize, out: &mut [u32]) {
        pairs_of_rows(data, rows, after, head_dim, out, |low, high| {
            u32::from(low) | (u32::from(high) << 16)
        });
    }
}

multiversion! {
    /// Packs codes as bf16, two positions to a step.
    fn pair_codes(data: &[i8], rows: &[usize], after: usize, head_dim: usize, out: &mut [u32]) {
        pairs_of_rows(data, rows, after, head_dim, out, code_pair);
    }
}

multiversion! {
    /// Packs f32 values unchanged.
    fn copy_values(data: &[f32], rows: &[usize], after: usize, head_dim: usize, out: &mut [u32]) {
        single_rows(data, rows, after, head_dim, out, f32::to_bits);
    }
}

multiversion! {
    /// Packs bf16 values as f32.
    fn widen_values(data: &[u16], rows: &[usize], after: usize, head_dim: usize, out: &mut [u32]) {
        single_rows(data, rows, after, head_dim, out, |bits| bf16_value(bits).to_bits());
    }
}

multiversion! {
    /// Packs codes as f32.
    fn widen_codes(data: &[i8], rows: &[usize], after: usize, head_dim: usize, out: &mut [u32]) {
        single_rows(data, rows, after, head_dim, out, code_bits);
    }
}
