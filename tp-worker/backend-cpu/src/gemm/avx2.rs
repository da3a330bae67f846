//! AVX2 tiles: 16 lanes are two registers; bf16 is widened in registers.

use std::arch::asm;
use std::arch::x86_64::{
    __m256, _mm256_and_si256, _mm256_castsi256_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_slli_epi32,
    _mm256_storeu_ps,
};

use super::tile::{Dot, Tile, tile};
use super::tiles::{Tiles, tiles};

type Lanes = [__m256; 2];

/// Operations that both element types share.
macro_rules! common {
    () => {
        type Acc = Lanes;
        type B = Lanes;

        #[inline(always)]
        unsafe fn zero() -> Lanes {
            // SAFETY: the caller runs AVX2.
            unsafe { [_mm256_setzero_ps(); 2] }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Lanes {
            // SAFETY: the caller's promise.
            unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
        }
        #[inline(always)]
        unsafe fn store(to: *mut f32, acc: Lanes) {
            // SAFETY: the caller's promise.
            unsafe {
                _mm256_storeu_ps(to, acc[0]);
                _mm256_storeu_ps(to.add(8), acc[1]);
            }
        }
    };
}

/// Operations of tiles that leave loading rows' values to the compiler.
macro_rules! values {
    () => {
        type A = __m256;

        #[inline(always)]
        unsafe fn a(from: *const u32) -> __m256 {
            // SAFETY: the caller's promise.
            unsafe { _mm256_set1_ps(*from.cast::<f32>()) }
        }
        #[inline(always)]
        unsafe fn dot(acc: Lanes, a: __m256, b: Lanes) -> Lanes {
            // SAFETY: the caller runs AVX2 with FMA.
            unsafe {
                [
                    _mm256_fmadd_ps(a, b[0], acc[0]),
                    _mm256_fmadd_ps(a, b[1], acc[1]),
                ]
            }
        }
    };
}

pub(super) struct F32;

impl Dot for F32 {
    const INPUTS: usize = 1;
    common!();
    values!();

    #[inline(always)]
    unsafe fn b(from: *const u32, _: usize) -> Lanes {
        // SAFETY: the caller's promise.
        unsafe { Self::load(from.cast()) }
    }
}

/// Tiles of up to [`FEW_ROWS`] rows.
struct Bf16;

/// The earlier (part 0) or later values of 8 pairs.
#[inline(always)]
unsafe fn widen(from: *const u32, part: usize) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let pairs = _mm256_loadu_si256(from.cast());
        _mm256_castsi256_ps(if part == 0 {
            _mm256_slli_epi32::<16>(pairs)
        } else {
            _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32.cast_signed()))
        })
    }
}

impl Dot for Bf16 {
    const INPUTS: usize = 2;
    common!();
    values!();

    #[inline(always)]
    unsafe fn b(from: *const u32, part: usize) -> Lanes {
        // SAFETY: the caller's promise.
        unsafe { [widen(from, part), widen(from.add(8), part)] }
    }
}

/// Tiles of more rows.
struct Bf16Rows;

impl Dot for Bf16Rows {
    const INPUTS: usize = 2;
    type A = *const u32;
    common!();

    #[inline(always)]
    unsafe fn a(from: *const u32) -> *const u32 {
        from
    }
    #[inline(always)]
    unsafe fn dot(acc: Lanes, a: *const u32, b: Lanes) -> Lanes {
        // SAFETY: the caller runs AVX2 with FMA, and its promise.
        unsafe { multiply_add(acc, a, b) }
    }
    #[inline(always)]
    unsafe fn b(from: *const u32, part: usize) -> Lanes {
        // SAFETY: the caller's promise.
        unsafe { Bf16::b(from, part) }
    }
}

/// Most rows for which registers have room for values that the compiler loads early.
pub(crate) const FEW_ROWS: usize = 4;

/// `acc + row · b`, for the f32 at `row` and more rows than [`FEW_ROWS`].
///
/// Sums, widened weights and one value of a row take 15 of the 16 registers. Left to itself,
/// the compiler loads rows' values early, and moves sums to the stack and back in between:
/// tiles of five and six rows then take twice the time. With fewer rows this function was
/// slower, as every row needs an address of its own.
///
/// # Safety
/// The machine runs AVX2 and FMA; `row` is readable.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) unsafe fn multiply_add(acc: Lanes, row: *const u32, b: Lanes) -> Lanes {
    let [mut low, mut high] = acc;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "vbroadcastss {value}, dword ptr [{row}]",
            "vfmadd231ps {low}, {value}, {b_low}",
            "vfmadd231ps {high}, {value}, {b_high}",
            row = in(reg) row,
            b_low = in(ymm_reg) b[0],
            b_high = in(ymm_reg) b[1],
            value = out(ymm_reg) _,
            low = inout(ymm_reg) low,
            high = inout(ymm_reg) high,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    [low, high]
}

#[target_feature(enable = "avx2,fma")]
unsafe fn f32_tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the caller's promise; compiled for AVX2.
    unsafe { tile::<F32, M, P, H>(work) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn bf16_tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: as above.
    unsafe {
        if M > FEW_ROWS {
            tile::<Bf16Rows, M, P, H>(work);
        } else {
            tile::<Bf16, M, P, H>(work);
        }
    }
}

pub(crate) static TILES_F32: Tiles = tiles!(F32, f32_tile: [1 2 3 4 5 6], [1 : 2], [2 2 1 1 1 1]);
pub(crate) static TILES_BF16: Tiles =
    tiles!(Rounded, bf16_tile: [1 2 3 4 5 6], [1 : 2], [2 2 1 1 1 1]);
