//! Panels of 4-bit weights, laid out as `gemm/quantized/int4.rs` reads them.

use lockstep_backend::HostMatrix;

use super::Format;
use super::step::{Group, for_groups};
use crate::gemm::{
    self, INT4_WORDS, INTEGER_GROUPS, InputGroups, PANEL, Tiles, WIDEN_INT4, Widening,
};
use crate::isa::Isa;
use crate::multiversion::multiversion;
use crate::quantize::{GROUP, GROUP_WORDS, ROUND, SMALLEST, magnitude};

/// Words of a step's weights; its scales follow.
const WEIGHTS: usize = GROUP_WORDS / 2 * PANEL;
/// Inputs that share a multiplier.
const PART: usize = 32;
const PARTS: usize = GROUP / PART;
/// The largest multiplier.
const MULTIPLIERS: f32 = 15.0;
/// Scales to try, as multiples of the scale whose largest multiple just reaches the largest
/// weight. A coarser scale trades clipped weights for finer multipliers.
const TRIES: [f32; 3] = [1.0, 1.07, 1.14];
/// Largest magnitude that is rounded: above it the squares of errors would overflow.
const LARGEST: f32 = f32::from_bits((127 + 60) << 23);
/// The scale of a column that cannot be rounded: NaN.
const NO_SCALE: u32 = 0xfff0_0000;

type Columns = [f32; PANEL];

/// Groups of 4-bit integers, each with its scale and the multipliers of the scale.
pub(super) struct Int4;

impl Format for Int4 {
    fn name(&self) -> &'static str {
        "int4"
    }

    fn title(&self) -> Option<&'static str> {
        Some("int4")
    }

    fn instructions(&self, isa: Isa) -> &'static str {
        gemm::describe_quantized(isa)
    }

    fn steps(&self, k: usize) -> usize {
        k.div_ceil(GROUP)
    }

    fn step_words(&self) -> usize {
        INT4_WORDS
    }

    fn pack_panel(&self, isa: Isa, matrix: &HostMatrix<'_>, panel: usize, out: &mut [u32]) {
        for_groups(matrix, panel, INT4_WORDS, out, |group, out| {
            quantize(isa, group, out);
        });
    }

    fn read_row(&self, panel: &[u32], lane: usize, out: &mut [f32]) {
        let steps = panel.chunks_exact(INT4_WORDS);
        for (values, step) in out.chunks_mut(GROUP).zip(steps) {
            let code = step[WEIGHTS + lane];
            for (i, value) in values.iter_mut().enumerate() {
                let byte = step[i / 8 * PANEL + lane] >> (8 * (i % 4));
                let stored = (byte >> (i % 8 / 4 * 4)) & 0xf;
                let integer = stored.cast_signed() - 8;
                *value = (integer * multiplier(code, i / PART)) as f32 * scale(code);
            }
        }
    }

    fn tiles(&self, isa: Isa, rows: usize) -> &'static Tiles {
        gemm::int4(isa, rows)
    }

    fn widening(&self, _: Isa) -> Option<&Widening> {
        Some(&WIDEN_INT4)
    }

    fn groups(&self) -> &'static InputGroups {
        &INTEGER_GROUPS
    }

    /// Counts steps as if they were widened in any case.
    fn slice_words(&self, _: Isa, _: bool) -> usize {
        WIDEN_INT4.step_words
    }
}

/// The scale of a column's group.
#[inline(always)]
fn scale(code: u32) -> f32 {
    f32::from_bits((code >> 1) & 0x7ff8_0000)
}

/// The multiplier of the column's scale in part `part`.
#[inline(always)]
fn multiplier(code: u32, part: usize) -> i32 {
    (code << (27 - 5 * part)).cast_signed() >> 27
}

/// The nearest integer, ties to even.
#[inline(always)]
fn round(x: f32) -> f32 {
    (x + ROUND) - ROUND
}

#[inline(always)]
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = if x > low { x } else { low };
    if x < high { x } else { high }
}

/// `1 / x`, or 0 for 0.
#[inline(always)]
fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// The weight of largest magnitude of each column and part, with its sign.
#[inline(always)]
fn extremes(group: &Group) -> [Columns; PARTS] {
    let mut extremes = [[0.0f32; PANEL]; PARTS];
    for (extremes, part) in extremes.iter_mut().zip(group.as_chunks::<PART>().0) {
        for columns in part {
            for lane in 0..PANEL {
                if magnitude(columns[lane]) > magnitude(extremes[lane]) {
                    extremes[lane] = columns[lane];
                }
            }
        }
    }
    extremes
}

/// The squared errors of a part that is rounded to multiples of `steps`.
#[inline(always)]
fn errors(part: &[Columns; PART], steps: &Columns) -> Columns {
    let inverses = steps.map(inverse);
    let mut errors = [0.0f32; PANEL];
    for columns in part {
        for lane in 0..PANEL {
            let integer = clamp(round(columns[lane] * inverses[lane]), -8.0, 7.0);
            let error = integer * steps[lane] - columns[lane];
            errors[lane] += error * error;
        }
    }
    errors
}

/// The best multipliers under the given scales, as codes, and the squared
/// errors that remain.
#[inline(always)]
fn multipliers(
    group: &Group,
    extremes: &[Columns; PARTS],
    scales: &Columns,
) -> ([u32; PANEL], Columns) {
    let mut codes = scales.map(|scale| scale.to_bits() << 1);
    let mut totals = [0.0f32; PANEL];
    for (index, part) in group.as_chunks::<PART>().0.iter().enumerate() {
        let (mut best, mut least) = ([0.0f32; PANEL], [f32::INFINITY; PANEL]);
        for change in [-1.0, 0.0, 1.0] {
            let (mut tried, mut steps) = ([0.0f32; PANEL], [0.0f32; PANEL]);
            for lane in 0..PANEL {
                // The extreme becomes −8, which has no positive counterpart.
                let extreme = extremes[index][lane] * -0.125;
                let nearest = round(extreme.abs() * inverse(scales[lane]));
                let size = clamp(nearest + change, 1.0, MULTIPLIERS);
                tried[lane] = if extreme < 0.0 { -size } else { size };
                steps[lane] = tried[lane] * scales[lane];
            }
            let errors = errors(part, &steps);
            for lane in 0..PANEL {
                if errors[lane] < least[lane] {
                    (least[lane], best[lane]) = (errors[lane], tried[lane]);
                }
            }
        }
        for lane in 0..PANEL {
            totals[lane] += least[lane];
            codes[lane] |= ((best[lane] + ROUND).to_bits() & 0x1f) << (5 * index);
        }
    }
    (codes, totals)
}

/// The code of each column: the one with the least error of all scales tried.
#[inline(always)]
fn best_codes(group: &Group) -> [u32; PANEL] {
    let extremes = extremes(group);
    let mut largest = [0u32; PANEL];
    for extremes in &extremes {
        for lane in 0..PANEL {
            largest[lane] = largest[lane].max(magnitude(extremes[lane]));
        }
    }
    let (mut best, mut least) = ([0u32; PANEL], [f32::INFINITY; PANEL]);
    for factor in TRIES {
        let scales = largest.map(|largest| {
            let exact = f32::from_bits(largest) * (factor / (8.0 * MULTIPLIERS));
            let bits = (exact.to_bits() + (1 << 18)) & 0x7ff8_0000;
            if f32::from_bits(largest) < SMALLEST {
                0.0
            } else {
                f32::from_bits(bits)
            }
        });
        let (codes, totals) = multipliers(group, &extremes, &scales);
        for lane in 0..PANEL {
            if totals[lane] < least[lane] {
                (least[lane], best[lane]) = (totals[lane], codes[lane]);
            }
        }
    }
    for lane in 0..PANEL {
        // Also where the largest is NaN.
        if largest[lane] > LARGEST.to_bits() {
            best[lane] = NO_SCALE;
        }
    }
    best
}

multiversion! {
    /// Rounds each part of a column to multiples −8…7 of its scale times its multiplier.
    /// Both are chosen for the least squared error among a few. A column with an infinity, a
    /// NaN or a magnitude above 2⁶⁰ gets a NaN scale; a column below 2⁻¹⁰⁰ is zero.
    fn quantize(group: &Group, out: &mut [u32]) {
        let codes = best_codes(group);
        let (weights, scales) = out.split_at_mut(WEIGHTS);
        scales.copy_from_slice(&codes);
        let mut inverses = [[0.0f32; PANEL]; PARTS];
        for (part, inverses) in inverses.iter_mut().enumerate() {
            for lane in 0..PANEL {
                inverses[lane] = inverse(multiplier(codes[lane], part) as f32 * scale(codes[lane]));
            }
        }
        let eights = group.as_chunks::<8>().0;
        for (index, words) in weights.as_chunks_mut::<PANEL>().0.iter_mut().enumerate() {
            let (eight, inverses) = (&eights[index], &inverses[index * 8 / PART]);
            for lane in 0..PANEL {
                let nibble = |i: usize| {
                    let integer = clamp(eight[i][lane] * inverses[lane], -8.0, 7.0);
                    (integer + (ROUND + 8.0)).to_bits() & 0xf
                };
                let byte = |i: usize| nibble(i) | nibble(i + 4) << 4;
                words[lane] = byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
            }
        }
    }
}
