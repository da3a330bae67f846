//! Panels of 8-bit floats, laid out as `gemm/fp8.rs` reads them.

use lockstep_backend::{E4m3, HostMatrix};
use lockstep_types::Dtype;

use super::Format;
use crate::gemm::{
    Element, FLOAT_GROUPS, FP8_CODE_SCALE, FP8_MOST_SCALES, FP8_RUN, Fp8Widenings, InputGroups,
    PANEL, Tiles, Widening, fp8, fp8_place, fp8_step_words,
};
use crate::isa::Isa;
use crate::quantize::GROUP;

/// Codes of 8-bit floats, and factors of the columns.
struct Fp8 {
    /// Type that products round their inputs to.
    inputs: Element,
    /// Factors of a column in a step, a power of two.
    scales: usize,
    widenings: Fp8Widenings,
}

/// Formats with 1, 2, 4, … factors of a column in a step, for inputs of each type.
static FORMATS: [[Fp8; 6]; 2] = [all(Element::F32), all(Element::Bf16)];

const fn all(inputs: Element) -> [Fp8; 6] {
    [
        with::<1>(inputs),
        with::<2>(inputs),
        with::<4>(inputs),
        with::<8>(inputs),
        with::<16>(inputs),
        with::<FP8_MOST_SCALES>(inputs),
    ]
}

const fn with<const SCALES: usize>(inputs: Element) -> Fp8 {
    Fp8 {
        inputs,
        scales: SCALES,
        widenings: Fp8Widenings::new::<SCALES>(),
    }
}

/// Returns the format with a factor for every `group` inputs, a power of two from 4 to 128, for
/// products that compute in `dtype`.
pub(super) fn of(dtype: Dtype, group: usize) -> &'static dyn Format {
    let [exact, rounded] = &FORMATS;
    let formats = match dtype {
        Dtype::Float32 => exact,
        Dtype::Bfloat16 => rounded,
    };
    let scales = (GROUP / group.max(1)).clamp(1, FP8_MOST_SCALES);
    &formats[scales.ilog2() as usize]
}

impl Format for Fp8 {
    fn name(&self) -> &'static str {
        const NAMES: [&str; 6] = ["fp8-128", "fp8-64", "fp8-32", "fp8-16", "fp8-8", "fp8-4"];
        NAMES[self.scales.ilog2() as usize]
    }

    fn title(&self) -> Option<&'static str> {
        Some("fp8")
    }

    fn instructions(&self, isa: Isa) -> &'static str {
        isa.vectors().name()
    }

    fn steps(&self, k: usize) -> usize {
        k.div_ceil(GROUP)
    }

    fn step_words(&self) -> usize {
        fp8_step_words(self.scales)
    }

    fn scales(&self) -> usize {
        self.scales
    }

    fn pack_panel(&self, _: Isa, matrix: &HostMatrix<'_>, panel: usize, out: &mut [u32]) {
        let (group, cols) = (GROUP / self.scales, matrix.cols());
        let lanes = PANEL.min(matrix.rows() - panel * PANEL);
        for (part, out) in out.chunks_exact_mut(part_words(group)).enumerate() {
            let from = (part * group).min(cols);
            let to = cols.min(from + group);
            let (codes, factors) = out.split_at_mut(group / FP8_RUN * PANEL);
            let codes: &mut [u8] = bytemuck::cast_slice_mut(codes);
            let mut column = [0; GROUP];
            let column = &mut column[..to - from];
            for lane in (0..lanes).filter(|_| from < to) {
                let scale = match matrix {
                    HostMatrix::Fp8(stored) => match stored.row(panel * PANEL + lane, from) {
                        Some((row, scale)) => {
                            column.copy_from_slice(&row[from..to]);
                            scale
                        }
                        None => continue,
                    },
                    other => round(other, panel * PANEL + lane, from, column),
                };
                let wrong = column.iter().any(|code| E4m3(*code).is_nan());
                let factor = if wrong {
                    f32::NAN
                } else {
                    scale * FP8_CODE_SCALE
                };
                factors[lane] = factor.to_bits();
                for (input, code) in column.iter().enumerate() {
                    codes[fp8_place(input, lane)] = *code;
                }
            }
        }
    }

    fn read_row(&self, panel: &[u32], lane: usize, out: &mut [f32]) {
        let group = GROUP / self.scales;
        let parts = panel.chunks_exact(part_words(group));
        for (values, part) in out.chunks_mut(group).zip(parts) {
            let (codes, factors) = part.split_at(group / FP8_RUN * PANEL);
            let codes: &[u8] = bytemuck::cast_slice(codes);
            let factor = f32::from_bits(factors[lane]);
            for (input, value) in values.iter_mut().enumerate() {
                let code = E4m3(codes[fp8_place(input, lane)]);
                *value = code.value() / FP8_CODE_SCALE * factor;
            }
        }
    }

    fn tiles(&self, isa: Isa, _: usize) -> &'static Tiles {
        fp8(isa, self.inputs, self.scales)
    }

    fn widening(&self, isa: Isa) -> Option<&Widening> {
        Some(self.widenings.select(isa, self.inputs))
    }

    fn groups(&self) -> &'static InputGroups {
        &FLOAT_GROUPS
    }
}

/// Words of a part of a step, with a factor for every `group` inputs.
fn part_words(group: usize) -> usize {
    (group / FP8_RUN + 1) * PANEL
}

/// Rounds values of a matrix in another form, from column `from` of row `row` on. The scale
/// makes the largest magnitude the largest number.
fn round(matrix: &HostMatrix<'_>, row: usize, from: usize, codes: &mut [u8]) -> f32 {
    let mut values = [0.0f32; GROUP];
    let values = &mut values[..codes.len()];
    matrix.form().read(row, from, values);
    let wrong = values.iter().any(|value| !value.is_finite());
    let largest = values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let scale = largest / E4m3::MOST;
    for (code, value) in codes.iter_mut().zip(values) {
        *code = match scale > 0.0 {
            true => E4m3::nearest(*value / scale).0,
            false => 0,
        };
    }
    if wrong { f32::NAN } else { scale }
}
