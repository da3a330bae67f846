//! Integers in groups as a checkpoint has them, in the layout of a device.

use std::ops::Range;

use lockstep_backend::{Codes, GroupFormat, GroupStep, HostGroups, Minimum};

use super::Column;
use crate::quantize::{GROUP, Parts};

/// Returns a step of a row of `matrix`, whose layout `format` holds: `columns`.
pub(super) fn column(
    format: &GroupFormat,
    matrix: &dyn HostGroups<'_>,
    row: usize,
    columns: Range<usize>,
) -> Column {
    let (from, count) = (columns.start, columns.len());
    let stored = matrix.group_format();
    let mut column = Column {
        codes: [0; GROUP],
        steps: [GroupStep::default(); Parts::MOST],
    };
    let codes = &mut column.codes[..count];
    matrix.codes(row, from, codes);
    if let (Codes::Integers, Codes::Table(table)) = (format.codes, stored.codes) {
        let values = table.values();
        codes
            .iter_mut()
            .for_each(|code| *code = values[*code as usize % 16]);
    }
    let groups = count.div_ceil(format.group);
    for (group, step) in column.steps[..groups].iter_mut().enumerate() {
        // A group of the device is a group of the checkpoint, or a part of one.
        matrix.steps(row, from + group * format.group, std::slice::from_mut(step));
        *step = fitted(format, step);
    }
    column
}

/// Returns scales that fit `format`, of the same values.
fn fitted(format: &GroupFormat, step: &GroupStep) -> GroupStep {
    if format.factor_group > format.group {
        return *step;
    }
    let factor = step.factor * f32::from(step.multiple);
    match format.minimum {
        Minimum::None => GroupStep {
            factor,
            multiple: 1,
            ..GroupStep::default()
        },
        Minimum::Zero => GroupStep {
            factor,
            multiple: 1,
            min_factor: factor,
            min_multiple: step.min_multiple,
        },
        Minimum::Own => GroupStep {
            factor,
            multiple: 1,
            min_factor: step.min_factor * f32::from(step.min_multiple),
            min_multiple: 1,
        },
    }
}
