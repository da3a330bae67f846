//! Modules as GPTQ's tools write them: GPTQModel, AutoGPTQ, and AutoRound.

use lockstep_backend::{Direction, HostIntegers, PackedIntegers, Packing, WordOrder};

use super::{Module, Words};
use crate::{ModelError, checkpoint::source::Safetensors};

/// Names of the tensors of a module.
const BESIDE: [&str; 5] = ["qweight", "qzeros", "scales", "g_idx", "bias"];

impl Safetensors {
    /// Finds a module: `qweight [inputs / per word, outputs]`, `scales [groups, outputs]`, `qzeros
    /// [groups, outputs / per word]` and maybe `g_idx [inputs]`.
    ///
    /// # Errors
    /// The errors of [`Self::integer_matrix`].
    pub(super) fn gptq(
        &self,
        module: &Module<'_>,
        less_one: bool,
    ) -> Result<HostIntegers<'_>, ModelError> {
        self.check_beside(&module.tensor("weight"), &BESIDE)?;
        let (rows, width) = (module.rows, module.width);
        let codes = module.tensor("qweight");
        let words = self.shape(&codes).first().copied().unwrap_or(0);
        let bits = module.bits(words).unwrap_or(4);
        let words = |words, added| Words {
            packing: Packing {
                rows: Direction::Inputs,
                words,
                order: WordOrder::Rising,
            },
            bits,
            added,
        };
        let packed = |count: usize| (count * usize::from(bits)).div_ceil(32);
        let codes = self.packed(&codes, [packed(width), rows], words(Direction::Inputs, 0))?;
        let scales = module.tensor("scales");
        let groups = self.shape(&scales).first().copied().unwrap_or(0);
        let inputs = self.input_groups(module, &scales, groups, "g_idx")?;
        // A zero point of 0 that is stored less one takes one from the next integer of its word.
        // Adding to whole words gives it back.
        let one = if bits == 4 { 0x1111_1111 } else { 0x0101_0101 };
        let zeros = self.packed(
            &module.tensor("qzeros"),
            [groups, packed(rows)],
            words(Direction::Outputs, if less_one { one } else { 0 }),
        )?;
        let zeros = match module.known.zeros.contains(&true) {
            true => Some(zeros),
            false => {
                self.check_half(&module.tensor("qzeros"), &zeros, one)?;
                None
            }
        };
        Ok(HostIntegers {
            outputs: rows,
            step: 1,
            inputs: width,
            codes,
            scales: self.group_scales(&scales, &[groups, rows], groups, Direction::Inputs)?,
            zeros,
            groups: inputs,
            turned: false,
        })
    }

    /// Checks that all zero points are half of the range, as the configuration says.
    fn check_half(
        &self,
        name: &str,
        zeros: &PackedIntegers<'_>,
        one: u32,
    ) -> Result<(), ModelError> {
        let half = one << (zeros.bits - 1);
        let bytes = self.bytes(zeros.memory.bytes)?;
        let mut words = bytes.as_chunks::<4>().0.iter();
        match words.all(|word| u32::from_le_bytes(*word).wrapping_add(zeros.added) == half) {
            true => Ok(()),
            false => {
                let reason = "has other zero points than half of the range, though the \
                              quantization's configuration says that they are; set its `sym` to \
                              false, or its `checkpoint_format` to the right version";
                Err(self.misfit(name, reason.to_owned()))
            }
        }
    }
}
