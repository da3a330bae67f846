//! 4-bit weights as 8-bit ones: weight times multiplier fits in 8 bits, and the sums of a
//! group stay the same integers.

use super::{INT4_WORDS, INT8_WORDS};
use crate::gemm::tile::{LANES, PANEL};
use crate::multiversion::multiversion;

/// Words of weights that share a multiplier.
const PART_WORDS: usize = 4 * PANEL;
/// Words of weights of a step.
const NARROW: usize = INT4_WORDS - PANEL;
const WIDE: usize = INT8_WORDS - LANES;

multiversion! {
    /// Converts steps in the layout of `int4.rs` to the layout of `int8.rs`; multipliers are
    /// −15…15.
    pub(crate) fn widen(narrow: &[u32], wide: &mut [u32]) {
        let steps = narrow.chunks_exact(INT4_WORDS).zip(wide.chunks_exact_mut(INT8_WORDS));
        for (narrow, wide) in steps {
            let (narrow, codes) = narrow.split_at(NARROW);
            let (wide, scales) = wide.split_at_mut(WIDE);
            let parts = narrow.chunks_exact(PART_WORDS).zip(wide.chunks_exact_mut(2 * PART_WORDS));
            for (part, (narrow, wide)) in parts.enumerate() {
                for half in 0..2 {
                    widen_part(&codes[half * LANES..], narrow, wide, part, half * LANES);
                }
            }
            let (first, second) = codes.split_at(LANES);
            for ((scales, first), second) in scales.iter_mut().zip(first).zip(second) {
                *scales = (float(*first) >> 16) | float(*second);
            }
        }
    }
}

/// The scale in a code, as f32 bits; a bf16 in the upper half.
#[inline(always)]
fn float(code: u32) -> u32 {
    (code >> 1) & 0x7ff8_0000
}

/// Widens 32 inputs of 16 columns from `column` on.
///
/// Works on two weights at a time: an integer `q` was stored as `q + 8` and becomes
/// `q · factor + 128`, which fits in a byte. So a 16-bit product with both weights carries
/// nothing from the lower to the upper one, and neither does the sum with both offsets.
#[inline(always)]
fn widen_part(codes: &[u32], narrow: &[u32], wide: &mut [u32], part: usize, column: usize) {
    let (mut factors, mut offsets) = ([0u16; 2 * LANES], [0u16; 2 * LANES]);
    let pairs = factors.chunks_exact_mut(2).zip(offsets.chunks_exact_mut(2));
    for ((factors, offsets), code) in pairs.zip(codes) {
        let factor = ((code << (27 - 5 * part)).cast_signed() >> 27) as u16;
        let offset = 128u16.wrapping_sub(factor.wrapping_mul(8));
        factors.fill(factor);
        offsets.fill(offset.wrapping_mul(0x101));
    }
    let rows = narrow
        .chunks_exact(PANEL)
        .zip(wide.chunks_exact_mut(2 * PANEL));
    for (narrow, wide) in rows {
        let narrow: &[u16] = bytemuck::cast_slice(&narrow[column..column + LANES]);
        let (low, high) = wide.split_at_mut(PANEL);
        for (wide, shift) in [(low, 0), (high, 4)] {
            let wide: &mut [u16] = bytemuck::cast_slice_mut(&mut wide[column..column + LANES]);
            let lanes = narrow.iter().zip(&factors).zip(&offsets);
            for (wide, ((pair, factor), offset)) in wide.iter_mut().zip(lanes) {
                *wide = ((pair >> shift) & 0x0f0f)
                    .wrapping_mul(*factor)
                    .wrapping_add(*offset);
            }
        }
    }
}

/// A code with multipliers as packing makes them. A multiplier of −16, whose product with −8
/// does not fit in a byte, becomes −15.
#[cfg(test)]
pub(super) fn without_least(code: u32) -> u32 {
    let least = |part: &u32| (code >> (5 * part)) & 0x1f == 0x10;
    (0..4)
        .filter(least)
        .fold(code, |code, part| code | 1 << (5 * part))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::isa::Isa;

    proptest! {
        #[test]
        fn a_weight_becomes_its_product(words in prop::collection::vec(any::<u32>(), INT4_WORDS)) {
            let mut narrow = words;
            for code in &mut narrow[NARROW..] {
                *code = without_least(*code);
            }
            for isa in Isa::available() {
                let mut wide = vec![0u32; INT8_WORDS];
                widen(isa, &narrow, &mut wide);
                for lane in 0..PANEL {
                    let code = narrow[NARROW + lane];
                    for i in 0..128 {
                        let factor = (code << (27 - 5 * (i / 32))).cast_signed() >> 27;
                        let byte = narrow[i / 8 * PANEL + lane].to_le_bytes()[i % 4];
                        let integer = i32::from((byte >> (i % 8 / 4 * 4)) & 0xf) - 8;
                        let stored = wide[i / 4 * PANEL + lane].to_le_bytes()[i % 4];
                        prop_assert_eq!(i32::from(stored) - 128, integer * factor);
                    }
                    let scale = (wide[WIDE + lane % 16] >> (lane / 16 * 16)) << 16;
                    prop_assert_eq!(scale, float(code));
                }
            }
        }
    }
}
