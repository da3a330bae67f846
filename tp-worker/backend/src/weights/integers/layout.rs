//! Integers of a checkpoint, as devices keep them.

use lockstep_types::{FactorType, GroupFormat, IntegerForm};

use super::{HostIntegers, InputGroups, PIECE};
use crate::weights::CheckpointDtype;
use crate::weights::groups::{GroupStep, HostGroups};

impl HostIntegers<'_> {
    /// Returns the layout of these integers on devices, counted from the first input of the whole
    /// matrix; `None` if devices have none for them.
    pub(in crate::weights) fn layout(&self) -> Option<GroupFormat> {
        let form = IntegerForm {
            bits: self.codes.bits,
            group: match &self.groups {
                InputGroups::Runs { size, .. } => Some(*size),
                InputGroups::Whole | InputGroups::Scattered(_) => None,
            },
            zeros: self.zeros.is_some(),
            scales: match self.scales.dtype {
                CheckpointDtype::F16 => FactorType::F16,
                CheckpointDtype::Bf16 => FactorType::Bf16,
                CheckpointDtype::F32 => FactorType::F32,
            },
            scattered: self.turned || matches!(self.groups, InputGroups::Scattered(_)),
        };
        form.layout()
    }

    /// Returns what is taken from a stored integer to make the code of a device: without zero
    /// points codes are distances from half of the range, and those of 8 bits have a sign.
    fn taken(&self) -> u8 {
        match (self.codes.bits, &self.zeros) {
            (4, Some(_)) => 0,
            _ => self.half(),
        }
    }
}

impl<'a> HostGroups<'a> for HostIntegers<'a> {
    fn group_format(&self) -> GroupFormat {
        self.layout().unwrap_or(GroupFormat::ANY)
    }

    fn codes(&self, row: usize, from: usize, out: &mut [i8]) {
        let (taken, mut stored) = (self.taken(), [0; PIECE]);
        for (number, out) in out.chunks_mut(PIECE).enumerate() {
            let (stored, from) = (&mut stored[..out.len()], from + number * PIECE);
            if !self.codes.read(row * self.step, from, stored) {
                return;
            }
            for (out, code) in out.iter_mut().zip(stored) {
                // Two's complement: a byte that too much is taken from is a negative code.
                *out = code.wrapping_sub(taken).cast_signed();
            }
        }
    }

    fn steps(&self, row: usize, from: usize, out: &mut [GroupStep]) {
        let apart = self.group_format().group;
        for (col, step) in (from..self.inputs).step_by(apart).zip(out) {
            let (group, _) = self.groups.run(col);
            let Some((factor, zero)) = self.group(row, group) else {
                return;
            };
            let zeros = self.zeros.is_some();
            *step = GroupStep {
                factor,
                multiple: 1,
                min_factor: if zeros { factor } else { 0.0 },
                min_multiple: if zeros {
                    (zero - i32::from(self.taken())) as i16
                } else {
                    0
                },
            };
        }
    }
}
