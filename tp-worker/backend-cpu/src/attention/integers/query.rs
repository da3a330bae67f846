//! Queries as 16-bit integers.

use super::CODES;
use crate::isa::Isa;
use crate::multiversion::multiversion;
use crate::number::bf16_bits;

/// The largest integer: its upper byte is 127.
const LARGEST: f32 = 32_512.0;
/// Queries whose largest magnitude is below this are zeros: the reciprocal of
/// their scale might overflow.
const TINY: f32 = 1e-30;
/// Adding it rounds to the nearest integer, which then sits in the low bits: 1.5 · 2²³.
const ROUND: f32 = 12_582_912.0;
/// Values converted at once.
const CHUNK: usize = 64;
/// Words and queries of an AMX tile.
#[cfg(any(test, target_arch = "x86_64"))]
const TILE: usize = 16;
/// What is added to codes to make them unsigned.
const OFFSET: i32 = 128;

/// Words of a packed query: upper bytes, lower bytes, its scale, and what undoes
/// the offsets of codes.
pub(in crate::attention) const fn query_words(head_dim: usize) -> usize {
    2 * head_dim / CODES + 2
}

/// How the packed queries of a tile lie.
#[derive(Debug, Clone, Copy)]
pub(in crate::attention) enum Layout {
    /// Word by word, in each those of all queries: of a multiple of so many.
    SideBySide(usize),
    /// As AMX tiles of 16 words of 16 queries: of each 64 values, the upper bytes
    /// of all queries, then their lower ones.
    #[cfg(any(test, target_arch = "x86_64"))]
    Tiles,
}

impl Layout {
    /// Queries that room is made for.
    pub(in crate::attention) fn height(self, queries: usize) -> usize {
        match self {
            Self::SideBySide(multiple) => queries.next_multiple_of(multiple),
            #[cfg(any(test, target_arch = "x86_64"))]
            Self::Tiles => queries.next_multiple_of(TILE),
        }
    }

    /// Where a query's `word` of the upper (0) or lower bytes (1) lies, of `words`
    /// and of `height` queries.
    fn slot(self, query: usize, part: usize, word: usize, words: usize, height: usize) -> usize {
        match self {
            Self::SideBySide(_) => (part * words + word) * height + query,
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
        let [upper, lower] = &mut bytes;
        sum += split(isa, chunk, inverse, upper, lower);
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

/// Queries are rounded to bf16 first, as for other caches.
#[inline(always)]
fn rounded(x: f32) -> f32 {
    f32::from_bits(bf16_bits(x) << 16)
}

multiversion! {
    /// The largest magnitude; NaN is larger than any other.
    fn largest(query: &[f32]) -> f32 {
        // As integers, magnitudes are ordered like their values.
        let bits = |x: f32| rounded(x).to_bits() & 0x7fff_ffff;
        f32::from_bits(query.iter().fold(0, |max, &x| max.max(bits(x))))
    }
}

multiversion! {
    /// The bytes of a query's integers; returns their sum.
    fn split(query: &[f32], inverse: f32, upper: &mut [u8], lower: &mut [u8]) -> i32 {
        let mut sum = 0i32;
        for ((&x, upper), lower) in query.iter().zip(upper).zip(lower) {
            let integer = i32::from((rounded(x) * inverse + ROUND).to_bits() as i16);
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
            let packed = |isa| {
                let mut out = vec![0; words * stride];
                let layout = Layout::SideBySide(1);
                pack_query(isa, &query, &mut out, layout, 0, stride);
                out.into_iter().step_by(stride).collect::<Vec<u32>>()
            };
            let plain = packed(Isa::Scalar);
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
                let rounded = half::bf16::from_f32(x).to_f32();
                let error = f64::from(integer) * f64::from(scale) - f64::from(rounded);
                prop_assert!(error.abs() <= 0.51 * f64::from(scale), "{x}: {integer}");
            }
            prop_assert_eq!(undo.cast_signed(), -128 * sum);
            for isa in Isa::available() {
                prop_assert_eq!(packed(isa), &plain[..]);
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
