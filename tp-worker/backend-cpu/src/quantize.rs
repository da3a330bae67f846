//! Inputs rounded to 8-bit integers, group by group.

mod parts;

pub(crate) use parts::{Parts, quantize_parts};

use crate::multiversion::multiversion;

/// Inputs that share a scale, and inputs of one step of quantized weights.
pub(crate) const GROUP: usize = 128;
/// 4-byte words of a group's integers.
pub(crate) const GROUP_WORDS: usize = GROUP / 4;
/// Words of a group: its integers, its scale, and the numbers that undo the offsets of 8-bit
/// weights and of each quarter of 4-bit ones.
pub(crate) const ROW_WORDS: usize = SCALE_WORD + 6;
/// Index of a group's scale.
pub(crate) const SCALE_WORD: usize = GROUP_WORDS;
/// Index of the number that undoes an offset of 128.
pub(crate) const UNDO_INT8: usize = SCALE_WORD + 1;
/// Index of the numbers that undo an offset of 8, one for each quarter of the group.
pub(crate) const UNDO_INT4: usize = SCALE_WORD + 2;
/// Words of a group of a row where rows lie in blocks. The integers come first, 16 words of
/// all rows and then 16 again; then all scales; then the numbers that undo an offset of 128
/// in all rows. The rest is unused, so that blocks begin at a cache line.
pub(crate) const BLOCK_ROW_WORDS: usize = 48;
/// Words of a row before the scales of a block.
pub(crate) const BLOCK_SCALE_WORD: usize = GROUP_WORDS;
/// Words of a row before the numbers that undo offsets in a block.
pub(crate) const BLOCK_UNDO_WORD: usize = BLOCK_SCALE_WORD + 1;
/// Magnitude below which a group counts as zeros, so that no reciprocal overflows.
pub(crate) const SMALLEST: f32 = f32::from_bits(27 << 23);
/// Number whose addition leaves a small value's nearest integer, ties to even, in the low
/// bits.
pub(crate) const ROUND: f32 = 12_582_912.0;

/// `|x|` as an integer. Such integers are ordered like the numbers, with NaN above infinity.
#[inline(always)]
pub(crate) fn magnitude(x: f32) -> u32 {
    x.to_bits() & 0x7fff_ffff
}

/// Rounds one group for [`quantize`].
#[inline(always)]
fn quantize_group(values: &[f32; GROUP], out: &mut [u32]) {
    let magnitudes = values.iter().map(|&x| magnitude(x));
    let largest = f32::from_bits(magnitudes.fold(0, u32::max));
    let (scale, inverse) = if !largest.is_finite() {
        (f32::NAN, 0.0)
    } else if largest < SMALLEST {
        (0.0, 0.0)
    } else {
        (largest / 127.0, 127.0 / largest)
    };
    let mut integers = [0i8; GROUP];
    for (integer, value) in integers.iter_mut().zip(values) {
        *integer = (value * inverse + ROUND).to_bits() as i8;
    }
    for (word, four) in out.iter_mut().zip(integers.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(four.map(i8::cast_unsigned));
    }
    out[SCALE_WORD] = scale.to_bits();
    let mut total = 0;
    let (quarters, _) = integers.as_chunks::<{ GROUP / 4 }>();
    for (quarter, integers) in quarters.iter().enumerate() {
        let sum: i32 = integers.iter().map(|&x| i32::from(x)).sum();
        out[UNDO_INT4 + quarter] = (-8 * sum).cast_unsigned();
        total += sum;
    }
    out[UNDO_INT8] = (-128 * total).cast_unsigned();
}

multiversion! {
    /// Rounds a row to symmetric 8-bit integers with one scale for each [`GROUP`] of inputs:
    /// the largest magnitude over 127. A channel that stands out spoils its group alone.
    /// `x ≈ scale · integer`, ties to even.
    ///
    /// A group is [`ROW_WORDS`] words: 32 words of four consecutive integers, the earliest
    /// in the low byte; the scale; −128 times the sum of the integers and −8 times the sum
    /// of each quarter. The latter undo the offsets that make weights unsigned. The last
    /// group is filled up with zeros. A group with an infinity or a NaN gets a NaN scale; a
    /// group below 2⁻¹⁰⁰ is zero.
    pub(crate) fn quantize(row: &[f32], out: &mut [u32]) {
        let (groups, rest) = row.as_chunks::<GROUP>();
        let mut out = out.chunks_exact_mut(ROW_WORDS);
        for (group, out) in groups.iter().zip(&mut out) {
            quantize_group(group, out);
        }
        if let (false, Some(out)) = (rest.is_empty(), out.next()) {
            let mut group = [0.0; GROUP];
            group[..rest.len()].copy_from_slice(rest);
            quantize_group(&group, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::isa::Isa;

    fn packed(isa: Isa, row: &[f32]) -> Vec<u32> {
        let mut out = vec![0xdead_beef; row.len().div_ceil(GROUP) * ROW_WORDS];
        quantize(isa, row, &mut out);
        out
    }

    proptest! {
        #[test]
        fn every_instruction_set_rounds_alike(
            row in prop::collection::vec(-1e3f32..1e3, 1..400),
            small in 0usize..400,
        ) {
            let mut row = row;
            row.iter_mut().take(small).for_each(|x| *x *= 1e-38);
            let scalar = packed(Isa::Scalar, &row);
            for isa in Isa::available() {
                prop_assert_eq!(&packed(isa, &row), &scalar);
            }
        }

        #[test]
        fn values_come_back_within_half_a_step(
            row in prop::collection::vec(-1e3f32..1e3, 1..300),
        ) {
            let out = packed(Isa::detect(), &row);
            for (group, words) in row.chunks(GROUP).zip(out.chunks(ROW_WORDS)) {
                let largest = group.iter().fold(0.0f32, |a, x| a.max(x.abs()));
                let scale = f32::from_bits(words[SCALE_WORD]);
                prop_assert_eq!(scale, largest / 127.0);
                let mut sums = [0i32; 4];
                for (i, x) in group.iter().enumerate() {
                    let integer = words[i / 4].to_le_bytes()[i % 4].cast_signed();
                    sums[i / 32] += i32::from(integer);
                    let back = f64::from(scale) * f64::from(integer);
                    // The scale, its inverse and the product with the inverse are rounded
                    // too, each by 2^-24 of at most 127 steps.
                    let half = 0.5 + 3.0 * 127.0 / f64::from(1 << 24);
                    prop_assert!((back - f64::from(*x)).abs() <= half * f64::from(scale));
                }
                for (sum, word) in sums.iter().zip(&words[UNDO_INT4..]) {
                    prop_assert_eq!(-8 * sum, word.cast_signed());
                }
                let total: i32 = sums.iter().sum();
                prop_assert_eq!(-128 * total, words[UNDO_INT8].cast_signed());
            }
        }
    }

    #[test]
    fn what_is_not_finite_marks_its_group_alone() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut row = [1.0; 300];
            row[130] = bad;
            for isa in Isa::available() {
                let out = packed(isa, &row);
                let scales =
                    [0, 1, 2].map(|group| f32::from_bits(out[group * ROW_WORDS + SCALE_WORD]));
                assert!(scales[1].is_nan());
                assert_eq!([scales[0], scales[2]], [1.0 / 127.0; 2]);
            }
        }
    }

    #[test]
    fn zeros_stay_zeros() {
        assert!(
            packed(Isa::detect(), &[0.0, -0.0, 1e-40])
                .iter()
                .all(|&word| word == 0)
        );
    }
}
