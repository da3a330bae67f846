//! The products of an 8-bit cache in plain Rust: the bits of [`crate::isa::Isa::Amx`] on
//! every machine.

use super::super::cache::{CpuKvCache, Data};
use super::super::cells::BLOCK;
use super::super::prefetch::Ahead;
use super::super::softmax::whole;
use super::super::softmax::{Bytes, Rows};
use super::{CODES, ScoresFn, SumsFn};
use crate::isa::Isa;
use crate::multiversion::multiversion;

const ISA: Isa = Isa::AmxEmulated;

/// Copies the codes of `rows` unchanged, `[rows][head_dim]`.
pub(super) unsafe fn keys(cache: &CpuKvCache, rows: &[usize], out: *mut u32, _: &mut Ahead) {
    // SAFETY: forwarded to the caller.
    unsafe { copy(cache, rows, 0, out) };
}

/// Copies the codes of the values of `rows` unchanged, `[rows][head_dim]`.
pub(super) unsafe fn values(cache: &CpuKvCache, rows: &[usize], out: *mut u32, _: &mut Ahead) {
    // SAFETY: forwarded to the caller.
    unsafe { copy(cache, rows, cache.values_after(), out) };
}

unsafe fn copy(cache: &CpuKvCache, rows: &[usize], after: usize, out: *mut u32) {
    // Only codes are whole numbers.
    let Data::Int8(codes, _) = &cache.data else {
        return;
    };
    let len = cache.shape.head_dim;
    // SAFETY: the caller's promise: `out` holds the codes of 64 rows.
    let out = unsafe { std::slice::from_raw_parts_mut(out.cast::<i8>(), rows.len() * len) };
    for (&row, out) in rows.iter().zip(out.chunks_exact_mut(len)) {
        out.copy_from_slice(&codes[(row + after) * len..][..len]);
    }
}

/// See [`ScoresFn`], for `M` rows.
unsafe fn scores<const M: usize>(
    queries: *const u32,
    keys: *const u32,
    words: usize,
    count: usize,
    scores: *mut [f32; BLOCK],
) {
    let len = words * CODES;
    // SAFETY: the caller's promise: queries and scores have `M` rows, and keys
    // `count` rows of `words`.
    let (queries, keys, scores) = unsafe {
        (
            std::slice::from_raw_parts(queries, (2 * words + 1) * M),
            std::slice::from_raw_parts(keys.cast::<i8>(), count * len),
            std::slice::from_raw_parts_mut(scores, M),
        )
    };
    let mut query = [0i32; super::super::cache::MAX_CODES];
    for (row, scores) in scores.iter_mut().enumerate() {
        for (word, codes) in query[..len]
            .as_chunks_mut::<CODES>()
            .0
            .iter_mut()
            .enumerate()
        {
            let bytes = |part: usize| queries[(part * words + word) * M + row].to_le_bytes();
            let (upper, lower) = (bytes(0), bytes(1));
            for i in 0..CODES {
                codes[i] = 256 * i32::from(upper[i] as i8) + i32::from(lower[i] as i8);
            }
        }
        let scale = f32::from_bits(queries[2 * words * M + row]);
        for (score, key) in scores.iter_mut().zip(keys.chunks_exact(len)) {
            *score = dot(ISA, &query[..len], key) as f32 * scale;
        }
    }
}

multiversion! {
    fn dot(query: &[i32], key: &[i8]) -> i32 {
        query.iter().zip(key).map(|(&x, &code)| x * i32::from(code)).sum()
    }
}

/// See [`super::WeighFn`].
pub(super) unsafe fn weigh(
    rows: Rows<'_>,
    scales: &[f32; BLOCK],
    out: &mut [Bytes],
    worth: &mut [f32],
) {
    whole::integers(ISA, rows, scales, out, worth);
}

/// See [`SumsFn`], for `M` rows.
unsafe fn sums<const M: usize>(
    weights: *const Bytes,
    worth: *const f32,
    values: *const u32,
    count: usize,
    head_dim: usize,
    acc: *mut f32,
    width: usize,
) {
    for row in 0..M {
        // SAFETY: the caller's promise: weights, `worth` and `acc` have `M` rows,
        // and values `count` rows of a head.
        unsafe {
            let values = std::slice::from_raw_parts(values.cast::<i8>(), count * head_dim);
            let acc = std::slice::from_raw_parts_mut(acc.add(row * width), head_dim);
            add_values(ISA, &*weights.add(row), *worth.add(row), values, acc);
        }
    }
}

multiversion! {
    fn add_values(weights: &Bytes, worth: f32, values: &[i8], acc: &mut [f32]) {
        let mut sums = [0i32; super::super::cache::MAX_CODES];
        let sums = &mut sums[..acc.len()];
        for (i, values) in values.chunks_exact(acc.len()).enumerate() {
            let weight = 256 * i32::from(weights[0][i]) + i32::from(weights[1][i]);
            for (sum, &value) in sums.iter_mut().zip(values) {
                *sum += weight * i32::from(value);
            }
        }
        for (acc, &sum) in acc.iter_mut().zip(&*sums) {
            *acc = (sum as f32).mul_add(worth, *acc);
        }
    }
}

/// Lists the kernels for as many rows as AMX tiles take.
macro_rules! table {
    ($function:ident: $($m:literal)*) => { [$($function::<$m>),*] };
}

pub(super) static SCORES: [ScoresFn; 32] = table!(scores:
    1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32);
pub(super) static SUMS: [SumsFn; 32] = table!(sums:
    1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32);
