//! Panels of 4-bit floats, laid out as `gemm/mxfp4.rs` reads them.

use lockstep_backend::{E2m1, E8m0, HostMatrix, Mxfp4Group};
use lockstep_types::Dtype;

use super::Format;
use crate::gemm::PANEL;
use crate::gemm::{
    Element, FLOAT_GROUPS, InputGroups, MXFP4_GROUP, MXFP4_WORDS, Tiles, Widening, mxfp4,
    mxfp4_places, mxfp4_widening,
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
                for lane in (0..lanes).filter(|_| from < cols) {
                    let group = Mxfp4Group::of(matrix, panel * PANEL + lane, from);
                    let places = mxfp4_places(part, lane);
                    bytes[places.exponent] = group.exponent;
                    for (input, code) in group.codes.iter().enumerate() {
                        let (byte, shift) = places.code(input);
                        bytes[byte] |= code << shift;
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

    fn widening(&self, isa: Isa) -> Option<&Widening> {
        Some(mxfp4_widening(isa, self.inputs))
    }

    fn groups(&self) -> &'static InputGroups {
        &FLOAT_GROUPS
    }
}
