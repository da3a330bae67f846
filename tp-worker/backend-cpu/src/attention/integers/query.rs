//! Queries as 16-bit integers.

use super::CODES;
use crate::isa::Isa;
use crate::multiversion::multiversion;
use crate::number::bf16_bits;

/// The largest integer: its upper byte is 127.
const LARGEST: f32 = 32_512.0;
/// Queries with a largest magnitude below this are zeros: the reciprocal of their scale
/// might overflow.
const TINY: f32 = 1e-30;
/// Number whose addition rounds to the nearest integer, which then sits in the low bits:
/// 1.5 · 2²³.
const ROUND: f32 = 12_582_912.0;
/// Values converted at once.
const CHUNK: usize = 64;
/// Words and queries of an AMX tile.
#[cfg(any(test, target_arch = "x86_64"))]
const TILE: usize = 16;
/// Number that is added to codes to make them unsigned.
const OFFSET: i32 = 128;

/// Words of a packed query: two words of integers for each four values; the scale; and the
/// sum that undoes the offsets of codes, where codes have offsets.
pub(in crate::attention) const fn query_words(head_dim: usize) -> usize {
    2 * head_dim / CODES + 2
}

/// Order of a tile's packed queries in memory.
#[derive(Debug, Clone, Copy)]
pub(in crate::attention) enum Layout {
    /// Word by word, and in each word all queries, padded to a multiple of this number.
    SideBySide(usize),
    /// 16-bit numbers, two in a word: the even values of each four, then the odd ones. Word
    /// by word, and in each word all queries.
    #[cfg(any(test, target_arch = "x86_64"))]
    Widened,
    /// AMX tiles of 16 words of 16 queries: the upper bytes of 64 values of all queries,
    /// then their lower bytes.
    #[cfg(any(test, target_arch = "x86_64"))]
    Tiles,
}

impl Layout {
    /// Number of queries that room is made for.
    pub(in crate::attention) fn height(self, queries: usize) -> usize {
        match self {
            Self::SideBySide(multiple) => queries.next_multiple_of(multiple),
            #[cfg(any(test, target_arch = "x86_64"))]
            Self::Widened => queries,
            #[cfg(any(test, target_arch = "x86_64"))]
            Self::Tiles => queries.next_multiple_of(TILE),
        }
    }

    /// Index of a query's `word` among `words` words of `height` queries. `part` 0 or 1 is
    /// the upper or lower bytes, or the even or odd values.
    fn slot(self, query: usize, part: usize, word: usize, words: usize, height: usize) -> usize {
        match self {
            Self::SideBySide(_) => (part * words + word) * height + query,
            #[cfg(any(test, target_arch = "x86_64"))]
            Self::Widened => (2 * word + part) * height + query,
            #[cfg(any(test, target_arch = "x86_64"))]
            Self::Tiles => {
                let run = (2 * (word / TILE) + part) * height + query;
                run * TILE + word % TILE
            }
        }
    }
}

/// Packs a query as number `index` of `height` queries.
pub(in crate::attention) fn pack_query(
    isa: Isa,
    query: &[f32],
    out: &mut [u32],
    layout: Layout,
    index: usize,
    height: usize,
) {
    let words = query.len() / CODES;
    let largest = largest(isa, query);
    // A reciprocal of zero brings everything to zero.
    let (scale, inverse) = match largest {
        ..TINY => (0.0, 0.0),
        _ if largest.is_finite() => (largest / LARGEST, LARGEST / largest),
        _ => (f32::NAN, 0.0),
    };
    let mut sum = 0;
    let mut bytes = [[0u8; CHUNK]; 2];
    for (from, chunk) in query.chunks(CHUNK).enumerate() {
        sum += match layout {
            #[cfg(any(test, target_arch = "x86_64"))]
            Layout::Widened => interleave(isa, chunk, inverse, &mut bytes),
            _ => split(isa, chunk, inverse, &mut bytes),
        };
        for (part, bytes) in bytes.iter().enumerate() {
            let codes = bytes[..chunk.len()].as_chunks::<CODES>().0.iter();
            for (word, &codes) in (from * CHUNK / CODES..).zip(codes) {
                let slot = layout.slot(index, part, word, words, height);
                out[slot] = u32::from_le_bytes(codes);
            }
        }
    }
    let last = 2 * words * height + index;
    out[last] = scale.to_bits();
    out[last + height] = sum.wrapping_mul(-OFFSET).cast_unsigned();
}

/// Rounds a value of a query to bf16 first, as other caches do.
#[inline(always)]
fn rounded(x: f32) -> f32 {
    f32::from_bits(bf16_bits(x) << 16)
}

multiversion! {
    /// Returns the largest magnitude; NaN counts as larger than any other.
    fn largest(query: &[f32]) -> f32 {
        // As integers, magnitudes are ordered like their values.
        let bits = |x: f32| rounded(x).to_bits() & 0x7fff_ffff;
        f32::from_bits(query.iter().fold(0, |max, &x| max.max(bits(x))))
    }
}

#[inline(always)]
fn integer(x: f32, inverse: f32) -> i16 {
    (rounded(x) * inverse + ROUND).to_bits() as i16
}

#[cfg(any(test, target_arch = "x86_64"))]
multiversion! {
    /// Writes a query's integers, the even ones of each four and the odd ones; returns their
    /// sum.
    fn interleave(query: &[f32], inverse: f32, words: &mut [[u8; CHUNK]; 2]) -> i32 {
        let mut sum = 0i32;
        let [even, odd] = words;
        let words = even.chunks_exact_mut(CODES).zip(odd.chunks_exact_mut(CODES));
        for (four, (even, odd)) in query.as_chunks::<CODES>().0.iter().zip(words) {
            let four = four.map(|x| integer(x, inverse));
            sum += four.iter().map(|&integer| i32::from(integer)).sum::<i32>();
            for (word, first) in [even, odd].into_iter().zip(0..) {
                word[..2].copy_from_slice(&four[first].to_le_bytes());
                word[2..].copy_from_slice(&four[first + 2].to_le_bytes());
            }
        }
        sum
    }
}

multiversion! {
    /// Writes the upper and lower bytes of a query's integers; returns the integers' sum.
    fn split(query: &[f32], inverse: f32, bytes: &mut [[u8; CHUNK]; 2]) -> i32 {
        let mut sum = 0i32;
        let [upper, lower] = bytes;
        for ((&x, upper), lower) in query.iter().zip(upper).zip(lower) {
            let integer = i32::from(integer(x, inverse));
            sum += integer;
            // The lower byte is signed too.
            *upper = ((integer + OFFSET) >> 8) as u8;
            *lower = integer as u8;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bytes_make_up_the_query_alike_everywhere(
            query in prop::collection::vec(-1f32..1.0, 64),
            exponent in -60i32..60,
            stride in 1usize..4,
        ) {
            let query: Vec<f32> = query.iter().map(|x| x * 2f32.powi(exponent)).collect();
            let words = query_words(query.len());
            let packed = |isa, layout| {
                let mut out = vec![0; words * stride];
                pack_query(isa, &query, &mut out, layout, 0, stride);
                out.into_iter().step_by(stride).collect::<Vec<u32>>()
            };
            let plain = packed(Isa::Scalar, Layout::SideBySide(1));
            let widened = packed(Isa::Scalar, Layout::Widened);
            prop_assert_eq!(&widened[words - 2..], &plain[words - 2..]);
            let (scale, undo) = (f32::from_bits(plain[words - 2]), plain[words - 1]);
            let bytes: Vec<i32> = plain[..words - 2]
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .map(|byte| i32::from(byte.cast_signed()))
                .collect();
            let mut sum = 0;
            for (i, &x) in query.iter().enumerate() {
                let integer = 256 * bytes[i] + bytes[query.len() + i];
                sum += integer;
                // The even values of each four share a word, and so do the odd ones.
                let word = widened[i / CODES * 2 + i % 2].to_le_bytes();
                let at = i % CODES / 2 * 2;
                prop_assert_eq!(i32::from(i16::from_le_bytes([word[at], word[at + 1]])), integer);
                let rounded = half::bf16::from_f32(x).to_f32();
                let error = f64::from(integer) * f64::from(scale) - f64::from(rounded);
                prop_assert!(error.abs() <= 0.51 * f64::from(scale), "{x}: {integer}");
            }
            prop_assert_eq!(undo.cast_signed(), -128 * sum);
            for isa in Isa::available() {
                prop_assert_eq!(&packed(isa, Layout::SideBySide(1)), &plain);
                prop_assert_eq!(&packed(isa, Layout::Widened), &widened);
            }
        }
    }

    #[test]
    fn what_is_not_finite_is_worth_nothing_that_is_a_number() {
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut out = vec![7; query_words(64)];
            let mut query = [1.0; 64];
            query[3] = odd;
            pack_query(Isa::Scalar, &query, &mut out, Layout::Tiles, 0, 1);
            assert!(f32::from_bits(out[32]).is_nan());
        }
        let mut out = vec![7; query_words(64)];
        pack_query(Isa::Scalar, &[0.0; 64], &mut out, Layout::Tiles, 0, 1);
        assert!(out.iter().all(|&word| word == 0));
    }
}
