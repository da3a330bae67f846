//! Panels of integers in groups, laid out as `gemm/groups.rs` reads them.

mod known;
mod round;
mod stored;
#[cfg(test)]
mod tests;

use std::ops::Range;

use half::{bf16, f16};
use lockstep_backend::{Codes, FactorType, GroupFormat, GroupStep, HostMatrix, Minimum};

use super::Format;
use crate::gemm::{
    INTEGER_GROUPS, InputGroups, Layout, PANEL, Places, Tiles, WIDE_GROUPS, Widening,
    describe_groups, groups,
};
use crate::isa::Isa;
use crate::quantize::{GROUP, Parts};

pub(super) use known::of;
#[cfg(test)]
pub(crate) use known::{all, layout};

/// Codes of a checkpoint, with scales for every few of them.
pub(super) struct Groups {
    format: GroupFormat,
    layout: Layout,
    name: known::Name,
}

/// A step of a column.
struct Column {
    /// Integers, or entries of the table.
    codes: [i8; GROUP],
    /// Scales of its groups.
    steps: [GroupStep; Parts::MOST],
}

impl Format for Groups {
    fn name(&self) -> &str {
        self.name.text()
    }

    fn title(&self) -> Option<&'static str> {
        Some(match (self.format.codes, self.format.bits) {
            (Codes::Table(_), _) => "4-bit table",
            (Codes::Integers, 4) => "4-bit integer",
            (Codes::Integers, _) => "8-bit integer",
        })
    }

    fn instructions(&self, isa: Isa) -> &'static str {
        describe_groups(isa)
    }

    fn steps(&self, k: usize) -> usize {
        k.div_ceil(GROUP)
    }

    fn step_words(&self) -> usize {
        self.layout.step_words
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn pack_panel(&self, _: Isa, matrix: &HostMatrix<'_>, panel: usize, out: &mut [u32]) {
        let stored = matrix.groups();
        let stored = stored.filter(|stored| self.format.holds(&stored.group_format()));
        let sizes = [matrix.rows(), matrix.cols()];
        match stored {
            Some(stored) => self.pack(sizes, panel, out, |row, columns| {
                stored::column(&self.format, stored, row, columns)
            }),
            None => self.pack(sizes, panel, out, |row, columns| {
                round::column(&self.format, matrix, row, columns)
            }),
        }
    }

    fn read_row(&self, panel: &[u32], lane: usize, out: &mut [f32]) {
        let steps = panel.chunks_exact(self.layout.step_words);
        for (values, step) in out.chunks_mut(GROUP).zip(steps) {
            let bytes: &[u8] = bytemuck::cast_slice(step);
            let groups = values.chunks_mut(self.format.group).enumerate();
            for (group, values) in groups {
                let scales = self.step(bytes, group, lane);
                for (input, value) in (group * self.format.group..).zip(values) {
                    *value = scales.value(self.integer(bytes, input, lane));
                }
            }
        }
    }

    fn tiles(&self, isa: Isa, _: usize) -> &'static Tiles {
        groups(isa, &self.layout)
    }

    fn widening(&self, _: Isa) -> Option<&Widening> {
        None
    }

    fn groups(&self) -> &'static InputGroups {
        match self.layout.is_wide() {
            true => &WIDE_GROUPS,
            false => &INTEGER_GROUPS,
        }
    }
}

impl Groups {
    const fn new(format: GroupFormat) -> Self {
        Self {
            format,
            layout: Layout::of(format),
            name: known::Name::of(format),
        }
    }

    /// Packs a panel of a matrix of the sizes `[rows, cols]` into zeros, of which
    /// `column(row, columns)` returns a step.
    fn pack(
        &self,
        [rows, cols]: [usize; 2],
        panel: usize,
        out: &mut [u32],
        column: impl Fn(usize, Range<usize>) -> Column,
    ) {
        let lanes = PANEL.min(rows - panel * PANEL);
        for (step, out) in out.chunks_exact_mut(self.layout.step_words).enumerate() {
            let columns = step * GROUP..cols.min((step + 1) * GROUP);
            for lane in 0..lanes {
                let column = column(panel * PANEL + lane, columns.clone());
                let bytes = bytemuck::cast_slice_mut(out);
                self.place(&column, columns.len(), lane, bytes);
            }
        }
    }

    /// Number that is added to codes, so that they are not negative.
    fn code_offset(&self) -> i32 {
        match self.format.codes {
            Codes::Integers => self.layout.offset,
            Codes::Table(_) => 0,
        }
    }

    /// Puts column `lane` in a step of zeros.
    fn place(&self, column: &Column, count: usize, lane: usize, bytes: &mut [u8]) {
        for (input, code) in column.codes[..count].iter().enumerate() {
            let (byte, shift) = self.layout.code(input, lane);
            bytes[byte] |= ((i32::from(*code) + self.code_offset()) as u8) << shift;
        }
        let numbers = &mut bytes[4 * self.layout.code_words..];
        // Those behind the last column have no factors, which groups may share.
        let groups = count.div_ceil(self.format.group);
        for (group, step) in column.steps[..groups].iter().enumerate() {
            let width = self.layout.factor_bytes();
            let factors = [
                (Some(self.layout.factor), step.factor),
                (self.own_minimum(), step.min_factor),
            ];
            for (places, factor) in factors {
                if let Some(places) = places {
                    let place = places.at(group) + lane * width;
                    write(
                        self.layout.factors,
                        factor,
                        &mut numbers[place..place + width],
                    );
                }
            }
            let multiples = [
                (self.layout.multiple, step.multiple),
                (self.layout.min_multiple, step.min_multiple),
            ];
            for (places, multiple) in multiples {
                if let Some(places) = places {
                    numbers[places.at(group) + lane] = multiple as u8;
                }
            }
        }
    }

    /// Places of factors of minimums that are not those of codes.
    fn own_minimum(&self) -> Option<Places> {
        let own = self.format.minimum == Minimum::Own;
        self.layout.min_factor.filter(|_| own)
    }

    /// The scales of a group of column `lane` in a step.
    fn step(&self, bytes: &[u8], group: usize, lane: usize) -> GroupStep {
        let Layout {
            factors,
            factor,
            multiple,
            min_factor,
            min_multiple,
            ..
        } = self.layout;
        let numbers = &bytes[4 * self.layout.code_words..];
        let width = self.layout.factor_bytes();
        let of_factor = |places: Places| read(factors, &numbers[places.at(group) + lane * width..]);
        let of_multiple = |places: Option<Places>| {
            places.map_or(1, |places| {
                i16::from(numbers[places.at(group) + lane].cast_signed())
            })
        };
        GroupStep {
            factor: of_factor(factor),
            multiple: of_multiple(multiple),
            min_factor: min_factor.map_or(0.0, of_factor),
            min_multiple: of_multiple(min_multiple),
        }
    }

    /// The integer of a code of column `lane` in a step.
    fn integer(&self, bytes: &[u8], input: usize, lane: usize) -> i32 {
        let (byte, shift) = self.layout.code(input, lane);
        let stored = bytes[byte] >> shift;
        match (self.format.codes, self.format.bits) {
            (Codes::Table(table), _) => i32::from(table.values()[stored as usize % 16]),
            (Codes::Integers, 4) => i32::from(stored % 16) - self.layout.offset,
            (Codes::Integers, _) => i32::from(stored) - self.layout.offset,
        }
    }
}

/// Writes a factor, which its type holds.
fn write(factors: FactorType, factor: f32, to: &mut [u8]) {
    match factors {
        FactorType::F16 => to.copy_from_slice(&f16::from_f32(factor).to_le_bytes()),
        FactorType::Bf16 => to.copy_from_slice(&bf16::from_f32(factor).to_le_bytes()),
        FactorType::F32 => to.copy_from_slice(&factor.to_le_bytes()),
    }
}

/// Reads a factor from the beginning of `from`.
fn read(factors: FactorType, from: &[u8]) -> f32 {
    match factors {
        FactorType::F16 => f16::from_le_bytes([from[0], from[1]]).to_f32(),
        FactorType::Bf16 => bf16::from_le_bytes([from[0], from[1]]).to_f32(),
        FactorType::F32 => f32::from_le_bytes([from[0], from[1], from[2], from[3]]),
    }
}
