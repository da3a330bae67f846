//! Panels of f32 and bf16: a step is one f32 or two consecutive bf16 of a column.

use lockstep_backend::{CheckpointDtype, HostFloats, HostMatrix};
use lockstep_types::Dtype;

use super::Format;
use crate::gemm::{
    Element, FLOAT_GROUPS, Input, InputGroups, PANEL, Tiles, WIDEN_BF16, Widening, select,
};
use crate::isa::Isa;
use crate::multiversion::multiversion;
use crate::number::{bf16_value, pack_row};

/// Values, rounded to the type that products compute in.
struct Float(Element);

/// Returns the format for products that compute in `dtype`.
pub(super) fn of(dtype: Dtype) -> &'static dyn Format {
    match dtype {
        Dtype::Float32 => &Float(Element::F32),
        Dtype::Bfloat16 => &Float(Element::Bf16),
    }
}

impl Format for Float {
    fn name(&self) -> &'static str {
        match self.0 {
            Element::F32 => "f32",
            Element::Bf16 => "bf16",
        }
    }

    fn title(&self) -> Option<&'static str> {
        None
    }

    fn instructions(&self, isa: Isa) -> &'static str {
        isa.name()
    }

    fn steps(&self, k: usize) -> usize {
        self.0.steps(k)
    }

    fn step_words(&self) -> usize {
        self.0.step_words()
    }

    fn pack_panel(&self, isa: Isa, matrix: &HostMatrix<'_>, panel: usize, out: &mut [u32]) {
        match (self.0, matrix) {
            (Element::F32, HostMatrix::Floats(floats)) if floats.dtype == CheckpointDtype::F32 => {
                transpose_panel(isa, floats, panel, out);
            }
            (Element::Bf16, HostMatrix::Floats(floats))
                if floats.dtype == CheckpointDtype::Bf16 =>
            {
                transpose_panel(isa, floats, panel, out);
            }
            (element, matrix) => convert_panel(isa, element, matrix, panel, out),
        }
    }

    fn read_row(&self, panel: &[u32], lane: usize, out: &mut [f32]) {
        read_row(self.0, panel, lane, out);
    }

    fn tiles(&self, isa: Isa, _: usize) -> &'static Tiles {
        select(isa, self.0)
    }

    fn widening(&self, _: Isa) -> Option<&Widening> {
        match self.0 {
            Element::F32 => None,
            Element::Bf16 => Some(&WIDEN_BF16),
        }
    }

    fn groups(&self) -> &'static InputGroups {
        &FLOAT_GROUPS
    }
}

/// Input values decoded at once; even, so that bf16 pairs never straddle chunks.
const CHUNK: usize = 256;

/// Packs a panel of values in the element's own type.
fn transpose_panel(isa: Isa, floats: &HostFloats<'_>, panel: usize, out: &mut [u32]) {
    let mut sources: [&[u8]; PANEL] = [&[]; PANEL];
    for (lane, source) in sources.iter_mut().enumerate() {
        *source = floats.row(panel * PANEL + lane).unwrap_or(&[]);
    }
    transpose(isa, &sources, out);
}

/// Packs a panel of other values, chunk by chunk, so that the part of the panel being written
/// stays in cache.
fn convert_panel(
    isa: Isa,
    element: Element,
    matrix: &HostMatrix<'_>,
    panel: usize,
    out: &mut [u32],
) {
    let input = match element {
        Element::F32 => Input::F32,
        Element::Bf16 => Input::Pairs,
    };
    let (form, cols) = (matrix.form(), matrix.cols());
    let lanes = PANEL.min(form.rows() - panel * PANEL);
    let mut values = [0.0; CHUNK];
    for from in (0..cols).step_by(CHUNK) {
        let to = cols.min(from + CHUNK);
        for lane in 0..lanes {
            let values = &mut values[..to - from];
            form.read(panel * PANEL + lane, from, values);
            let out = &mut out[element.steps(from) * PANEL..];
            // The same as without tiles, so that packed weights are equal on every machine.
            pack_row(isa.vectors(), input, values, out, lane, PANEL);
        }
    }
}

/// Steps transposed at once: one cache line of each row.
const BLOCK: usize = 16;

multiversion! {
    /// Packs rows with bytes that are the panel's steps already, in little-endian words.
    /// Empty rows stay zero. An odd last bf16 is paired with 0.
    fn transpose(sources: &[&[u8]; PANEL], out: &mut [u32]) {
        for (block, out) in out.chunks_mut(BLOCK * PANEL).enumerate() {
            let mut tile = [[0u32; PANEL]; BLOCK];
            for (lane, source) in sources.iter().enumerate() {
                let source = source.get(block * BLOCK * 4..).unwrap_or(&[]);
                let (words, rest) = source.as_chunks::<4>();
                for (step, word) in tile.iter_mut().zip(words) {
                    step[lane] = u32::from_le_bytes(*word);
                }
                if let (Some(step), [low, high]) = (tile.get_mut(words.len()), rest) {
                    step[lane] = u32::from(u16::from_le_bytes([*low, *high]));
                }
            }
            let tile = tile.as_flattened();
            out.copy_from_slice(&tile[..out.len()]);
        }
    }
}

/// Copies column `lane` of `panel` to `out`.
fn read_row(element: Element, panel: &[u32], lane: usize, out: &mut [f32]) {
    let steps = panel[lane.min(panel.len())..].iter().step_by(PANEL);
    match element {
        Element::F32 => {
            for (value, step) in out.iter_mut().zip(steps) {
                *value = f32::from_bits(*step);
            }
        }
        Element::Bf16 => {
            for (pair, step) in out.chunks_mut(2).zip(steps) {
                pair[0] = bf16_value(*step as u16);
                if let Some(second) = pair.get_mut(1) {
                    *second = bf16_value((*step >> 16) as u16);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use lockstep_backend::HostBlock;

    use super::*;

    #[test]
    fn every_machine_packs_subnormal_weights_alike() {
        let row = [
            1e-39,
            -1e-39,
            f32::from_bits(0x007f_ffff),
            f32::MIN_POSITIVE,
        ];
        let matrix = HostMatrix::Floats(HostFloats {
            cols: row.len(),
            dtype: CheckpointDtype::F32,
            blocks: vec![HostBlock {
                bytes: bytemuck::cast_slice(&row),
                offset: 0,
                stride: size_of_val(&row),
                rows: 1,
            }],
        });
        let bits = row.map(|x| u32::from(bf16::from_f32(x).to_bits()));
        for isa in Isa::available() {
            let mut panel = [0; 2 * PANEL];
            Float(Element::Bf16).pack_panel(isa, &matrix, 0, &mut panel);
            let pairs = [panel[0], panel[PANEL]];
            let wanted = [bits[0] | bits[1] << 16, bits[2] | bits[3] << 16];
            assert_eq!(pairs, wanted, "{isa}");
        }
    }
}
