//! Panels of 4-bit floats, laid out as `gemm/mxfp4.rs` reads them.

use lockstep_backend::{E2m1, E8m0, HostMatrix, HostMxfp4};
use lockstep_types::Dtype;

use super::Format;
use crate::gemm::PANEL;
use crate::gemm::{
    Element, FLOAT_GROUPS, InputGroups, MXFP4_GROUP, MXFP4_WORDS, Tiles, WIDEN_MXFP4, Widening,
    mxfp4, mxfp4_places,
};
use crate::isa::Isa;
use crate::quantize::GROUP;

/// Codes of 4-bit floats, and exponents of the columns.
struct Mxfp4 {
    /// Type that products round their inputs to.
    inputs: Element,
}

/// Returns the format for products that compute in `dtype`.
pub(super) fn of(dtype: Dtype) -> &'static dyn Format {
    match dtype {
        Dtype::Float32 => &Mxfp4 {
            inputs: Element::F32,
        },
        Dtype::Bfloat16 => &Mxfp4 {
            inputs: Element::Bf16,
        },
    }
}

/// A group of a column: the codes of its inputs, and the exponent.
type Group = ([u8; MXFP4_GROUP], u8);

impl Format for Mxfp4 {
    fn name(&self) -> &'static str {
        "mxfp4"
    }

    fn title(&self) -> Option<&'static str> {
        Some("mxfp4")
    }

    fn instructions(&self, isa: Isa) -> &'static str {
        isa.vectors().name()
    }

    fn steps(&self, k: usize) -> usize {
        k.div_ceil(GROUP)
    }

    fn step_words(&self) -> usize {
        MXFP4_WORDS
    }

    fn pack_panel(&self, _: Isa, matrix: &HostMatrix<'_>, panel: usize, out: &mut [u32]) {
        let cols = matrix.cols();
        let lanes = PANEL.min(matrix.rows() - panel * PANEL);
        for (step, out) in out.chunks_exact_mut(MXFP4_WORDS).enumerate() {
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(out);
            for part in 0..GROUP / MXFP4_GROUP {
                let from = step * GROUP + part * MXFP4_GROUP;
                let count = MXFP4_GROUP.min(cols.saturating_sub(from));
                for lane in (0..lanes).filter(|_| count > 0) {
                    let group = match matrix {
                        HostMatrix::Mxfp4(stored) if stored.skipped == 0 => {
                            copied(stored, panel * PANEL + lane, from, count)
                        }
                        other => round(other, panel * PANEL + lane, from, count),
                    };
                    let (codes, exponent) = group;
                    let places = mxfp4_places(part, lane);
                    bytes[places.exponent] = exponent;
                    for (input, code) in codes.iter().enumerate() {
                        let (byte, shift) = places.code(input);
                        bytes[byte] |= (code & 15) << shift;
                    }
                }
            }
        }
    }

    fn read_row(&self, panel: &[u32], lane: usize, out: &mut [f32]) {
        let steps = panel.chunks_exact(MXFP4_WORDS);
        for (values, step) in out.chunks_mut(GROUP).zip(steps) {
            let bytes: &[u8] = bytemuck::cast_slice(step);
            for (part, values) in values.chunks_mut(MXFP4_GROUP).enumerate() {
                let places = mxfp4_places(part, lane);
                let power = E8m0(bytes[places.exponent]).value();
                for (input, value) in values.iter_mut().enumerate() {
                    let (byte, shift) = places.code(input);
                    *value = E2m1(bytes[byte] >> shift).value() * power;
                }
            }
        }
    }

    fn tiles(&self, isa: Isa, _: usize) -> &'static Tiles {
        mxfp4(isa, self.inputs)
    }

    fn widening(&self) -> Option<&Widening> {
        Some(&WIDEN_MXFP4)
    }

    fn groups(&self) -> &'static InputGroups {
        &FLOAT_GROUPS
    }
}

/// Returns a group as a checkpoint has it. An exponent that is no number has codes that make all
/// of its values none: zeros, which kernels multiply with infinity.
fn copied(stored: &HostMxfp4<'_>, row: usize, from: usize, count: usize) -> Group {
    let (mut codes, mut exponent) = ([0; MXFP4_GROUP], 0);
    if let Some((bytes, exponents)) = stored.row(row) {
        exponent = exponents[from / MXFP4_GROUP];
        let pairs = &bytes[from / 2..][..count.div_ceil(2)];
        for (codes, pair) in codes.chunks_exact_mut(2).zip(pairs) {
            (codes[0], codes[1]) = (pair & 15, pair >> 4);
        }
        codes[count..].fill(0);
        if E8m0(exponent).value().is_nan() {
            codes.fill(0);
        }
    }
    (codes, exponent)
}

/// Rounds a group of a matrix in another form. The exponent brings the largest magnitude just
/// below the largest number, as the format's specification suggests.
fn round(matrix: &HostMatrix<'_>, row: usize, from: usize, count: usize) -> Group {
    let mut values = [0.0f32; MXFP4_GROUP];
    matrix.form().read(row, from, &mut values[..count]);
    if values.iter().any(|value| !value.is_finite()) {
        return ([0; MXFP4_GROUP], u8::MAX);
    }
    let largest = values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    // The exponent of the largest number is 2.
    let exponent = (largest.to_bits() >> 23).saturating_sub(2) as u8;
    let power = E8m0(exponent).value();
    (values.map(|value| E2m1::nearest(value / power).0), exponent)
}
