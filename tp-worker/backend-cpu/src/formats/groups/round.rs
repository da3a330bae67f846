//! Values of other forms, rounded to integers in groups.

use std::ops::Range;

use half::{bf16, f16};
use lockstep_backend::{Codes, FactorType, GroupFormat, GroupStep, HostMatrix, Minimum};

use super::Column;
use crate::quantize::{GROUP, Parts, SMALLEST};

/// Largest multiple of a factor that groups share.
const MULTIPLES: f32 = 63.0;

/// Returns a step of a row of `matrix`: `columns`. A group's scale
/// brings its largest magnitude, or the distance of its extremes, to the largest integer. A group
/// with a value that is not finite has a NaN for a factor.
pub(super) fn column(
    format: &GroupFormat,
    matrix: &HostMatrix<'_>,
    row: usize,
    columns: Range<usize>,
) -> Column {
    let (from, count) = (columns.start, columns.len());
    let mut values = [0.0; GROUP];
    matrix.form().read(row, from, &mut values[..count]);
    let groups = || values.chunks_exact(format.group);
    let mut column = Column {
        codes: [0; GROUP],
        steps: [GroupStep::default(); Parts::MOST],
    };
    let mut wanted = [Wanted::default(); Parts::MOST];
    for (wanted, values) in wanted.iter_mut().zip(groups()) {
        *wanted = Wanted::of(format, values);
    }
    if format.factor_group > format.group {
        let most = |of: fn(&Wanted) -> f32| wanted.iter().map(of).fold(0.0, larger) / MULTIPLES;
        let (factor, min_factor) = (most(|group| group.scale), most(|group| group.min));
        for (step, wanted) in column.steps.iter_mut().zip(&wanted) {
            *step = wanted.shared(format, factor, min_factor);
        }
    } else {
        for (step, wanted) in column.steps.iter_mut().zip(&wanted) {
            *step = wanted.alone(format);
        }
    }
    let codes = column.codes.chunks_exact_mut(format.group);
    for ((codes, values), step) in codes.zip(groups()).zip(&column.steps) {
        for (code, value) in codes.iter_mut().zip(values) {
            *code = nearest(format, step, *value);
        }
    }
    column
}

/// The larger number, or NaN if one is NaN.
fn larger(one: f32, other: f32) -> f32 {
    if one > other || one.is_nan() {
        one
    } else {
        other
    }
}

/// Scale and minimum of a group before they are rounded.
#[derive(Debug, Clone, Copy, Default)]
struct Wanted {
    scale: f32,
    min: f32,
}

/// Smallest and largest integer of codes.
fn range(format: &GroupFormat) -> (f32, f32) {
    match (format.codes, format.bits, format.minimum) {
        (Codes::Table(table), ..) => {
            let values = table.values().map(f32::from);
            values
                .iter()
                .fold((0.0, 0.0), |(least, most): (f32, f32), x| {
                    (least.min(*x), most.max(*x))
                })
        }
        (Codes::Integers, 4, Minimum::None) => (-8.0, 7.0),
        (Codes::Integers, 4, _) => (0.0, 15.0),
        (Codes::Integers, ..) => (-128.0, 127.0),
    }
}

impl Wanted {
    fn of(format: &GroupFormat, values: &[f32]) -> Self {
        let (least, most) = range(format);
        let (mut low, mut high) = (0.0f32, 0.0f32);
        for value in values {
            (low, high) = (low.min(*value), high.max(*value));
        }
        let scale = match format.minimum {
            Minimum::None => high.max(-low) / most,
            Minimum::Zero | Minimum::Own => (high - low) / (most - least),
        };
        if values.iter().any(|value| !value.is_finite()) || !scale.is_finite() {
            return Self {
                scale: f32::NAN,
                min: 0.0,
            };
        }
        let scale = if scale < SMALLEST { 0.0 } else { scale };
        let min = match format.minimum {
            Minimum::None => 0.0,
            Minimum::Zero | Minimum::Own => least * scale - low,
        };
        Self { scale, min }
    }

    /// Scales of a group with factors of its own.
    fn alone(self, format: &GroupFormat) -> GroupStep {
        let factor = rounded(format.factors, self.scale);
        let (min_factor, min_multiple) = match format.minimum {
            Minimum::None => (0.0, 0),
            Minimum::Zero if factor > 0.0 => (factor, (self.min / factor).round() as i16),
            Minimum::Zero => (factor, 0),
            Minimum::Own => (rounded(format.factors, self.min), 1),
        };
        GroupStep {
            factor,
            multiple: 1,
            min_factor,
            min_multiple: min_multiple.clamp(-128, 127),
        }
    }

    /// Scales of a group as multiples of factors.
    fn shared(self, format: &GroupFormat, factor: f32, min_factor: f32) -> GroupStep {
        let factor = rounded(format.factors, factor);
        let min_factor = rounded(format.factors, min_factor);
        let multiple = |value: f32, factor: f32| match factor > 0.0 {
            true => (value / factor).round().clamp(-128.0, 127.0) as i16,
            false => 0,
        };
        GroupStep {
            factor,
            multiple: multiple(self.scale, factor),
            min_factor,
            min_multiple: multiple(self.min, min_factor),
        }
    }
}

/// A factor as its type holds it.
fn rounded(factors: FactorType, factor: f32) -> f32 {
    match factors {
        FactorType::F16 => f16::from_f32(factor).to_f32(),
        FactorType::Bf16 => bf16::from_f32(factor).to_f32(),
        FactorType::F32 => factor,
    }
}

/// The code whose value is nearest.
fn nearest(format: &GroupFormat, step: &GroupStep, value: f32) -> i8 {
    let scale = step.factor * f32::from(step.multiple);
    if scale.is_nan() || scale <= 0.0 {
        return 0;
    }
    let integer = (value + step.min_factor * f32::from(step.min_multiple)) / scale;
    match format.codes {
        Codes::Integers => {
            let (least, most) = range(format);
            integer.round_ties_even().clamp(least, most) as i8
        }
        Codes::Table(table) => {
            let distance = |code: &usize| (f32::from(table.values()[*code]) - integer).abs();
            let near = (0..16).min_by(|one, other| distance(one).total_cmp(&distance(other)));
            near.unwrap_or(0) as i8
        }
    }
}
