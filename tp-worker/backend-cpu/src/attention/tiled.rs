//! Query rows against a block of a bf16 cache in AMX tiles.
//!
//! Few rows read keys as they lie in the cache: 16 keys are the rows of a tile, and the
//! columns of the product are query rows. A product commutes, so these are the bits that
//! more rows get from keys turned around once for all of them. Values of two positions are
//! woven into pairs for both. These kernels take heads of whole tiles; other heads go through
//! the tiles of the matrix products, with the same bits.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod keys;
#[cfg(target_arch = "x86_64")]
mod values;

use super::cache::{CpuKvCache, Data};
use super::cells::BLOCK;
use super::direct::Source;
use super::prefetch::Asking;
use crate::gemm::{Input, Tiles};
use crate::isa::Isa;

/// Columns of a tile of keys; heads are a multiple of this.
const COLUMNS: usize = 32;
/// Rows that a tile holds.
pub(super) const ROWS: usize = 16;

/// Query rows of a tile, and the number of rows in memory ([`Height::padded`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Height {
    /// Room for all rows of a tile follows the last of them.
    Padded(usize),
    /// Data of other rows follows the last row.
    Exact(usize),
}

impl Height {
    /// Rows that are packed and multiplied.
    pub(super) fn padded(self) -> usize {
        match self {
            Self::Padded(rows) => rows.next_multiple_of(ROWS),
            Self::Exact(rows) => rows,
        }
    }
}

/// `out[r][i]` of query row `r` and the first `count` positions or more, from
/// packed queries and turned keys of `blocks` times 32 columns.
///
/// # Safety
/// The machine runs the table's instruction set; queries and scores hold the
/// padded height, which is at most 32 rows.
type ScoresFn = unsafe fn(
    queries: *const u32,
    keys: *const u32,
    blocks: usize,
    count: usize,
    height: Height,
    scores: *mut [f32; BLOCK],
);

/// Computes scores like [`ScoresFn`] for the first `rows` rows, at most 16, with keys from
/// the cache, and queries packed as pairs, `[inputs][16 rows]`. `room` holds 16 rows of the
/// cache.
///
/// # Safety
/// The conditions of [`ScoresFn`]; the source's rows lie in the cache.
type FewScoresFn = unsafe fn(
    source: &mut Source<'_>,
    queries: *const u32,
    rows: usize,
    room: *mut u8,
    scores: *mut [f32; BLOCK],
);

/// Weaves the values at `rows` of the cache into panels, followed by zeros up to a whole
/// tile.
///
/// # Safety
/// The conditions of [`FewScoresFn`]; `out` holds a block.
type WeaveFn = unsafe fn(cache: &CpuKvCache, rows: &[usize], out: *mut u32, asking: Asking<'_>);

/// Adds weights, in the form that the softmax leaves, times woven values of the first
/// `count` positions to `acc`. Rows of `acc` are `width` apart.
///
/// The kernel goes on to the next multiple of 32 positions, as far as values were woven.
/// Weights of positions that a row does not see are zero, so such values must be finite. A
/// token's value that is not finite makes NaN of earlier rows of its request, if they share
/// a task with the token and attend to these 32 positions. The tiles of the matrix products
/// stop at the last pair that one of their rows sees, so they do that to fewer rows. Only
/// with such values do tasks and the emulation show in the bits.
///
/// # Safety
/// The conditions of [`ScoresFn`].
type SumsFn = unsafe fn(
    weights: *const u32,
    values: *const u32,
    count: usize,
    height: Height,
    acc: *mut f32,
    width: usize,
);

/// Adds weights times values like [`SumsFn`] for `rows` rows, 1 to 16, and at least one
/// position. Weights are `[2][rows][16 pairs]`, and only these rows of `acc` are touched.
///
/// # Safety
/// The machine runs the table's instruction set; weights, values and `acc` hold the
/// rows and a block.
type FewSumsFn = unsafe fn(
    weights: *const u32,
    values: *const u32,
    count: usize,
    rows: usize,
    acc: *mut f32,
    width: usize,
);

/// Kernels of one instruction set.
pub(super) struct Tiled {
    pub scores: ScoresFn,
    pub few_scores: FewScoresFn,
    pub weave: WeaveFn,
    pub sums: SumsFn,
    pub few_sums: FewSumsFn,
}

#[cfg(target_arch = "x86_64")]
static AMX: Option<Tiled> = Some(Tiled {
    scores: amx::scores,
    few_scores: keys::scores,
    weave: values::weave,
    sums: amx::sums,
    few_sums: amx::few_sums,
});

#[cfg(not(target_arch = "x86_64"))]
static AMX: Option<Tiled> = None;

/// Returns true if tiles read this cache as it lies, or if their emulation gives the same
/// bits: tasks are cut alike then.
pub(super) fn fits(isa: Isa, tiles: &Tiles, cache: &CpuKvCache) -> bool {
    matches!(isa, Isa::Amx | Isa::AmxEmulated)
        && matches!(cache.data, Data::Bf16(_))
        && tiles.input == Input::Blocks
        && cache.is_in_units_of(COLUMNS)
}

/// The kernels for the type that a cache holds; `None` if there are none.
pub(super) fn select(isa: Isa, tiles: &Tiles, cache: &CpuKvCache) -> Option<&'static Tiled> {
    let fits = isa == Isa::Amx && fits(isa, tiles, cache);
    AMX.as_ref().filter(|_| fits)
}
