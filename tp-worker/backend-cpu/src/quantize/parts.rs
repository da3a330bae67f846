//! Inputs rounded to integers for weights that have several scales in a group of inputs.

use super::{GROUP, GROUP_WORDS, ROUND, SMALLEST, magnitude};
use crate::multiversion::multiversion;

/// Packed form of a group of inputs that meet weights in parts, each with a scale of its own.
///
/// First come the integers, four in a word as 8-bit ones have them. Integers of 16 bits are
/// `256 · high + low` with signed bytes: the words of all low bytes and then those of all high
/// ones. The scale follows. Then come numbers of each part that undo the offset of its weights,
/// which is this offset times the negative sum of the part's integers. Last comes each part's
/// negative sum as f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts {
    /// True for integers of 16 bits.
    pub wide: bool,
    /// Number of parts: 1, 2, 4 or 8.
    pub count: usize,
    /// Offset that weights are stored with.
    pub offset: i32,
}

impl Parts {
    /// Most parts of a group.
    pub(crate) const MOST: usize = 8;

    /// Index of a group's scale.
    pub(crate) const fn scale_word(wide: bool) -> usize {
        GROUP_WORDS << wide as usize
    }

    /// Words of a group in `count` parts.
    pub(crate) const fn words_of(wide: bool, count: usize) -> usize {
        Self::scale_word(wide) + 1 + 2 * count
    }

    /// Words of a group.
    pub(crate) const fn words(self) -> usize {
        Self::words_of(self.wide, self.count)
    }

    /// Largest integer. High bytes of 16-bit integers reach no further than 8-bit ones.
    fn most(self) -> f32 {
        match self.wide {
            true => 127.0 * 257.0,
            false => 127.0,
        }
    }
}

/// Rounds one group for [`quantize_parts`].
#[inline(always)]
fn quantize_group(values: &[f32; GROUP], parts: Parts, out: &mut [u32]) {
    let magnitudes = values.iter().map(|&x| magnitude(x));
    let largest = f32::from_bits(magnitudes.fold(0, u32::max));
    let most = parts.most();
    let (scale, inverse) = if !largest.is_finite() {
        (f32::NAN, 0.0)
    } else if largest < SMALLEST {
        (0.0, 0.0)
    } else {
        (largest / most, most / largest)
    };
    let mut integers = [0i16; GROUP];
    for (integer, value) in integers.iter_mut().zip(values) {
        *integer = (value * inverse + ROUND).to_bits() as i16;
    }
    let mut bytes = [0u8; GROUP];
    for (byte, integer) in bytes.iter_mut().zip(&integers) {
        *byte = *integer as u8;
    }
    for (word, four) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*four);
    }
    if parts.wide {
        for (byte, integer) in bytes.iter_mut().zip(&integers) {
            // The low byte is signed.
            *byte = ((integer + 128) >> 8) as u8;
        }
        for (word, four) in out[GROUP_WORDS..].iter_mut().zip(bytes.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*four);
        }
    }
    let (scale_word, sums) = out[Parts::scale_word(parts.wide)..].split_at_mut(1);
    scale_word[0] = scale.to_bits();
    let (undo, totals) = sums.split_at_mut(parts.count);
    let integers = integers.chunks_exact(GROUP / parts.count);
    for ((integers, undo), total) in integers.zip(undo).zip(totals) {
        let sum: i32 = integers.iter().map(|&x| i32::from(x)).sum();
        *undo = (-parts.offset * sum).cast_unsigned();
        *total = (-sum as f32).to_bits();
    }
}

multiversion! {
    /// Rounds a row to integers as [`super::quantize`] does: one scale for each [`GROUP`] of
    /// inputs, which brings the largest magnitude to 127, or with 16 bits to 32639.
    pub(crate) fn quantize_parts(row: &[f32], parts: Parts, out: &mut [u32]) {
        let (groups, rest) = row.as_chunks::<GROUP>();
        let mut out = out.chunks_exact_mut(parts.words());
        for (group, out) in groups.iter().zip(&mut out) {
            quantize_group(group, parts, out);
        }
        if let (false, Some(out)) = (rest.is_empty(), out.next()) {
            let mut group = [0.0; GROUP];
            group[..rest.len()].copy_from_slice(rest);
            quantize_group(&group, parts, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::isa::Isa;
    use crate::quantize::{ROW_WORDS, SCALE_WORD, UNDO_INT4, quantize};

    const WIDE: Parts = Parts {
        wide: true,
        count: 8,
        offset: 128,
    };
    const NARROW: Parts = Parts {
        wide: false,
        count: 4,
        offset: 8,
    };

    fn packed(isa: Isa, parts: Parts, row: &[f32]) -> Vec<u32> {
        let mut out = vec![0xdead_beef; row.len().div_ceil(GROUP) * parts.words()];
        quantize_parts(isa, row, parts, &mut out);
        out
    }

    proptest! {
        #[test]
        fn values_come_back_within_half_a_step(
            row in prop::collection::vec(-1e3f32..1e3, 1..300),
        ) {
            let out = packed(Isa::Scalar, WIDE, &row);
            for isa in Isa::available() {
                prop_assert_eq!(&packed(isa, WIDE, &row), &out);
            }
            for (group, words) in row.chunks(GROUP).zip(out.chunks(WIDE.words())) {
                let scale = f64::from(f32::from_bits(words[64]));
                let mut sums = [0i32; 8];
                for (at, x) in group.iter().enumerate() {
                    let byte = |plane: usize| words[32 * plane + at / 4].to_le_bytes()[at % 4];
                    let byte = |plane| i32::from(byte(plane).cast_signed());
                    let integer = 256 * byte(1) + byte(0);
                    sums[at / 16] += integer;
                    // Scale, inverse and product are rounded, each by 2^-24 of 32639 steps.
                    let half = 0.5 + 3.0 * 32_639.0 / f64::from(1 << 24);
                    let error = scale * f64::from(integer) - f64::from(*x);
                    prop_assert!(error.abs() <= half * scale, "{} {}", x, integer);
                }
                for (part, sum) in sums.into_iter().enumerate() {
                    prop_assert_eq!(words[65 + part].cast_signed(), -128 * sum);
                    prop_assert_eq!(f32::from_bits(words[73 + part]), -sum as f32);
                }
            }
        }

        #[test]
        fn integers_of_8_bits_are_those_of_other_weights(
            row in prop::collection::vec(-1e3f32..1e3, 1..300),
        ) {
            let mut plain = vec![0; row.len().div_ceil(GROUP) * ROW_WORDS];
            quantize(Isa::Scalar, &row, &mut plain);
            for isa in Isa::available() {
                let out = packed(isa, NARROW, &row);
                for (plain, out) in plain.chunks(ROW_WORDS).zip(out.chunks(NARROW.words())) {
                    prop_assert_eq!(&plain[..=SCALE_WORD], &out[..=SCALE_WORD]);
                    prop_assert_eq!(&plain[UNDO_INT4..], &out[33..37]);
                }
            }
        }
    }

    #[test]
    fn the_largest_inputs_fill_both_bytes() {
        let out = packed(Isa::detect(), WIDE, &[1.0, -1.0, 0.5]);
        assert_eq!(
            out[0].to_le_bytes().map(u8::cast_signed),
            [127, -127, -64, 0]
        );
        assert_eq!(
            out[32].to_le_bytes().map(u8::cast_signed),
            [127, -127, 64, 0]
        );
    }

    #[test]
    fn what_is_not_finite_marks_its_group_alone() {
        for isa in Isa::available() {
            for parts in [WIDE, NARROW] {
                let mut row = [1.0; 256];
                row[130] = f32::INFINITY;
                let out = packed(isa, parts, &row);
                let scale = |group: usize| {
                    let word = group * parts.words() + Parts::scale_word(parts.wide);
                    f32::from_bits(out[word])
                };
                assert!(scale(0).is_finite() && scale(1).is_nan(), "{isa}");
            }
        }
    }
}
