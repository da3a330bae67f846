//! Slices of bf16 weights widened to f32, and of 4-bit weights to 8-bit ones, for tiles that
//! would otherwise widen them again and again.

use super::quantized;
use super::tile::PANEL;
use super::tiles::Tiles;
use crate::isa::Isa;
use crate::multiversion::multiversion;

/// Words of a panel that blocks of rows pass at once. With the slice that is asked for they
/// are a quarter of a mebibyte, far below any second-level cache; tiles read from there as
/// fast as they multiply. With slices that fit in the first-level cache, a tile would spend
/// a tenth of its time on loading and storing sums, which lie far apart in the result.
pub(super) const SLICE: usize = 32_768;

/// Blocks of rows from which on widening a slice once costs less than widening it for every
/// block.
const BLOCKS: usize = 4;
/// Blocks from which on AVX2 widens slices: 16 registers hold sums and widened weights
/// there.
const AVX2_BLOCKS: usize = 3;
/// Blocks from which on 4-bit slices are widened: widening them once saves more.
const INT4_BLOCKS: usize = 3;

/// The way in which the slices of a format are widened.
pub(crate) struct Widening {
    /// 4-byte words of a step.
    pub narrow_words: usize,
    /// 4-byte words of a widened step.
    pub step_words: usize,
    /// Returns the number of blocks of rows from which on a slice is widened.
    pub blocks: fn(Isa) -> usize,
    /// Widens whole steps.
    pub widen: fn(Isa, &[u32], &mut [u32]),
}

/// Pairs of bf16, `[steps][32]`, become f32, `[2 · steps][32]`.
pub(crate) static WIDEN_BF16: Widening = Widening {
    narrow_words: PANEL,
    step_words: 2 * PANEL,
    blocks: |isa| match isa {
        Isa::Avx2 => AVX2_BLOCKS,
        _ => BLOCKS,
    },
    widen: |isa, narrow, wide| widen(isa, narrow, std::hint::black_box(PANEL), wide),
};

/// 4-bit weights become 8-bit ones.
pub(crate) static WIDEN_INT4: Widening = Widening {
    narrow_words: quantized::INT4_WORDS,
    step_words: quantized::INT8_WORDS,
    blocks: |_| INT4_BLOCKS,
    widen: quantized::widen,
};

/// Room for one widened slice, and the tiles that read it.
pub(super) struct Widened<'w> {
    tiles: &'static Tiles,
    widening: &'w Widening,
    values: Values,
}

/// Aligned to cache lines, so that no register is read across two.
#[repr(align(64))]
struct Values([u32; SLICE]);

impl<'w> Widened<'w> {
    pub(super) fn new((tiles, widening): (&'static Tiles, &'w Widening)) -> Self {
        Self {
            tiles,
            widening,
            values: Values([0; SLICE]),
        }
    }

    /// Widens the steps of a slice.
    pub(super) fn widen(&mut self, isa: Isa, narrow: &[u32]) -> (&[u32], &'static Tiles) {
        let Widening {
            narrow_words,
            step_words,
            widen,
            ..
        } = self.widening;
        let values = &mut self.values.0[..narrow.len() / narrow_words * step_words];
        widen(isa, narrow, values);
        (values, self.tiles)
    }
}

multiversion! {
    /// Widens pairs of bf16. `panel` is always 32. If the compiler knew that, it would
    /// gather across steps instead of going along them, which is ten times slower.
    fn widen(pairs: &[u32], panel: usize, values: &mut [u32]) {
        let steps = values.chunks_exact_mut(2 * panel);
        for (pairs, values) in pairs.chunks_exact(panel).zip(steps) {
            let (earlier, later) = values.split_at_mut(panel);
            for ((earlier, later), pair) in earlier.iter_mut().zip(later).zip(pairs) {
                *earlier = pair << 16;
                *later = pair & 0xffff_0000;
            }
        }
    }
}
