//! Packs the codes of a block in the order in which they are multiplied.

use std::arch::x86_64::{
    __m512i, _mm512_loadu_si512, _mm512_set1_epi32, _mm512_storeu_si512, _mm512_unpackhi_epi8,
    _mm512_unpackhi_epi16, _mm512_unpacklo_epi8, _mm512_unpacklo_epi16, _mm512_xor_si512,
};

use super::super::cells::BLOCK;
use super::super::prefetch::Ahead;
use super::super::transpose::{LANES, avx512, keys_at};
use super::{CODES, COLUMNS, CpuKvCache};

/// Turns signed codes into unsigned ones.
pub(super) const FLIP: i32 = 0x8080_8080_u32.cast_signed();
/// Words that are turned around at once.
pub(super) const WORDS: usize = 4;
/// Vectors of a position's columns, once four positions are woven together.
const VECTORS: usize = COLUMNS / LANES;

/// Packs the codes of `rows` in words of four, plus 128 each:
/// `[words of a row][64 positions]`. Words past the rows' last 16 positions keep their old
/// content. Asks for the next block meanwhile.
///
/// # Safety
/// The machine runs AVX-512; there are rows, which lie in the cache; `out`
/// holds 64 rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(super) unsafe fn keys(cache: &CpuKvCache, rows: &[usize], out: *mut u32, ahead: &mut Ahead) {
    // SAFETY: compiled for it; forwarded to the caller.
    unsafe { turned::<FLIP>(cache, rows, out, ahead) };
}

/// Packs keys like [`keys`], but leaves the codes signed.
///
/// # Safety
/// The conditions of [`keys`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(super) unsafe fn signed_keys(
    cache: &CpuKvCache,
    rows: &[usize],
    out: *mut u32,
    ahead: &mut Ahead,
) {
    // SAFETY: compiled for it; forwarded to the caller.
    unsafe { turned::<0>(cache, rows, out, ahead) };
}

#[inline(always)]
unsafe fn turned<const FLIPPED: i32>(
    cache: &CpuKvCache,
    rows: &[usize],
    out: *mut u32,
    ahead: &mut Ahead,
) {
    let (data, bytes) = cache.bytes();
    // SAFETY: the caller runs AVX-512.
    let flip = unsafe { _mm512_set1_epi32(FLIPPED) };
    for (group, rows) in rows.chunks(LANES).enumerate() {
        let from = keys_at(rows, |row| data.wrapping_add(row * bytes));
        for word in (0..bytes / CODES).step_by(WORDS) {
            // SAFETY: rows lie in the cache and hold these words.
            let columns = unsafe { avx512::quarter(&from, word) };
            for (i, column) in columns.into_iter().enumerate() {
                let at = (word + i) * BLOCK + group * LANES;
                // SAFETY: `out` holds 64 rows of as many words.
                unsafe {
                    _mm512_storeu_si512(out.add(at).cast(), _mm512_xor_si512(column, flip));
                }
            }
        }
        ahead.fetch(cache, LANES);
    }
}

/// Packs the codes of four positions of a column in a word:
/// `[64 columns each][16 times 4 positions][64 columns]`, columns in the order of
/// `Order::Quads`. Positions past the last repeat it. Asks for the next block meanwhile.
///
/// # Safety
/// The conditions of [`keys`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(super) unsafe fn values(cache: &CpuKvCache, rows: &[usize], out: *mut u32, ahead: &mut Ahead) {
    let (data, bytes) = cache.bytes();
    let data = data.wrapping_add(cache.values_after() * bytes);
    for (group, rows) in rows.chunks(CODES).enumerate() {
        let last = rows[rows.len() - 1];
        let from: [*const u8; CODES] = std::array::from_fn(|i| {
            let row = rows.get(i).copied().unwrap_or(last);
            data.wrapping_add(row * bytes)
        });
        for part in 0..bytes / COLUMNS {
            // SAFETY: rows lie in the cache and hold these columns.
            let woven = unsafe {
                let from = from.map(|row| row.wrapping_add(part * COLUMNS));
                [half_weave::<0>(from), half_weave::<1>(from)]
            };
            for (i, &vector) in woven.as_flattened().iter().enumerate() {
                let at = (part * BLOCK / CODES + group) * VECTORS + i;
                // SAFETY: `out` holds 64 rows of as many columns.
                unsafe { _mm512_storeu_si512(out.add(at * LANES).cast(), vector) };
            }
        }
        ahead.fetch(cache, CODES);
    }
}

/// Weaves half `H` of 64 columns of four rows: a word holds one column of all four.
///
/// # Safety
/// Inlined in a function compiled for AVX-512; rows are readable.
#[inline(always)]
pub(super) unsafe fn half_weave<const H: usize>(
    rows: [*const u8; CODES],
) -> [__m512i; VECTORS / 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let [a, b, c, d] = rows.map(|row| _mm512_loadu_si512(row.cast()));
        let (ab, cd) = if H == 0 {
            (_mm512_unpacklo_epi8(a, b), _mm512_unpacklo_epi8(c, d))
        } else {
            (_mm512_unpackhi_epi8(a, b), _mm512_unpackhi_epi8(c, d))
        };
        [_mm512_unpacklo_epi16(ab, cd), _mm512_unpackhi_epi16(ab, cd)]
    }
}
