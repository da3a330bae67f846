//! Trees that come with a batch, and the room where the device grows them.

use std::sync::Arc;

use lockstep_backend::{InputLimits, MOST_CANDIDATES, TreeSize};

use super::{HEADER_WORDS, ROW_WORDS};
use crate::error::CudaError;
use crate::runtime::{Buffer, Context};

/// Words of a tree's size.
pub(super) const WORDS: usize = 2;
/// Words of `Tree` in `tree.cu`: tokens, scores, parents, expanded nodes, and the sources that
/// tokens of a pass go on from.
const ROOM_WORDS: usize = 5 * MOST_CANDIDATES;

/// Writes the sizes of `trees`.
pub(super) fn fill(words: &mut [u32], trees: &[TreeSize]) {
    let all = words.as_chunks_mut::<WORDS>().0.iter_mut();
    for (words, tree) in all.zip(trees) {
        *words = [tree.steps, tree.branches];
    }
}

/// The nodes of trees that were generated so far, on the device.
pub(crate) struct TreeRoom {
    most: usize,
    words: Buffer<u32>,
}

impl TreeRoom {
    pub(super) fn new(context: &Arc<Context>, trees: usize) -> Result<Self, CudaError> {
        let words = trees.saturating_mul(ROOM_WORDS);
        Ok(Self {
            most: trees,
            words: Buffer::new(context, words, "trees of drafts")?,
        })
    }

    /// Bytes on the device.
    pub(super) fn bytes(trees: usize) -> u64 {
        4 * (trees as u64).saturating_mul(ROOM_WORDS as u64)
    }

    /// Largest number of trees.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    pub(crate) fn address(&self) -> u64 {
        self.words.address()
    }
}

/// Beginnings of the lists of a pass that the device lays out by itself, in room for batches
/// within some limits. They are the lists that every such pass has, in the order of the header
/// in `batch.cuh`.
pub(crate) struct TreeLists {
    /// Beginnings of tokens, positions, cells, rows, pages, masks and wanted tokens.
    pub at: [u32; 7],
    /// Words of 64 bits between the masks of two rows.
    pub mask: u32,
}

impl TreeLists {
    pub(crate) fn of(limits: &InputLimits) -> Self {
        let mask = limits.mask_words / limits.requests.max(1);
        let lens = [
            limits.tokens,
            limits.tokens,
            limits.tokens,
            ROW_WORDS * limits.requests,
            limits.pages,
            2 * mask * limits.requests,
        ];
        let mut at = [HEADER_WORDS as u32; 7];
        for (list, len) in lens.into_iter().enumerate() {
            at[list + 1] = at[list] + len as u32;
        }
        Self {
            at,
            mask: mask as u32,
        }
    }
}
