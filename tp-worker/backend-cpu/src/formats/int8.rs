//! Panels of 8-bit weights, laid out as `gemm/quantized/int8.rs` reads them.

use lockstep_backend::HostMatrix;

use super::Format;
use super::step::{Group, for_groups};
use crate::gemm::{self, INT8_WORDS, INTEGER_GROUPS, InputGroups, PANEL, Tiles, Widening};
use crate::isa::Isa;
use crate::multiversion::multiversion;
use crate::number::{bf16_bits, bf16_value};
use crate::quantize::{GROUP, GROUP_WORDS, ROUND, SMALLEST, magnitude};

/// Words of a step's weights; its scales follow.
const WEIGHTS: usize = GROUP_WORDS * PANEL;

/// Groups of 8-bit integers, each with its scale.
pub(super) struct Int8;

impl Format for Int8 {
    fn name(&self) -> &'static str {
        "int8"
    }

    fn title(&self) -> Option<&'static str> {
        Some("int8")
    }

    fn instructions(&self, isa: Isa) -> &'static str {
        gemm::describe_quantized(isa)
    }

    fn steps(&self, k: usize) -> usize {
        k.div_ceil(GROUP)
    }

    fn step_words(&self) -> usize {
        INT8_WORDS
    }

    fn pack_panel(&self, isa: Isa, matrix: &HostMatrix<'_>, panel: usize, out: &mut [u32]) {
        for_groups(matrix, panel, INT8_WORDS, out, |group, out| {
            quantize(isa, group, out);
        });
    }

    fn read_row(&self, panel: &[u32], lane: usize, out: &mut [f32]) {
        let steps = panel.chunks_exact(INT8_WORDS);
        for (values, step) in out.chunks_mut(GROUP).zip(steps) {
            let pair = step[WEIGHTS + lane % 16];
            let scale = bf16_value((pair >> (lane / 16 * 16)) as u16);
            for (i, value) in values.iter_mut().enumerate() {
                let stored = step[i / 4 * PANEL + lane].to_le_bytes()[i % 4];
                *value = f32::from(i16::from(stored) - 128) * scale;
            }
        }
    }

    fn tiles(&self, isa: Isa, rows: usize) -> &'static Tiles {
        gemm::int8(isa, rows)
    }

    fn widening(&self, _: Isa) -> Option<&Widening> {
        None
    }

    fn groups(&self) -> &'static InputGroups {
        &INTEGER_GROUPS
    }
}

multiversion! {
    /// Rounds a group of each column. The scale of a column is its largest magnitude over
    /// 127, rounded to bf16. Integers are the nearest to `weight / scale`, ties to even. A
    /// column with an infinity or a NaN gets a NaN scale; a column below 2⁻¹⁰⁰ is zero.
    fn quantize(group: &Group, out: &mut [u32]) {
        let mut largest = [0u32; PANEL];
        for columns in group {
            for lane in 0..PANEL {
                largest[lane] = largest[lane].max(magnitude(columns[lane]));
            }
        }
        let mut scales = [0u32; PANEL];
        let mut inverses = [0.0f32; PANEL];
        for lane in 0..PANEL {
            let largest = f32::from_bits(largest[lane]);
            if !largest.is_finite() {
                scales[lane] = bf16_bits(f32::NAN);
            } else if largest >= SMALLEST {
                scales[lane] = bf16_bits(largest / 127.0);
                inverses[lane] = 1.0 / bf16_value(scales[lane] as u16);
            }
        }
        let (weights, pairs) = out.split_at_mut(WEIGHTS);
        for (words, four) in weights.as_chunks_mut::<PANEL>().0.iter_mut().zip(group.as_chunks::<4>().0) {
            for lane in 0..PANEL {
                let byte = |i: usize| (four[i][lane] * inverses[lane] + ROUND).to_bits() & 0xff;
                words[lane] = (byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24) ^ 0x8080_8080;
            }
        }
        for (lane, pair) in pairs.iter_mut().enumerate() {
            *pair = scales[lane] | scales[lane + 16] << 16;
        }
    }
}
