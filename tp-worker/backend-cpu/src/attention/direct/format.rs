//! The types that rows of the cache hold, and the operations on 16 lanes that read them.

use std::marker::PhantomData;

use crate::attention::transpose::LANES;

/// Operations on 16 lanes of one instruction set.
///
/// # Safety
/// The methods use instructions of that set: call them only, inlined, from a
/// function compiled for it, with pointers valid for what they read and write.
pub(super) trait Simd {
    /// 16 f32.
    type Sum: Copy;
    /// 16 words of 4 bytes, or f32 as bits.
    type Words: Copy;
    unsafe fn zero() -> Self::Sum;
    unsafe fn load(from: *const f32) -> Self::Sum;
    unsafe fn store(to: *mut f32, sum: Self::Sum);
    /// Four words from `word` on of 16 rows, one result per word.
    unsafe fn quarter(rows: &[*const u32; LANES], word: usize) -> [Self::Words; 4];
    /// 16 consecutive words.
    unsafe fn words(from: *const u8) -> Self::Words;
    /// 16 consecutive codes as f32.
    unsafe fn codes(from: *const u8) -> Self::Words;
    /// The lower half of each word, a bf16, as f32.
    unsafe fn low(words: Self::Words) -> Self::Words;
    /// The upper half of each word, a bf16, as f32.
    unsafe fn high(words: Self::Words) -> Self::Words;
    /// Byte `index` of each word, a code, as f32.
    unsafe fn code(words: Self::Words, index: usize) -> Self::Words;
    /// `sum + input · words`, the f32 `input` for all lanes, where `ROWS` rows have sums.
    unsafe fn fma<const ROWS: usize>(
        sum: Self::Sum,
        input: *const u32,
        words: Self::Words,
    ) -> Self::Sum;
}

/// Conversion of words of keys and rows of values to operands.
///
/// # Safety
/// The conditions of [`Simd`].
pub(super) trait Format {
    type Simd: Simd;
    /// Operands in a word of a key, as many as inputs of a query.
    const KEY_PARTS: usize;
    /// Number of positions whose values one input of weights covers.
    const POSITIONS: usize;
    /// One operand, made of a word of each of 16 positions.
    unsafe fn key(words: Words<Self>, part: usize) -> Words<Self>;
    /// One of two operands of 32 columns of a row. With two positions an operand holds
    /// columns of the next row too.
    unsafe fn value(row: *const u8, next: *const u8, column: usize, half: usize) -> Words<Self>;
    /// `sum + input · part`, where `ROWS` rows have sums.
    unsafe fn dot<const ROWS: usize>(
        sum: Sum<Self>,
        input: *const u32,
        part: Words<Self>,
    ) -> Sum<Self>;
}

pub(super) type Sum<F> = <<F as Format>::Simd as Simd>::Sum;
pub(super) type Words<F> = <<F as Format>::Simd as Simd>::Words;

/// Rows of f32.
pub(super) struct F32<S>(PhantomData<S>);
/// Rows of bf16; sums hold the even columns first.
pub(super) struct Bf16<S>(PhantomData<S>);
/// Rows of 8-bit codes.
pub(super) struct Int8<S>(PhantomData<S>);

impl<S: Simd> Format for F32<S> {
    type Simd = S;
    const KEY_PARTS: usize = 1;
    const POSITIONS: usize = 1;

    #[inline(always)]
    unsafe fn key(words: S::Words, _: usize) -> S::Words {
        words
    }
    #[inline(always)]
    unsafe fn value(row: *const u8, _: *const u8, column: usize, half: usize) -> S::Words {
        // SAFETY: the caller's promise.
        unsafe { S::words(row.add(4 * (column + half * LANES))) }
    }
    #[inline(always)]
    unsafe fn dot<const ROWS: usize>(sum: S::Sum, input: *const u32, part: S::Words) -> S::Sum {
        // SAFETY: the caller's promise.
        unsafe { S::fma::<ROWS>(sum, input, part) }
    }
}

impl<S: Simd> Format for Bf16<S> {
    type Simd = S;
    const KEY_PARTS: usize = 2;
    const POSITIONS: usize = 1;

    #[inline(always)]
    unsafe fn key(words: S::Words, part: usize) -> S::Words {
        // SAFETY: the caller's promise.
        unsafe {
            if part == 0 {
                S::low(words)
            } else {
                S::high(words)
            }
        }
    }
    #[inline(always)]
    unsafe fn value(row: *const u8, _: *const u8, column: usize, half: usize) -> S::Words {
        // SAFETY: the caller's promise.
        unsafe { Self::key(S::words(row.add(2 * column)), half) }
    }
    #[inline(always)]
    unsafe fn dot<const ROWS: usize>(sum: S::Sum, input: *const u32, part: S::Words) -> S::Sum {
        // SAFETY: the caller's promise.
        unsafe { S::fma::<ROWS>(sum, input, part) }
    }
}

impl<S: Simd> Format for Int8<S> {
    type Simd = S;
    const KEY_PARTS: usize = 4;
    const POSITIONS: usize = 1;

    #[inline(always)]
    unsafe fn key(words: S::Words, part: usize) -> S::Words {
        // SAFETY: the caller's promise.
        unsafe { S::code(words, part) }
    }
    #[inline(always)]
    unsafe fn value(row: *const u8, _: *const u8, column: usize, half: usize) -> S::Words {
        // SAFETY: the caller's promise.
        unsafe { S::codes(row.add(column + half * LANES)) }
    }
    #[inline(always)]
    unsafe fn dot<const ROWS: usize>(sum: S::Sum, input: *const u32, part: S::Words) -> S::Sum {
        // SAFETY: the caller's promise.
        unsafe { S::fma::<ROWS>(sum, input, part) }
    }
}
