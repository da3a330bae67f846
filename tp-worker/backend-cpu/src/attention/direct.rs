//! Query rows against a block read straight from the cache.
//!
//! Values lie in the cache in the order that weighted sums read, so packing them is never
//! worth it where these kernels exist. Keys are turned around a few at a time and used at
//! once where query rows are as few as a decoding request's; for more rows keys are better
//! turned once and packed. Each score and each weighted sum is the same chain of
//! multiply-adds as in the tiles over packed blocks, so a token's bits do not show which
//! kernel attended it.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
mod format;
mod kernel;
#[cfg(target_arch = "aarch64")]
mod neon;

use crate::gemm::{Input, Tiles};
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::prefetch::near;

use super::cache::{CpuKvCache, Data};
use super::cells::BLOCK;
#[cfg(target_arch = "x86_64")]
use super::cells::is_run;
use super::prefetch::Asking;
#[cfg(target_arch = "x86_64")]
use super::transpose::LANES;

/// Bytes of a cache line, which come at once.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Columns of an accumulator pair; heads are a multiple of this.
pub(super) const COLUMNS: usize = 32;

/// A block of one request and the rows to ask for next, as cache rows.
pub(super) struct Source<'a> {
    /// Row 0 of the cache.
    pub data: *const u8,
    /// Bytes from one row to the next.
    pub row_bytes: usize,
    pub head_dim: usize,
    /// The block's rows.
    pub rows: &'a [usize],
    /// Rows to ask for meanwhile.
    pub asking: Asking<'a>,
    /// Rows to add for values.
    pub values_after: usize,
    /// Rows of the cache.
    #[cfg(target_arch = "x86_64")]
    pub all_rows: usize,
}

impl Source<'_> {
    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> *const u8 {
        self.data.wrapping_add(row * self.row_bytes)
    }

    /// Brings 16 keys, the block's from `first` on, into the first-level cache:
    /// tiles load slowly from any other.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn bring(&self, first: usize) {
        let rows = &self.rows[first.min(self.rows.len())..];
        for &row in &rows[..LANES.min(rows.len())] {
            for line in (0..self.row_bytes).step_by(LINE) {
                near(self.row(row).wrapping_add(line));
            }
        }
    }

    /// The address of up to 16 rows of keys and of the rows behind them, 16 in all. The rows
    /// are used where they lie if each follows the one before, and are copied to `room`
    /// otherwise. `room` keeps its old content behind them.
    ///
    /// # Safety
    /// The rows lie in the cache, and `room` holds 16 of them.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) unsafe fn together(&self, rows: &[usize], room: *mut u8) -> *const u8 {
        let first = rows[0];
        if first + LANES <= self.all_rows && is_run(rows) {
            return self.row(first);
        }
        for (index, &row) in rows.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe {
                let to = room.add(index * self.row_bytes);
                to.copy_from_nonoverlapping(self.row(row), self.row_bytes);
            }
        }
        room
    }
}

/// `scores[r][i]` of query row `r` and position `i`, from queries packed as for
/// a tile: `[inputs][rows]`.
///
/// # Safety
/// The machine runs the table's instruction set; the source's rows lie in the
/// cache; queries and scores hold as many rows as the function is for.
pub(super) type ScoresFn =
    unsafe fn(&mut Source<'_>, queries: *const u32, scores: *mut [f32; BLOCK]);

/// Adds weights, packed row by row, times values to `acc`, whose rows are
/// `width` apart and hold the columns in the order of [`Direct::order`].
///
/// # Safety
/// The conditions of [`ScoresFn`].
pub(super) type SumsFn =
    unsafe fn(&mut Source<'_>, weights: *const [u32; BLOCK], acc: *mut f32, width: usize);

/// The order in which sums hold 32 columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Columns in their own order.
    Plain,
    /// The even columns first, then the odd columns.
    EvenOdd,
    /// Groups of four columns that are 16 apart lie one behind the other, in every 64
    /// columns.
    #[cfg(target_arch = "x86_64")]
    Quads,
    /// The first four columns of every eight come first, then the others.
    Fours,
}

impl Order {
    /// Copies columns to `out` in their own order.
    pub(super) fn restore(self, acc: &[f32], out: &mut [f32]) {
        match self {
            Self::Plain => out.copy_from_slice(acc),
            Self::EvenOdd => {
                let parts = acc.as_chunks::<COLUMNS>().0.iter();
                for (acc, out) in parts.zip(out.as_chunks_mut::<COLUMNS>().0) {
                    for i in 0..COLUMNS / 2 {
                        (out[2 * i], out[2 * i + 1]) = (acc[i], acc[COLUMNS / 2 + i]);
                    }
                }
            }
            Self::Fours => {
                let parts = acc.as_chunks::<COLUMNS>().0.iter();
                for (acc, out) in parts.zip(out.as_chunks_mut::<COLUMNS>().0) {
                    let (first, others) = acc.split_at(COLUMNS / 2);
                    let fours = first.chunks_exact(4).zip(others.chunks_exact(4));
                    for (out, (first, others)) in out.chunks_exact_mut(8).zip(fours) {
                        out[..4].copy_from_slice(first);
                        out[4..].copy_from_slice(others);
                    }
                }
            }
            #[cfg(target_arch = "x86_64")]
            Self::Quads => {
                let parts = acc.as_chunks::<{ 2 * COLUMNS }>().0.iter();
                for (acc, out) in parts.zip(out.as_chunks_mut::<{ 2 * COLUMNS }>().0) {
                    for (i, four) in acc.as_chunks::<4>().0.iter().enumerate() {
                        let column = i % 4 * 16 + i / 4 * 4;
                        out[column..column + 4].copy_from_slice(four);
                    }
                }
            }
        }
    }
}

/// Kernels for 1, 2, … rows of one instruction set and type of cache.
pub(super) struct Direct {
    /// Kernels of scores, up to the number of rows for which turning keys around is worth
    /// it.
    pub scores: &'static [ScoresFn],
    /// Kernels of sums, up to the number of rows that a tile has.
    pub sums: &'static [SumsFn],
    pub order: Order,
}

/// The kernels of a module for the type that a cache holds.
macro_rules! of_type {
    ($data:ident, $module:ident) => {
        match $data {
            Data::Bf16(_) => &$module::BF16_ROWS,
            Data::F32(_) => &$module::F32_ROWS,
            Data::Int8(..) => &$module::INT8_ROWS,
        }
    };
}

/// The kernels that agree with `tiles`; `None` for plain Rust, which has the tiles alone.
pub(super) fn select(isa: Isa, tiles: &Tiles, cache: &CpuKvCache) -> Option<&'static Direct> {
    if tiles.input == Input::Blocks {
        return None;
    }
    let direct = match (isa.vectors(), &cache.data) {
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512Bf16, Data::Bf16(_)) if tiles.input == Input::Pairs => &avx512_bf16::BF16_ROWS,
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512Bf16, Data::Int8(..)) if tiles.input == Input::Pairs => &avx512_bf16::INT8_ROWS,
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512 | Isa::Avx512Bf16, data) => {
            of_type!(data, avx512)
        }
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2, data) => of_type!(data, avx2),
        #[cfg(target_arch = "aarch64")]
        (Isa::Neon, data) => of_type!(data, neon),
        _ => return None,
    };
    let fits = cache.is_in_units_of(COLUMNS) && tiles.rows() <= direct.sums.len();
    fits.then_some(direct)
}
