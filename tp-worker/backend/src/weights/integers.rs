//! Integers of 4 and 8 bits in memory, with scales and zero points for groups of inputs. Their
//! words, and their scales, are files of this module.

mod groups;
mod layout;
mod scales;
mod words;

use std::ops::Range;
use std::slice::from_ref;

use super::HostMatrix;
use super::form::{HostBlock, HostForm};

pub use groups::InputGroups;
pub use scales::GroupScales;
pub use words::{Direction, PackedIntegers, Packing, WordOrder};

/// Integers `[rows, cols]` in host memory. A value is the distance of an integer from the zero
/// point of its group, times the group's scale, rounded to f32.
#[derive(Debug, Clone)]
pub struct HostIntegers<'a> {
    /// Number of outputs.
    pub outputs: usize,
    /// Rows of the tensors from one output to the next.
    pub step: usize,
    /// Number of inputs.
    pub inputs: usize,
    /// The integers.
    pub codes: PackedIntegers<'a>,
    /// Scales of groups of inputs.
    pub scales: GroupScales<'a>,
    /// Zero points of groups of inputs; `None` if all are half of the range.
    pub zeros: Option<PackedIntegers<'a>>,
    /// Groups of inputs.
    pub groups: InputGroups,
    /// True if rows are inputs: key matrices of latent attention are read so.
    pub turned: bool,
}

/// Integers that are decoded at a time.
const PIECE: usize = 128;

impl HostIntegers<'_> {
    /// Returns the part with every `step`-th of the outputs `outputs`, and the inputs `inputs`.
    #[must_use]
    pub fn part(&self, outputs: &Range<usize>, step: usize, inputs: &Range<usize>) -> Self {
        let count = outputs.len().div_ceil(step);
        // Up to the last output that is taken.
        let end = outputs.start + count.saturating_sub(1) * step + count.min(1);
        let outputs = outputs.start..end;
        let (groups, window) = self.groups.part(inputs);
        Self {
            outputs: count,
            step,
            inputs: inputs.len(),
            codes: self.codes.part(&outputs, inputs),
            scales: self.scales.part(&outputs, &window),
            zeros: self
                .zeros
                .as_ref()
                .map(|zeros| zeros.part(&outputs, &window)),
            groups,
            turned: self.turned,
        }
    }

    /// Returns scale and zero point of a group of an output; `None` if files do not hold them.
    fn group(&self, output: usize, group: usize) -> Option<(f32, i32)> {
        let scale = self.scales.at(output * self.step, group)?;
        let mut zero = [self.half()];
        if let Some(zeros) = &self.zeros
            && !zeros.read(output * self.step, group, &mut zero)
        {
            return None;
        }
        Some((scale, i32::from(zero[0])))
    }

    /// Returns half of the range of integers.
    fn half(&self) -> u8 {
        1 << (self.codes.bits - 1)
    }

    /// Writes the values of output `output`, from input `from` on, to `values`.
    fn read_output(&self, output: usize, from: usize, values: &mut [f32]) {
        let mut codes = [0; PIECE];
        let mut at = 0;
        while at < values.len() {
            let (group, run) = self.groups.run(from + at);
            let count = run.min(values.len() - at).min(PIECE);
            let Some((scale, zero)) = self.group(output, group) else {
                return;
            };
            let codes = &mut codes[..count];
            if !self.codes.read(output * self.step, from + at, codes) {
                return;
            }
            for (value, code) in values[at..].iter_mut().zip(&*codes) {
                *value = (i32::from(*code) - zero) as f32 * scale;
            }
            at += count;
        }
    }

    /// Returns the name of the tensor of scales if one of them is no finite number.
    pub(super) fn wrong_tensor(&self) -> Option<&str> {
        let most = f32::from(u8::MAX >> (8 - self.codes.bits));
        self.scales.is_wrong(most).then_some(&self.scales.tensor)
    }
}

impl<'a> HostForm<'a> for HostIntegers<'a> {
    fn rows(&self) -> usize {
        if self.turned {
            self.inputs
        } else {
            self.outputs
        }
    }

    fn cols(&self) -> usize {
        if self.turned {
            self.outputs
        } else {
            self.inputs
        }
    }

    /// Returns the bytes of a row of memory.
    fn row_bytes(&self) -> usize {
        self.codes.width
    }

    /// Returns the rows of memory.
    fn blocks(&self) -> &[HostBlock<'a>] {
        from_ref(&self.codes.memory)
    }

    fn parts(&self) -> Vec<(&[HostBlock<'a>], usize)> {
        let codes = (from_ref(&self.codes.memory), self.codes.width);
        let scales = (from_ref(&self.scales.memory), self.scales.width);
        let zeros = self.zeros.iter();
        let zeros = zeros.map(|zeros| (from_ref(&zeros.memory), zeros.width));
        [codes, scales].into_iter().chain(zeros).collect()
    }

    fn with_rows<'b>(&self, bytes: &'b [u8]) -> HostMatrix<'b> {
        let (codes, rest) = bytes.split_at(self.codes.memory.rows * self.codes.width);
        let (scales, zeros) = rest.split_at(self.scales.memory.rows * self.scales.width);
        HostMatrix::Integers(HostIntegers {
            outputs: self.outputs,
            step: self.step,
            inputs: self.inputs,
            codes: self.codes.moved(codes),
            scales: self.scales.moved(scales),
            zeros: self.zeros.as_ref().map(|packed| packed.moved(zeros)),
            groups: self.groups.clone(),
            turned: self.turned,
        })
    }

    fn read(&self, row: usize, from: usize, values: &mut [f32]) {
        if !self.turned {
            return self.read_output(row, from, values);
        }
        for (output, value) in (from..).zip(values) {
            self.read_output(output, row, std::slice::from_mut(value));
        }
    }
}

#[cfg(test)]
mod tests;
