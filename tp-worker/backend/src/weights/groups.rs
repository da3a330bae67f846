//! Integers in groups, as forms of checkpoints hand them to devices.

use lockstep_types::GroupFormat;

use super::form::HostForm;

/// Scale and minimum of a group: a value is `factor · multiple · code − min_factor ·
/// min_multiple`. Both products with multiples are exact in f32, and multiples lie between −128
/// and 127. Without a minimum, the last two are zero.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GroupStep {
    /// Factor that a code is multiplied by.
    pub factor: f32,
    /// Multiple of the factor.
    pub multiple: i16,
    /// Factor of the minimum; equal to `factor` where the minimum is a zero point.
    pub min_factor: f32,
    /// Multiple of the minimum's factor.
    pub min_multiple: i16,
}

impl GroupStep {
    /// Returns the value of a code that stands for `integer`, rounded to f32 once.
    pub fn value(&self, integer: i32) -> f32 {
        let scale = f64::from(self.factor) * f64::from(self.multiple);
        let min = f64::from(self.min_factor) * f64::from(self.min_multiple);
        (scale * f64::from(integer) - min) as f32
    }
}

/// A form of which values are integers in groups. Columns are those of the rank's part, which may
/// begin inside of a group.
pub trait HostGroups<'a>: HostForm<'a> {
    /// Returns the layout, counted from the first column of the tensor, of which the matrix may be
    /// a part.
    fn group_format(&self) -> GroupFormat;

    /// Writes the codes of row `row`, from column `from` on, to `out`, as
    /// [`Codes`](lockstep_types::Codes) says: integers, or entries of a table by their numbers from
    /// 0 to 15. A form with minimums whose codes are 0 to 255 hands out `code − 128`, and takes 128
    /// scales from the minimum: of a zero point `z` the multiple is `z − 128`. The codes of a row
    /// that its file does not hold are left as they are.
    fn codes(&self, row: usize, from: usize, out: &mut [i8]);

    /// Writes scales and minimums of row `row` to `out`: of the group that column `from` is in, of
    /// the group of the column that lies [`GroupFormat::group`] further, and so on. Those of a row
    /// that its file does not hold are left as they are.
    fn steps(&self, row: usize, from: usize, out: &mut [GroupStep]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A zero point whose scale has all bits of f32: one rounding, as of `scale · (code − zero)`.
    #[test]
    fn a_value_is_rounded_once() {
        let step = GroupStep {
            factor: 0.1,
            multiple: 1,
            min_factor: 0.1,
            min_multiple: 7,
        };
        for code in 0..16 {
            assert_eq!(step.value(code), 0.1 * (code - 7) as f32);
        }
    }
}
