//! Cuts a product among threads, and a thread's chunk into groups.

use std::ops::Range;

use super::tiles::Tiles;
use crate::partition::share;

/// Parts of a thread's work where panels pass by once.
const CHUNKS_PER_THREAD: usize = 4;
/// Fewest parts of a thread's work where panels pass by more often.
const LEAST_CHUNKS: usize = 2;
/// Shares count as even if the largest has at most one block in this number too many.
const UNEVEN: usize = 16;
/// Panels that share one pass over a group of row blocks.
const PANEL_GROUP: usize = 4;

/// Panels and rows that share a pass over the weights of a format.
pub(crate) struct InputGroups {
    /// Panels that share one pass over a group of row blocks.
    pub panels: usize,
    /// Rows of a group: they keep their steps of a slice in the second-level cache beside the
    /// slice.
    pub rows: usize,
    /// True if the inputs of many rows fill the caches. Then panels pass by for each group of
    /// rows.
    pub large: bool,
}

/// Groups of inputs of four bytes. Their rows fill five eighths of a mebibyte.
pub(crate) static FLOAT_GROUPS: InputGroups = InputGroups {
    panels: PANEL_GROUP,
    rows: 144,
    large: true,
};

/// Groups of inputs of one byte. Their steps are a quarter as long, so a usual chunk of a
/// prompt reads weights from memory once.
pub(crate) static INTEGER_GROUPS: InputGroups = InputGroups {
    panels: 1,
    rows: 528,
    large: false,
};

/// Groups of inputs of two bytes.
pub(crate) static WIDE_GROUPS: InputGroups = InputGroups {
    panels: 1,
    rows: 264,
    large: false,
};

/// Rows that pass over a slice of weights where tiles multiply weights. Their inputs fill
/// half of the second-level cache of processors with tiles.
pub(super) const TILE_ROWS_GROUP: usize = 256;
/// Panels that pass a group of rows before the next slice does. Their sums are a mebibyte,
/// too, and are cheaper to read again than inputs.
pub(super) const TILE_PANEL_GROUP: usize = 32;

/// A product's chunks: some panels times some blocks of rows each, disjoint and together the
/// whole product. The first chunk is as large as any.
pub(super) struct Cut {
    threads: usize,
    panels: usize,
    blocks: usize,
    /// Number of parts that rows are cut into for good. If there is more than one part,
    /// panels are cut into `panel_shares` parts for good, too.
    row_shares: usize,
    panel_shares: usize,
    passes: Passes,
    /// Parts of the panels that a thread takes in one pass.
    parts: usize,
}

/// Number of times that panels pass by, each time for some of the blocks.
#[derive(Clone, Copy)]
pub(super) struct Passes {
    count: usize,
    /// Groups of threads with passes of their own, as many passes for each group.
    groups: usize,
}

impl Passes {
    /// Passes in which all threads take part, with panels of their own.
    pub(super) fn of_all(count: usize) -> Self {
        Self { count, groups: 1 }
    }

    /// Passes of tiles. As many threads as can share `blocks` evenly have passes of their
    /// own, with all panels. A pass reads weights once either way, but a thread's own inputs
    /// go through its caches, where the thread may have packed them.
    fn apart(threads: usize, blocks: usize, count: usize) -> Self {
        let fullest = |groups: usize| -> usize {
            let passes = 0..count / groups;
            passes.map(|pass| share(blocks, count, pass).len()).sum()
        };
        let groups = (1..=threads.min(count)).rev().find(|&groups| {
            threads.is_multiple_of(groups)
                && count.is_multiple_of(groups)
                && fullest(groups) * groups * UNEVEN <= blocks * (UNEVEN + 1)
        });
        let groups = groups.unwrap_or(1);
        Self { count, groups }
    }

    /// Passes of one thread.
    fn own(self) -> usize {
        self.count / self.groups
    }
}

impl Cut {
    /// Cuts `panels` panels times `blocks` blocks.
    pub(super) fn new(threads: usize, panels: usize, blocks: usize, passes: Passes) -> Self {
        let (row_shares, panel_shares) = shares(threads, blocks, panels);
        Self {
            threads,
            panels,
            blocks,
            row_shares,
            panel_shares,
            passes,
            parts: CHUNKS_PER_THREAD
                .div_ceil(passes.count)
                .max(LEAST_CHUNKS.div_ceil(passes.own())),
        }
    }

    /// Number of chunks. Where there are more chunks than threads, a thread that the machine
    /// disturbs leaves its last chunks to the others.
    pub(super) fn chunks(&self) -> usize {
        match self.row_shares {
            1 => self.threads * self.parts * self.passes.own(),
            _ => self.threads,
        }
    }

    /// Panels and blocks of one chunk.
    pub(super) fn chunk(&self, index: usize) -> (Range<usize>, Range<usize>) {
        if self.row_shares > 1 {
            return (
                share(self.panels, self.panel_shares, index % self.panel_shares),
                share(self.blocks, self.row_shares, index / self.panel_shares),
            );
        }
        let (parts, passes) = (self.parts, self.passes.own());
        let (thread, index) = (index / (parts * passes), index % (parts * passes));
        let (pass, part) = (index / parts, index % parts);
        let sharing = self.threads / self.passes.groups;
        let (group, thread) = (thread / sharing, thread % sharing);
        (
            chunk(self.panels, sharing, parts, thread * parts + part),
            share(self.blocks, self.passes.count, group * passes + pass),
        )
    }
}

/// Rows of every block but the last. Blocks have about the same height: a low block wastes
/// registers.
pub(super) fn block_height(tiles: &Tiles, rows: usize) -> usize {
    rows.div_ceil(rows.div_ceil(tiles.rows()))
}

/// Blocks of a group of rows where tiles multiply weights.
pub(super) fn tile_group(height: usize) -> usize {
    (TILE_ROWS_GROUP / height).max(1)
}

/// Passes of weights that tiles multiply: one for each group of [`tile_group`] blocks.
pub(super) fn tile_passes(threads: usize, blocks: usize, height: usize) -> Passes {
    let count = blocks.div_ceil(tile_group(height)).max(1);
    Passes::apart(threads, blocks, count)
}

/// The groups of a chunk in the order in which a thread computes them, each of up to
/// `[panel_group, block_group]` panels and blocks.
pub(super) fn groups(
    (panels, blocks): (Range<usize>, Range<usize>),
    [panel_group, block_group]: [usize; 2],
) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    blocks.clone().step_by(block_group).flat_map(move |block| {
        let (panels, end) = (panels.clone(), panels.end);
        let blocks = block..blocks.end.min(block + block_group);
        panels
            .step_by(panel_group)
            .map(move |panel| (panel..end.min(panel + panel_group), blocks.clone()))
    })
}

/// Panels of part `index` of `threads · parts`. Each thread's parts make up its even share.
/// Parts are cut at whole groups of panels where that leaves shares even.
fn chunk(panels: usize, threads: usize, parts: usize, index: usize) -> Range<usize> {
    let groups = panels.div_ceil(PANEL_GROUP);
    let even = groups.is_multiple_of(threads) || groups >= 16 * threads;
    let unit = if even { PANEL_GROUP } else { 1 };
    let own = share(panels.div_ceil(unit), threads, index / parts);
    let part = share(own.len(), parts, index % parts);
    let bound = |at: usize| ((own.start + at) * unit).min(panels);
    bound(part.start)..bound(part.end)
}

/// Numbers of parts that rows and panels are cut into. Returns the cut with the smallest
/// largest part; of equal ones the cut with fewer row parts, as cutting panels reads each
/// weight once.
fn shares(threads: usize, blocks: usize, panels: usize) -> (usize, usize) {
    let largest = |rows: usize| blocks.div_ceil(rows) * panels.div_ceil(threads / rows);
    let cuts = (1..=threads.min(blocks)).filter(|rows| threads.is_multiple_of(*rows));
    let rows = cuts.min_by_key(|&rows| (largest(rows), rows)).unwrap_or(1);
    (rows, threads / rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_all_panels_once_and_give_threads_even_shares() {
        for threads in [1, 2, 3, 64] {
            for panels in [0, 1, 7, 28, 36, 64, 304, 1_000, 4_748] {
                let cut = |i| chunk(panels, threads, CHUNKS_PER_THREAD, i);
                let parts: Vec<_> = (0..threads * CHUNKS_PER_THREAD).map(cut).collect();
                let all: Vec<usize> = parts.iter().cloned().flatten().collect();
                assert_eq!(all, (0..panels).collect::<Vec<_>>());
                let shares = parts.chunks(CHUNKS_PER_THREAD);
                let shares = shares.map(|parts| parts.iter().map(Range::len).sum::<usize>());
                let most = shares.max().unwrap();
                let even = panels.div_ceil(threads);
                assert!(
                    most <= even + even / 12,
                    "{most} of {panels} for one of {threads}"
                );
            }
        }
    }

    #[test]
    fn groups_cover_a_product_once_and_the_first_chunk_is_as_large_as_any() {
        for threads in [1, 2, 3, 4, 6, 12] {
            for panels in [0, 1, 2, 5, 7, 36, 97] {
                for (blocks, passes) in [(0, 1), (1, 1), (5, 1), (9, 2), (24, 4), (33, 5)] {
                    for passes in [
                        Passes::of_all(passes),
                        Passes::apart(threads, blocks, passes),
                    ] {
                        covers(&Cut::new(threads, panels, blocks, passes), panels, blocks);
                    }
                }
            }
        }
    }

    fn covers(cut: &Cut, panels: usize, blocks: usize) {
        let size = |(panels, blocks): &(Range<usize>, Range<usize>)| (panels.len(), blocks.len());
        let (most_panels, most_blocks) = size(&cut.chunk(0));
        let mut found = vec![0; panels * blocks];
        for chunk in (0..cut.chunks()).map(|index| cut.chunk(index)) {
            let (of_panels, of_blocks) = size(&chunk);
            assert!(of_panels <= most_panels && of_blocks <= most_blocks);
            for (group, of_blocks) in groups(chunk, [4, 3]) {
                assert!(group.len() <= 4 && of_blocks.len() <= 3);
                for panel in group {
                    let blocks = of_blocks.clone().map(|block| panel * blocks + block);
                    blocks.for_each(|tile| found[tile] += 1);
                }
            }
        }
        assert!(found.iter().all(|&times| times == 1));
    }

    #[test]
    fn threads_that_can_have_passes_of_their_own() {
        let cases = [
            (2, 16, 2, 2),
            (2, 17, 3, 1),
            (4, 16, 2, 2),
            (6, 32, 4, 2),
            (16, 64, 8, 8),
            (4, 31, 4, 4),
            // One of two groups would have five of nine blocks, one of four would have seven
            // of 25.
            (2, 9, 2, 1),
            (4, 25, 4, 2),
        ];
        for (threads, blocks, count, groups) in cases {
            let passes = Passes::apart(threads, blocks, count);
            assert_eq!((passes.groups, passes.own()), (groups, count / groups));
        }
        // Each thread goes through all panels with its own rows.
        let cut = Cut::new(2, 64, 16, Passes::apart(2, 16, 2));
        let of = |thread: usize| {
            let share = cut.chunks() / 2;
            (thread * share..(thread + 1) * share).map(|index| cut.chunk(index))
        };
        for thread in 0..2 {
            assert!(of(thread).all(|(_, blocks)| blocks == (8 * thread..8 * thread + 8)));
            assert_eq!(
                of(thread).map(|(panels, _)| panels.len()).sum::<usize>(),
                64
            );
        }
    }
}
