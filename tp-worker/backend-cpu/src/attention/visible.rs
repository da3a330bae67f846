//! Positions that queries see.
//!
//! [`AttentionShape::visible`] is the rule. Everything here follows from it: the positions of
//! one query, the bounds that a task's queries share, and the part of a block.

use std::ops::Range;

use lockstep_backend::{AttentionShape, Row};

use super::cells::BLOCK;
use super::tree::TreeMask;

/// Positions of a block that a query sees, from `start` to before `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Visible {
    pub start: usize,
    pub end: usize,
}

impl Visible {
    /// All of a block.
    #[cfg(target_arch = "x86_64")]
    pub(crate) const ALL: Self = Self {
        start: 0,
        end: BLOCK,
    };
    /// No position.
    pub(crate) const NOTHING: Self = Self { start: 0, end: 0 };

    /// The part of `seen` that lies in `block`.
    pub(crate) fn of(seen: &Range<usize>, block: &Range<usize>) -> Self {
        let (start, end) = (seen.start.max(block.start), seen.end.min(block.end));
        if start >= end {
            return Self::NOTHING;
        }
        Self {
            start: start - block.start,
            end: end - block.start,
        }
    }

    /// The first `count` positions of a block.
    pub(crate) fn first(count: usize) -> Self {
        Self {
            start: 0,
            end: count,
        }
    }

    /// Returns true if the query sees nothing of the block.
    #[inline(always)]
    pub(crate) fn is_nothing(self) -> bool {
        self.end == 0
    }

    /// A bit for each position of the block, set if the query sees it.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn bits(self) -> u64 {
        let below = |count: usize| match count {
            BLOCK.. => u64::MAX,
            _ => (1 << count) - 1,
        };
        below(self.end) & !below(self.start)
    }

    /// A word for each position of the block: ones if the query sees it, zeros if not.
    #[inline(always)]
    pub(crate) fn words(self) -> Words {
        Words {
            below_end: below(self.end),
            below_start: below(self.start),
        }
    }
}

/// Words of [`Visible::words`].
#[derive(Clone, Copy)]
pub(crate) struct Words {
    below_end: &'static [u32; BLOCK],
    below_start: &'static [u32; BLOCK],
}

impl Words {
    /// The word of a position.
    #[inline(always)]
    pub(crate) fn at(self, position: usize) -> u32 {
        self.below_end[position] & !self.below_start[position]
    }
}

/// Ones, followed by zeros. The words of the positions below `n` begin at `BLOCK − n`.
static BELOW: [u32; 2 * BLOCK] = {
    let mut below = [0; 2 * BLOCK];
    let mut i = 0;
    while i < BLOCK {
        below[i] = u32::MAX;
        i += 1;
    }
    below
};

/// Ones for the first `count` positions of a block, zeros for others.
#[inline(always)]
fn below(count: usize) -> &'static [u32; BLOCK] {
    BELOW[BLOCK - count..]
        .first_chunk()
        .expect("as many follow")
}

/// Positions that each new token of a row sees.
pub(super) struct Sight<'a> {
    shape: &'a AttentionShape,
    cached: usize,
    mask: Option<TreeMask<'a>>,
}

impl<'a> Sight<'a> {
    /// The sight of `row`, one of a batch with these masks.
    pub(super) fn new(shape: &'a AttentionShape, row: &Row, masks: &'a [u64]) -> Self {
        Self {
            shape,
            cached: row.kv_len as usize,
            mask: row.mask.map(|mask| TreeMask::new(masks, mask, row)),
        }
    }

    /// Positions that new token `query` sees. New tokens that a mask shows are numbered from
    /// the cached ones on, one after the other.
    pub(super) fn of(&self, query: usize) -> Range<usize> {
        let new = match &self.mask {
            Some(mask) => mask.tokens(query).count(),
            None => query + 1,
        };
        self.shape.visible(self.cached + new)
    }
}

/// Bounds of what `queries` of `row` see before and up to themselves; a mask may show them
/// anything between none and all of the new tokens.
fn ends(row: &Row, queries: &Range<usize>) -> Range<usize> {
    let cached = row.kv_len as usize;
    match row.mask {
        Some(_) => cached..cached + row.q_len as usize,
        None => cached + queries.start + 1..cached + queries.end,
    }
}

/// Positions that at least one of `queries` may see.
pub(super) fn seen_by_any(
    shape: &AttentionShape,
    row: &Row,
    queries: &Range<usize>,
) -> Range<usize> {
    let ends = ends(row, queries);
    shape.visible(ends.start).start..shape.visible(ends.end).end
}

/// Positions that all of `queries` see.
pub(super) fn seen_by_all(
    shape: &AttentionShape,
    row: &Row,
    queries: &Range<usize>,
) -> Range<usize> {
    let ends = ends(row, queries);
    shape.visible(ends.end).start..shape.visible(ends.start).end
}
