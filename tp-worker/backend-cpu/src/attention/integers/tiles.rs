//! The products in AMX tiles: 64 codes times 16 rows and 16 columns at a time, in
//! whole numbers of 32 bits. Upper and lower bytes have sums of their own.

use std::arch::asm;
use std::arch::x86_64::{
    __m512, __m512i, _mm512_add_epi32, _mm512_castps_si512, _mm512_castsi512_ps,
    _mm512_cvtepi32_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mul_ps,
    _mm512_set1_ps, _mm512_slli_epi32, _mm512_storeu_ps, _mm512_storeu_si512,
};
use std::mem::MaybeUninit;

use super::super::cells::BLOCK;
use super::super::transpose::{LANES, avx512};
use super::pack::half_weave;
use super::{Bytes, CODES, COLUMNS, FewScoresFn, FewSumsFn, ScoresFn, Source, SumsFn};
use crate::amx::shape;

/// Rows of a tile.
const ROWS: usize = 16;
/// Words of a tile.
const TILE: usize = ROWS * LANES;
/// Bytes of a row of 16 words, and of one of 64.
const ROW: usize = LANES * 4;
const WIDE: usize = BLOCK * 4;
/// Vectors of 64 columns.
const VECTORS: usize = COLUMNS / LANES;

/// Sums of the upper and of the lower bytes, for a block of positions or 64 columns.
#[repr(C, align(64))]
struct Sums([u32; VECTORS * 2 * TILE]);

/// 64 columns of values of 64 positions, woven.
#[repr(C, align(64))]
struct Woven([u32; BLOCK / CODES * COLUMNS]);

/// Defines a loop of `tdp` products that share one of two operands. The other operand is the
/// upper and the lower bytes.
macro_rules! products {
    ($name:ident, $tdp:literal, [$($first:literal)*], [$($second:literal)*]) => {
        /// Multiplies `blocks` times 64 codes. The shared operand lies at `shared`, with
        /// rows `shared_row` and blocks `shared_block` bytes apart. The bytes at `upper` and
        /// `lower` have strides of their own.
        #[inline(always)]
        unsafe fn $name(work: &Work, out: *mut u32) {
            // SAFETY: the caller's promise: tiles hold 16 rows, and the pointers
            // are valid for as many, and for all blocks.
            unsafe {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "2:",
                    "tileloadd tmm6, [{shared} + {shared_row}]",
                    "tileloadd tmm4, [{upper} + {row}]",
                    concat!($tdp, " tmm0, ", $($first,)* ),
                    "tileloadd tmm5, [{lower} + {row}]",
                    concat!($tdp, " tmm1, ", $($second,)* ),
                    "add {shared}, {shared_block}",
                    "add {upper}, {block}",
                    "add {lower}, {block}",
                    "dec {blocks}",
                    "jnz 2b",
                    "tilestored [{out} + {line}], tmm0",
                    "tilestored [{out} + {line} + 1024], tmm1",
                    shared = inout(reg) work.shared => _,
                    shared_row = in(reg) work.shared_row,
                    shared_block = in(reg) work.shared_block,
                    upper = inout(reg) work.upper => _,
                    lower = inout(reg) work.lower => _,
                    row = in(reg) work.row,
                    block = in(reg) work.block,
                    blocks = inout(reg) work.blocks => _,
                    out = in(reg) out,
                    line = in(reg) ROW,
                    out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
                    options(nostack),
                );
            }
        }
    };
}

/// Operands of one product; rows and blocks in bytes.
struct Work {
    shared: *const u8,
    shared_row: usize,
    shared_block: usize,
    upper: *const u8,
    lower: *const u8,
    row: usize,
    block: usize,
    blocks: usize,
}

// Rows of the first operand become rows of the sums.
products!(shared_rows, "tdpbssd", ["tmm6, tmm4"], ["tmm6, tmm5"]);
products!(shared_columns, "tdpbssd", ["tmm4, tmm6"], ["tmm5, tmm6"]);
products!(weighted, "tdpbusd", ["tmm4, tmm6"], ["tmm5, tmm6"]);

/// Row `row` of the upper and the lower sums, joined in one, in f32.
#[inline(always)]
unsafe fn whole(sums: *const u32, row: usize) -> __m512 {
    // SAFETY: the caller's promise: two tiles; the machine runs AVX-512.
    unsafe {
        let upper: __m512i = _mm512_loadu_si512(sums.add(row * LANES).cast());
        let lower = _mm512_loadu_si512(sums.add(TILE + row * LANES).cast());
        _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32::<8>(upper), lower))
    }
}

/// See [`ScoresFn`], for `M` rows, packed in blocks of whole tiles of rows.
///
/// # Safety
/// The conditions of [`ScoresFn`]; the process may use AMX.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn scores<const M: usize>(
    queries: *const u32,
    keys: *const u32,
    words: usize,
    count: usize,
    scores: *mut [f32; BLOCK],
) {
    let rows = M.next_multiple_of(ROWS);
    let mut sums = MaybeUninit::<Sums>::uninit();
    let sums = sums.as_mut_ptr().cast::<u32>();
    // SAFETY: the caller's promise.
    unsafe {
        shape(2 * ROWS);
        let scales = queries.add(2 * words * rows).cast::<f32>();
        for position in (0..count).step_by(LANES) {
            for first in (0..M).step_by(ROWS) {
                let upper = queries.add(first * LANES).cast::<u8>();
                let work = Work {
                    shared: keys.add(position).cast(),
                    shared_row: WIDE,
                    shared_block: LANES * WIDE,
                    upper,
                    lower: upper.add(rows * ROW),
                    row: ROW,
                    block: 2 * rows * ROW,
                    blocks: words / LANES,
                };
                shared_columns(&work, sums);
                for row in first..M.min(first + ROWS) {
                    let scale = _mm512_set1_ps(*scales.add(row));
                    let to = (*scores.add(row)).as_mut_ptr().add(position);
                    _mm512_storeu_ps(to, _mm512_mul_ps(whole(sums, row - first), scale));
                }
            }
        }
    }
}

/// See [`SumsFn`], for `M` rows.
///
/// # Safety
/// The conditions of [`SumsFn`]; the process may use AMX; weights have whole tiles of rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn sums<const M: usize>(
    weights: *const Bytes,
    worth: *const f32,
    values: *const u32,
    _: usize,
    head_dim: usize,
    acc: *mut f32,
    width: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        shape(2 * ROWS);
        for part in 0..head_dim / COLUMNS {
            let values = values.add(part * BLOCK / CODES * COLUMNS);
            let acc = acc.add(part * COLUMNS);
            columns::<M>(weights, worth, values, acc, width);
        }
    }
}

/// Adds weights times 64 columns of woven values.
#[inline(always)]
unsafe fn columns<const M: usize>(
    weights: *const Bytes,
    worth: *const f32,
    values: *const u32,
    acc: *mut f32,
    width: usize,
) {
    let mut sums = MaybeUninit::<Sums>::uninit();
    let all = sums.as_mut_ptr().cast::<u32>();
    for first in (0..M).step_by(ROWS) {
        for vector in 0..VECTORS {
            // SAFETY: the caller's promise.
            unsafe {
                let upper = weights.add(first).cast::<u8>();
                let work = Work {
                    shared: values.add(vector * LANES).cast(),
                    shared_row: WIDE,
                    shared_block: 0,
                    upper,
                    lower: upper.add(BLOCK),
                    row: size_of::<Bytes>(),
                    block: 0,
                    blocks: 1,
                };
                weighted(&work, all.add(vector * 2 * TILE));
            }
        }
        // Sums that a tile has stored are read back once other tiles have been multiplied.
        for vector in 0..VECTORS {
            // SAFETY: as above; sums of this vector were stored.
            unsafe {
                let sums = all.add(vector * 2 * TILE);
                for row in first..M.min(first + ROWS) {
                    let worth = _mm512_set1_ps(*worth.add(row));
                    let at = acc.add(row * width + vector * LANES);
                    let sum = whole(sums, row - first);
                    _mm512_storeu_ps(at, _mm512_fmadd_ps(sum, worth, _mm512_loadu_ps(at)));
                }
            }
        }
    }
}

/// See [`FewScoresFn`], for `M` rows, packed side by side in rows of 16. Codes are rows of a
/// tile as they lie in the cache.
///
/// # Safety
/// The conditions of [`FewScoresFn`]; the process may use AMX.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn few_scores<const M: usize>(
    source: &mut Source<'_>,
    queries: *const u32,
    scores: *mut [f32; BLOCK],
) {
    let (words, groups) = (source.row_bytes / CODES, source.rows.len().div_ceil(LANES));
    let mut sums = MaybeUninit::<Sums>::uninit();
    let all = sums.as_mut_ptr().cast::<u32>();
    let mut room = MaybeUninit::<Room>::uninit();
    let room = room.as_mut_ptr().cast::<u8>();
    // SAFETY: the caller's promise; `room` holds 16 rows of any head.
    unsafe {
        shape(2 * ROWS);
        let scales = _mm512_loadu_ps(queries.add(2 * words * ROWS).cast());
        source.bring(0);
        for (group, keys) in source.rows.chunks(LANES).enumerate() {
            source.bring((group + 1) * LANES);
            let work = Work {
                shared: source.together(keys, room),
                shared_row: source.row_bytes,
                shared_block: BLOCK,
                upper: queries.cast(),
                lower: queries.add(words * ROWS).cast(),
                row: ROW,
                block: ROWS * ROW,
                blocks: words / LANES,
            };
            shared_rows(&work, all.add(group * 2 * TILE));
            source.asking.until(group + 1, groups);
        }
        for group in 0..groups {
            let sums = all.add(group * 2 * TILE);
            for key in 0..LANES {
                let scaled = _mm512_mul_ps(whole(sums, key), scales);
                let to = sums.add(key * LANES).cast();
                _mm512_storeu_si512(to, _mm512_castps_si512(scaled));
            }
            turn::<M>(sums, scores, group * LANES);
        }
    }
}

/// 16 rows of codes.
#[repr(C, align(64))]
struct Room([u8; ROWS * super::super::cache::MAX_CODES]);

/// Writes columns of 16 keys' scores as rows of `scores`, from position `first` on.
#[inline(always)]
unsafe fn turn<const M: usize>(turned: *const u32, scores: *mut [f32; BLOCK], first: usize) {
    let keys = std::array::from_fn(|key| turned.wrapping_add(key * ROWS));
    for four in (0..M).step_by(4) {
        // SAFETY: `turned` holds 16 columns of 16 keys; scores hold `M` rows.
        unsafe {
            for (row, column) in (four..M).zip(avx512::quarter(&keys, four)) {
                let to = (*scores.add(row)).as_mut_ptr().add(first);
                _mm512_storeu_ps(to, _mm512_castsi512_ps(column));
            }
        }
    }
}

/// See [`FewSumsFn`], for `M` rows.
///
/// # Safety
/// The conditions of [`FewSumsFn`]; the process may use AMX; weights have whole tiles of rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn few_sums<const M: usize>(
    source: &mut Source<'_>,
    weights: *const Bytes,
    worth: *const f32,
    acc: *mut f32,
    width: usize,
) {
    let parts = source.head_dim / COLUMNS;
    let groups = source.rows.len().div_ceil(CODES);
    // Stale numbers are finite, and their weights are zero.
    let mut woven = Woven([0; BLOCK / CODES * COLUMNS]);
    for part in 0..parts {
        for (group, rows) in source.rows.chunks(CODES).enumerate() {
            source
                .asking
                .until(part * groups + group + 1, parts * groups);
            // Positions past the last repeat it; their weights are zero.
            let last = rows[rows.len() - 1];
            let from: [*const u8; CODES] = std::array::from_fn(|i| {
                let row = rows.get(i).copied().unwrap_or(last) + source.values_after;
                source.row(row).wrapping_add(part * COLUMNS)
            });
            // SAFETY: rows lie in the cache and hold these columns.
            let vectors = unsafe { [half_weave::<0>(from), half_weave::<1>(from)] };
            for (i, &vector) in vectors.as_flattened().iter().enumerate() {
                let at = (group * VECTORS + i) * LANES;
                // SAFETY: a group takes four vectors of 16 groups.
                unsafe { _mm512_storeu_si512(woven.0.as_mut_ptr().add(at).cast(), vector) };
            }
        }
        // SAFETY: forwarded to the caller.
        unsafe {
            shape(2 * ROWS);
            let acc = acc.add(part * COLUMNS);
            columns::<M>(weights, worth, woven.0.as_ptr(), acc, width);
        }
    }
}

macro_rules! table {
    ($function:ident: $($m:literal)*) => { [$($function::<$m>),*] };
}

/// Lists the kernels for one tile of rows.
macro_rules! few {
    ($($m:literal)*) => { [$((few_scores::<$m>, few_sums::<$m>)),*] };
}

pub(super) static SCORES: [ScoresFn; 32] = table!(scores:
    1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32);
pub(super) static SUMS: [SumsFn; 32] = table!(sums:
    1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32);
pub(super) static FEW: [(FewScoresFn, FewSumsFn); ROWS] =
    few!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16);
