//! Query rows against a block of an 8-bit cache, in whole numbers.
//!
//! Queries are 16-bit integers with one scale a row; weights are too, with one scale a row
//! and block. Where codes are multiplied four at a time as they are, queries and weights are
//! taken apart into an upper and a lower byte. AVX2 widens codes and multiplies two at a
//! time. Sums of products are exact: only the rounding beforehand, and the order in which
//! blocks are added up, shows in the bits.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod emulated;
#[cfg(target_arch = "x86_64")]
mod few;
#[cfg(target_arch = "x86_64")]
mod kernel;
#[cfg(target_arch = "x86_64")]
mod pack;
mod query;
#[cfg(target_arch = "x86_64")]
mod tiles;

use super::cache::{CpuKvCache, Data};
use super::cells::BLOCK;
use super::direct::{Order, Source};
use super::prefetch::Ahead;
use super::softmax::{Bytes, Rows};
use super::tiled::ROWS as TILE_ROWS;
#[cfg(target_arch = "x86_64")]
use super::transpose::LANES;
use crate::gemm::{Input, Tiles};
use crate::isa::Isa;

pub(super) use query::{Layout, pack_query, query_words};

/// Columns of values that are packed together; heads are a multiple of this.
pub(super) const COLUMNS: usize = 64;
/// Codes in a word of the cache.
pub(super) const CODES: usize = 4;

/// Packs the keys or the values at `rows` of the cache and asks for the next
/// block meanwhile.
///
/// # Safety
/// The machine runs the table's instruction set; there are rows, which lie in
/// the cache; `out` holds a word for each code of 64 of them.
pub(super) type PackFn =
    unsafe fn(cache: &CpuKvCache, rows: &[usize], out: *mut u32, ahead: &mut Ahead);

/// `scores[r][i]` of query row `r` and the first `count` positions or more, from
/// packed queries and keys of `words` words.
///
/// # Safety
/// The machine runs the table's instruction set; queries and scores hold as
/// many rows as the function is for.
pub(super) type ScoresFn = unsafe fn(
    queries: *const u32,
    keys: *const u32,
    words: usize,
    count: usize,
    scores: *mut [f32; BLOCK],
);

/// Turns raw scores into weights times `scales`, and writes the value of the integer 1 among
/// each row's weights.
///
/// # Safety
/// The machine runs the table's instruction set.
pub(super) type WeighFn =
    unsafe fn(rows: Rows<'_>, scales: &[f32; BLOCK], out: &mut [Bytes], worth: &mut [f32]);

/// Adds weights of the first `count` positions times packed values to `acc`,
/// whose rows are `width` apart.
///
/// # Safety
/// The conditions of [`ScoresFn`]; weights lie as words do.
pub(super) type SumsFn = unsafe fn(
    weights: *const Bytes,
    worth: *const f32,
    values: *const u32,
    count: usize,
    head_dim: usize,
    acc: *mut f32,
    width: usize,
);

/// Kernel like [`ScoresFn`], with keys from the cache.
///
/// # Safety
/// The conditions of [`ScoresFn`]; the source's rows lie in the cache.
pub(super) type FewScoresFn =
    unsafe fn(source: &mut Source<'_>, queries: *const u32, scores: *mut [f32; BLOCK]);

/// Kernel like [`SumsFn`], with values from the cache.
///
/// # Safety
/// The conditions of [`FewScoresFn`].
pub(super) type FewSumsFn = unsafe fn(
    source: &mut Source<'_>,
    weights: *const Bytes,
    worth: *const f32,
    acc: *mut f32,
    width: usize,
);

/// Kernels of one instruction set. Kernels over rows are a list for 1, 2, … rows.
pub(super) struct Integers {
    pub pack_keys: PackFn,
    pub pack_values: PackFn,
    pub scores: &'static [ScoresFn],
    pub weigh: WeighFn,
    pub sums: &'static [SumsFn],
    /// Kernels for so few rows that packing is not worth it.
    pub few: &'static [(FewScoresFn, FewSumsFn)],
    /// Layouts of packed queries: of many rows, and of few.
    pub layouts: [Layout; 2],
    /// Multiple of rows that a key head gets room for.
    pub unit: usize,
    /// The order in which sums hold columns.
    pub order: Order,
}

#[cfg(target_arch = "x86_64")]
static AVX2: Integers = Integers {
    pack_keys: avx2::keys,
    pack_values: avx2::values,
    scores: &avx2::SCORES,
    weigh: avx2::weigh,
    sums: &avx2::SUMS,
    few: &avx2::FEW,
    layouts: [Layout::Widened; 2],
    unit: 1,
    order: Order::Plain,
};

#[cfg(target_arch = "x86_64")]
static AVX512: Integers = Integers {
    pack_keys: pack::keys,
    pack_values: pack::values,
    scores: &kernel::SCORES,
    weigh: super::softmax::avx512_bf16::integers,
    sums: &kernel::SUMS,
    few: &few::ROWS,
    layouts: [Layout::SideBySide(1); 2],
    unit: TILE_ROWS,
    order: Order::Quads,
};

#[cfg(target_arch = "x86_64")]
static AMX: Integers = Integers {
    pack_keys: pack::signed_keys,
    pack_values: pack::values,
    scores: &tiles::SCORES,
    weigh: super::softmax::avx512_bf16::integers,
    sums: &tiles::SUMS,
    few: &tiles::FEW,
    layouts: [Layout::Tiles, Layout::SideBySide(LANES)],
    unit: TILE_ROWS,
    order: Order::Quads,
};

static EMULATED: Integers = Integers {
    pack_keys: emulated::keys,
    pack_values: emulated::values,
    scores: &emulated::SCORES,
    weigh: emulated::weigh,
    sums: &emulated::SUMS,
    few: &[],
    layouts: [Layout::SideBySide(1); 2],
    unit: TILE_ROWS,
    order: Order::Plain,
};

/// The kernels for the type that a cache holds; `None` if there are none.
pub(super) fn select(isa: Isa, tiles: &Tiles, cache: &CpuKvCache) -> Option<&'static Integers> {
    let integers = match (isa, &cache.data) {
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2, Data::Int8(..)) if tiles.input == Input::Rounded => &AVX2,
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512Bf16, Data::Int8(..))
            if tiles.input == Input::Pairs && std::arch::is_x86_feature_detected!("avx512vnni") =>
        {
            &AVX512
        }
        #[cfg(target_arch = "x86_64")]
        (Isa::Amx, Data::Int8(..)) if tiles.input == Input::Blocks => &AMX,
        (Isa::AmxEmulated, Data::Int8(..)) if tiles.input == Input::Blocks => &EMULATED,
        _ => return None,
    };
    let fits = cache.is_in_units_of(COLUMNS) && tiles.rows() <= integers.sums.len();
    fits.then_some(integers)
}
