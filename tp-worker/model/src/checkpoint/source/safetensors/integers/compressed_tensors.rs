//! Modules as the compressed-tensors library writes them, in its formats pack-quantized and
//! int-quantized.

use lockstep_backend::{Direction, HostIntegers, PackedIntegers, Packing, WordOrder};

use super::{Module, Words};
use crate::{
    ModelError,
    checkpoint::source::{Safetensors, Source as _},
};

/// Names of the tensors of a module of words, and of scales and zero points of inputs and caches,
/// which are not used.
const PACKED: [&str; 12] = [
    "weight_packed",
    "weight_scale",
    "weight_shape",
    ZEROS,
    "weight_g_idx",
    "bias",
    "input_scale",
    "input_zero_point",
    "k_scale",
    "v_scale",
    "q_scale",
    "output_scale",
];
/// Names of the tensors of a module of bytes, likewise.
const BYTES: [&str; 11] = [
    "weight",
    "weight_scale",
    ZEROS,
    "weight_g_idx",
    "bias",
    "input_scale",
    "input_zero_point",
    "k_scale",
    "v_scale",
    "q_scale",
    "output_scale",
];
const ZEROS: &str = "weight_zero_point";

impl Safetensors {
    /// Finds a module: `weight_packed [outputs, inputs / per word]` or bytes `weight [outputs,
    /// inputs]`, `weight_scale` of all outputs, of each, or of groups, and maybe
    /// `weight_zero_point [outputs / per word, groups]` and `weight_g_idx [inputs]`.
    ///
    /// # Errors
    /// The errors of [`Self::integer_matrix`].
    pub(super) fn compressed_tensors(
        &self,
        module: &Module<'_>,
    ) -> Result<HostIntegers<'_>, ModelError> {
        let (rows, width) = (module.rows, module.width);
        let (codes, packed) = (
            module.tensor("weight_packed"),
            self.contains(&module.tensor("weight_packed")),
        );
        let known: &[&str] = if packed { &PACKED } else { &BYTES };
        self.check_beside(&module.tensor("weight"), known)?;
        let codes = match packed {
            true => {
                self.check_shape(module)?;
                let words = self.shape(&codes).last().copied().unwrap_or(0);
                let bits = module.bits(words).unwrap_or(4);
                let shape = [rows, (width * usize::from(bits)).div_ceil(32)];
                self.packed(
                    &codes,
                    shape,
                    words_of(Direction::Inputs, WordOrder::Rising, bits),
                )?
            }
            false => {
                let words = words_of(Direction::Inputs, WordOrder::Byte, 8);
                self.packed(&module.tensor("weight"), [rows, width], words)?
            }
        };
        let scales = module.tensor("weight_scale");
        let (shape, groups) = match *self.shape(&scales) {
            [] | [1] => (self.shape(&scales).to_vec(), 1),
            [_] => (vec![rows], 1),
            [.., groups] => (vec![rows, groups], groups),
        };
        let inputs = self.input_groups(module, &scales, groups, "weight_g_idx")?;
        Ok(HostIntegers {
            outputs: rows,
            step: 1,
            inputs: width,
            zeros: self.zero_points(module, &codes, groups)?,
            codes,
            scales: self.group_scales(&scales, &shape, groups, Direction::Outputs)?,
            groups: inputs,
            turned: false,
        })
    }

    /// Finds the zero points of a module whose integers are `codes`.
    fn zero_points(
        &self,
        module: &Module<'_>,
        codes: &PackedIntegers<'_>,
        groups: usize,
    ) -> Result<Option<PackedIntegers<'_>>, ModelError> {
        let name = module.tensor(ZEROS);
        match (self.contains(&name), module.known.zeros.as_slice()) {
            (false, [true]) => {}
            (false, _) => return Ok(None),
            (true, [false]) => {
                let reason = "has zero points, though the quantization's configuration says \
                              `symmetric`";
                return Err(self.misfit(&name, reason.to_owned()));
            }
            (true, _) => {}
        }
        let (order, bits) = (codes.packing.order, codes.bits);
        let words = words_of(Direction::Outputs, order, bits);
        let high = module.rows.div_ceil(codes.per_word());
        self.packed(&name, [high, groups], words).map(Some)
    }

    /// Checks the sizes that a module says it has.
    fn check_shape(&self, module: &Module<'_>) -> Result<(), ModelError> {
        let name = module.tensor("weight_shape");
        if !self.contains(&name) {
            return Ok(());
        }
        let (stored, expected) = (self.integers(&name, 2)?, [module.rows, module.width]);
        let equal = stored
            .iter()
            .zip(expected)
            .all(|(own, size)| usize::try_from(*own) == Ok(size));
        match equal {
            true => Ok(()),
            false => {
                let reason = format!("says {stored:?}, config.json implies {expected:?}");
                Err(self.misfit(&name, reason))
            }
        }
    }
}

/// Integers in rows of outputs. Half of the range is added to them, or is to be added.
fn words_of(words: Direction, order: WordOrder, bits: u8) -> Words {
    Words {
        packing: Packing {
            rows: Direction::Outputs,
            words,
            order,
        },
        bits,
        added: if order == WordOrder::Byte { 128 } else { 0 },
    }
}
