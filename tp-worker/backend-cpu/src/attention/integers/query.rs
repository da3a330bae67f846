//! Queries as 16-bit integers, packed in 32-bit words.
//!
//! A query has one scale: value = integer · scale. Kernels that multiply four bytes at a time
//! read each integer as two signed bytes, integer = 256 · upper + lower. Example: 511 is
//! upper 2 and lower -1.

use super::CODES;
use crate::isa::Isa;
use crate::multiversion::multiversion;
use crate::number::bf16_bits;

/// Largest integer of a query: 127 · 256, so its upper byte is 127 and its lower byte 0.
const LARGEST: f32 = 32_512.0;
/// Limit of a query's largest magnitude. A query below this limit becomes zeros, because the
/// reciprocal of its scale could overflow.
const TINY: f32 = 1e-30;
/// 1.5 · 2²³. Adding this number to a value rounds the value to the nearest integer. The low
/// 16 bits of the sum are that integer.
const ROUND: f32 = 12_582_912.0;
/// Number of a query's values that are converted at once.
const CHUNK: usize = 64;
/// Rows of an AMX tile, one per query, and 32-bit words in a row.
#[cfg(any(test, target_arch = "x86_64"))]
const TILE: usize = 16;
/// Number that some kernels add to the cache's signed codes, because they read unsigned bytes.
const OFFSET: i32 = 128;

/// Returns the number of words of a packed query. Every four values take two words. One word
/// is the scale. The last word is -[`OFFSET`] times the sum of the query's integers: kernels
/// that add [`OFFSET`] to codes add this word to a product to undo that. Example: 64 values
/// take 34 words.
pub(in crate::attention) const fn query_words(head_dim: usize) -> usize {
    2 * head_dim / CODES + 2
}

/// Order of the words of packed queries in memory. The scales of all queries follow the words
/// of integers, and then the last words of all queries.
#[derive(Debug, Clone, Copy)]
pub(in crate::attention) enum Layout {
    /// The words of upper bytes, then the words of lower bytes. The same word of all queries
    /// lies side by side. The number of queries is padded to a multiple of this number.
    SideBySide(usize),
    /// Whole 16-bit integers, two in a word. Four values are two words: the first has values
    /// 0 and 2, the second has values 1 and 3. The same word of all queries lies side by side.
    #[cfg(any(test, target_arch = "x86_64"))]
    Widened,
    /// AMX tiles: a row is 16 words, bytes of 64 values of one query. For each 64 values come
    /// the upper bytes of all queries, then the lower bytes. The number of queries is padded
    /// to a multiple of 16.
    #[cfg(any(test, target_arch = "x86_64"))]
    Tiles,
}

impl Layout {
    /// Returns the number of queries after padding.
    pub(in crate::attention) fn height(self, queries: usize) -> usize {
        match self {
            Self::SideBySide(multiple) => queries.next_multiple_of(multiple),
            #[cfg(any(test, target_arch = "x86_64"))]
            Self::Widened => queries,
            #[cfg(any(test, target_arch = "x86_64"))]
            Self::Tiles => queries.next_multiple_of(TILE),
        }
    }

    /// Returns the index of a query's word in memory. Each part has `words` words per query;
    /// `height` is the number of queries after padding. Parts 0 and 1 are the upper and the
    /// lower bytes, in [`Self::Widened`] the even and the odd values.
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

/// Packs `query` into `out`, as number `index` of `height` queries. Its length is a multiple of
/// [`CODES`]. If one of its values is not finite, its scale is NaN.
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
    // If `inverse` is zero, all integers are zero.
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

/// Rounds a query's value to bf16, as attention of bf16 models does over other caches too.
#[inline(always)]
fn rounded(x: f32) -> f32 {
    f32::from_bits(bf16_bits(x) << 16)
}

multiversion! {
    /// Returns the largest magnitude of a query's values. NaN is larger than any number.
    fn largest(query: &[f32]) -> f32 {
        // The bits of magnitudes, read as integers, have the order of the magnitudes.
        let bits = |x: f32| rounded(x).to_bits() & 0x7fff_ffff;
        f32::from_bits(query.iter().fold(0, |max, &x| max.max(bits(x))))
    }
}

/// Returns the integer of a query's value: the value times `inverse`, rounded.
#[inline(always)]
fn integer(x: f32, inverse: f32) -> i16 {
    (rounded(x) * inverse + ROUND).to_bits() as i16
}

#[cfg(any(test, target_arch = "x86_64"))]
multiversion! {
    /// Writes the integers of a query's values as words: of every four values, 0 and 2 to
    /// the first list, 1 and 3 to the second. Returns the sum of the integers.
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
    /// Writes the upper and the lower bytes of a query's integers. Returns the sum of the
    /// integers.
    fn split(query: &[f32], inverse: f32, bytes: &mut [[u8; CHUNK]; 2]) -> i32 {
        let mut sum = 0i32;
        let [upper, lower] = bytes;
        for ((&x, upper), lower) in query.iter().zip(upper).zip(lower) {
            let integer = i32::from(integer(x, inverse));
            sum += integer;
            // The lower byte is signed, so the upper byte is rounded and not cut off.
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
                // Of every four values, 0 and 2 share a word, and 1 and 3 share the next.
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
