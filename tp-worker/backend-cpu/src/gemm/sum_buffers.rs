//! Rooms where tiles keep the sums of long prompts between slices.
//!
//! A thread goes through all slices of a group of panels and blocks before it begins the
//! next group. So each thread has room for the largest group alone, which stays nearer than
//! the sums of a whole product would.

use super::cut::{Cut, TILE_PANEL_GROUP, TILE_ROWS_GROUP, block_height, tile_group, tile_passes};
use super::tile::{Aside, LANES, PANEL};
use super::tiles::{BLOCK_STEPS, Input, Tiles};
use super::widen::SLICE;
use crate::formats::Format;
use crate::partition::Shared;

/// Words of the sums of a panel and a block.
const SUMS: usize = PANEL * PANEL;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Most blocks for which the room of every number of blocks is computed.
const COUNTED_BLOCKS: usize = 1 << 14;

/// The rooms of a product's threads, one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rooms {
    threads: usize,
    /// Panels (full ones) and blocks of the largest group. Both are 0 where there is one
    /// slice, as a tile's own working memory is enough then.
    panels: usize,
    blocks: usize,
}

impl Rooms {
    /// Rooms for the sums of `rows` rows and a matrix of `[outputs, inputs]`; `None` where
    /// tiles keep no sums aside. A product with a bias, and one whose result lies across
    /// lines of the cache, has rooms and does not use them.
    pub(super) fn new(
        threads: usize,
        tiles: &Tiles,
        format: &dyn Format,
        rows: usize,
        [outputs, inputs]: [usize; 2],
    ) -> Option<Self> {
        let steps = format.steps(inputs);
        let keeps = tiles.input == Input::Blocks
            && rows >= TILE_ROWS_GROUP
            && steps > 0
            && steps.is_multiple_of(BLOCK_STEPS)
            && outputs.is_multiple_of(LANES);
        let sliced = steps > SLICE / format.step_words();
        keeps.then(|| match sliced {
            true => Self::of_groups(threads, outputs, rows, block_height(tiles, rows)),
            false => Self {
                threads,
                panels: 0,
                blocks: 0,
            },
        })
    }

    /// Rooms for a group of a chunk's panels and one of its blocks.
    fn of_groups(threads: usize, outputs: usize, rows: usize, height: usize) -> Self {
        let blocks = rows.div_ceil(height);
        let passes = tile_passes(threads, blocks, height);
        let cut = Cut::new(threads, outputs.div_ceil(PANEL), blocks, passes);
        let (panels, blocks) = cut.chunk(0);
        // Sums of a last panel that is not full are with the result.
        let full = panels.end.min(outputs / PANEL);
        Self {
            threads,
            panels: full.saturating_sub(panels.start).min(TILE_PANEL_GROUP),
            blocks: blocks.len().min(tile_group(height)),
        }
    }

    /// Words of all rooms.
    pub(super) fn words(&self) -> usize {
        let room = self.panels.saturating_mul(self.blocks * SUMS);
        room.saturating_mul(self.threads)
    }

    /// Start of the sums of a full panel and a block, both counted from the first of the
    /// thread's group.
    fn place(&self, thread: usize, [panel, block]: [usize; 2]) -> usize {
        let fits = thread < self.threads && panel < self.panels && block < self.blocks;
        assert!(fits, "a group that is larger than its thread's room");
        ((thread * self.panels + panel) * self.blocks + block) * SUMS
    }
}

/// Rooms, and the memory that they lie in.
pub(super) struct Sums<'a> {
    rooms: Rooms,
    words: Shared<'a, f32>,
}

impl<'a> Sums<'a> {
    /// Lays the rooms in `words`, which are as many as the rooms say.
    pub(super) fn new(rooms: Rooms, words: &'a mut [u32]) -> Self {
        assert!(words.len() == rooms.words(), "memory as large as the rooms");
        Self {
            rooms,
            words: Shared::new(bytemuck::cast_slice_mut(words)),
        }
    }

    /// The place where a tile of a full panel keeps its sums. Panel and block are counted
    /// from the first of the thread's group.
    pub(super) fn aside(&self, thread: usize, place: [usize; 2], complete: bool) -> Aside {
        let sums = match self.words.len() {
            0 => std::ptr::null_mut(),
            // SAFETY: places lie inside the rooms, as they check themselves, and
            // the memory is as large as these.
            _ => unsafe { self.words.as_ptr().add(self.rooms.place(thread, place)) },
        };
        Aside { sums, complete }
    }
}

/// Returns true if whole lines of the cache can be written to a result.
pub(super) fn is_aligned(out: &[f32]) -> bool {
    out.as_ptr().addr().is_multiple_of(LINE)
}

/// The most words of rooms for products of up to `rows` rows. Fewer rows may take more
/// words, where their cut leaves a thread larger groups.
pub(super) fn most_words(
    threads: usize,
    tiles: &Tiles,
    format: &dyn Format,
    rows: usize,
    matrix: [usize; 2],
) -> usize {
    let words = |rows| Rooms::new(threads, tiles, format, rows, matrix).map_or(0, |r| r.words());
    let (height, blocks) = (tiles.rows(), rows.div_ceil(tiles.rows()));
    if words(rows) == 0 {
        return 0;
    }
    if blocks > COUNTED_BLOCKS {
        // All rooms together are no larger than the sums of the whole product.
        let share = matrix[0].div_ceil(PANEL).div_ceil(threads);
        return blocks.saturating_mul(share.saturating_mul(threads * SUMS));
    }
    let counts = 1..=blocks;
    counts
        .map(|blocks| words(rows.min(blocks * height)))
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
