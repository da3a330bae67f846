//! Slices of bf16 weights widened to f32, and of 4-bit weights to 8-bit ones, for tiles that
//! would otherwise widen them again and again.

use super::quantized;
use super::tile::PANEL;
use super::tiles::Tiles;
use crate::formats::Packed;
use crate::isa::Isa;
use crate::multiversion::multiversion;

/// Words of a panel that blocks of rows pass at once. With the slice that is asked for they
/// are a quarter of a mebibyte, far below any second-level cache; tiles read from there as
/// fast as they multiply. With slices that fit in the first-level cache, a tile would spend
/// a tenth of its time on loading and storing sums, which lie far apart in the result.
pub(super) const SLICE: usize = 32_768;

/// Room for one widened slice, and the tiles that read it.
pub(super) struct Widened {
    tiles: &'static Tiles,
    values: Values,
}

/// Aligned to cache lines, so that no register is read across two.
#[repr(align(64))]
struct Values([u32; SLICE]);

impl Widened {
    pub(super) fn new(tiles: &'static Tiles) -> Self {
        Self {
            tiles,
            values: Values([0; SLICE]),
        }
    }

    /// Widens 4-bit weights to 8-bit ones, or pairs of bf16, `[steps][32]`, to f32,
    /// `[2 · steps][32]`.
    pub(super) fn widen(
        &mut self,
        isa: Isa,
        element: Packed,
        narrow: &[u32],
    ) -> (&[u32], &'static Tiles) {
        let values = &mut self.values.0;
        let len = if element == Packed::Int4 {
            let len = narrow.len() / Packed::Int4.step_words() * Packed::Int8.step_words();
            quantized::widen(isa, narrow, &mut values[..len]);
            len
        } else {
            let len = 2 * narrow.len();
            widen(isa, narrow, std::hint::black_box(PANEL), &mut values[..len]);
            len
        };
        (&values[..len], self.tiles)
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
