//! Scores of few query rows, with keys as they lie in the cache.

use std::arch::asm;
use std::arch::x86_64::_mm512_storeu_ps;
use std::mem::MaybeUninit;

use super::{BLOCK, ROWS, Source};
use crate::amx::shape_few;
use crate::attention::transpose::{LANES, avx512};

/// Scores of a block of keys and up to 16 query rows, keys row by row. The scores that a
/// tile has stored are read back once other tiles have been multiplied.
#[repr(C, align(64))]
struct Turned([f32; BLOCK * ROWS]);

/// See [`super::FewScoresFn`].
///
/// # Safety
/// The conditions of [`super::FewScoresFn`]; the process may use AMX.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(super) unsafe fn scores(
    source: &mut Source<'_>,
    queries: *const u32,
    rows: usize,
    room: *mut u8,
    scores: *mut [f32; BLOCK],
) {
    let groups = source.rows.len().div_ceil(LANES);
    let mut turned = MaybeUninit::<Turned>::uninit();
    let turned = turned.as_mut_ptr().cast::<f32>();
    // SAFETY: the process may use AMX.
    unsafe { shape_few(rows) };
    for (group, keys) in source.rows.chunks(LANES).enumerate() {
        // SAFETY: rows lie in the cache, `room` holds 16; queries hold 16 rows.
        unsafe {
            let from = source.together(keys, room);
            let to = turned.add(group * LANES * ROWS);
            multiply(from, source.row_bytes, queries, to);
        }
        source.asking.until(group + 1, groups);
    }
    for group in 0..groups {
        // SAFETY: scores of this group were stored; scores hold a block.
        unsafe {
            let from = turned.add(group * LANES * ROWS);
            turn(from, rows, scores, group * LANES);
        }
    }
}

/// Multiplies 16 keys by few query rows; the scores of neighbouring keys lie a whole tile's
/// row apart.
#[inline(always)]
unsafe fn multiply(keys: *const u8, row_bytes: usize, queries: *const u32, out: *mut f32) {
    // SAFETY: the caller's promise: tiles hold 16 rows, and the pointers are valid
    // for whole tiles.
    unsafe {
        asm!(
            "tilezero tmm0",
            "2:",
            "tileloadd tmm2, [{keys} + {row_bytes}]",
            "tileloadd tmm1, [{queries} + {row}]",
            "tdpbf16ps tmm0, tmm2, tmm1",
            "add {keys}, 64",
            "add {queries}, 1024",
            "dec {blocks}",
            "jnz 2b",
            "tilestored [{out} + {row}], tmm0",
            keys = inout(reg) keys => _,
            row_bytes = in(reg) row_bytes,
            queries = inout(reg) queries => _,
            blocks = inout(reg) row_bytes / 64 => _,
            out = in(reg) out,
            row = in(reg) 64_usize,
            out("tmm0") _, out("tmm1") _, out("tmm2") _,
            options(nostack),
        );
    }
}

/// Writes columns of 16 keys' scores as rows of `scores`, from position `first` on.
#[inline(always)]
unsafe fn turn(turned: *const f32, rows: usize, scores: *mut [f32; BLOCK], first: usize) {
    let keys: [*const u32; LANES] =
        std::array::from_fn(|key| turned.wrapping_add(key * ROWS).cast());
    for four in (0..rows).step_by(4) {
        // SAFETY: `turned` holds 16 columns of 16 keys; scores hold `rows` rows.
        unsafe {
            let columns = avx512::quarter(&keys, four);
            for (row, column) in (four..rows).zip(columns) {
                let to = (*scores.add(row)).as_mut_ptr().add(first);
                _mm512_storeu_ps(to, std::arch::x86_64::_mm512_castsi512_ps(column));
            }
        }
    }
}
