//! Modules as AutoAWQ writes them in its version "gemm", and AutoRound.

use lockstep_backend::{Direction, HostIntegers, Packing, WordOrder};

use super::{Module, Words};
use crate::{ModelError, checkpoint::source::Safetensors};

/// Names of the tensors of a module.
const BESIDE: [&str; 4] = ["qweight", "qzeros", "scales", "bias"];
/// Outputs of a word.
const PER_WORD: usize = 8;

impl Safetensors {
    /// Finds a module: `qweight [inputs, outputs / 8]`, `scales [groups, outputs]` and `qzeros
    /// [groups, outputs / 8]`.
    ///
    /// # Errors
    /// The errors of [`Self::integer_matrix`].
    pub(super) fn awq(&self, module: &Module<'_>) -> Result<HostIntegers<'_>, ModelError> {
        self.check_beside(&module.tensor("weight"), &BESIDE)?;
        let (rows, width) = (module.rows, module.width);
        if !rows.is_multiple_of(PER_WORD) {
            let reason = format!("has {rows} outputs, which fill no words of {PER_WORD}");
            return Err(self.misfit(&module.tensor("qweight"), reason));
        }
        let words = Words {
            packing: Packing {
                rows: Direction::Inputs,
                words: Direction::Outputs,
                order: WordOrder::EvenFirst,
            },
            bits: 4,
            added: 0,
        };
        let scales = module.tensor("scales");
        let groups = self.shape(&scales).first().copied().unwrap_or(0);
        let packed = rows / PER_WORD;
        Ok(HostIntegers {
            outputs: rows,
            step: 1,
            inputs: width,
            codes: self.packed(&module.tensor("qweight"), [width, packed], words)?,
            scales: self.group_scales(&scales, &[groups, rows], groups, Direction::Inputs)?,
            zeros: Some(self.packed(&module.tensor("qzeros"), [groups, packed], words)?),
            groups: self.input_groups(module, &scales, groups, "g_idx")?,
            turned: false,
        })
    }
}
