//! Chains and trees as a device is to draft them, before anybody knows their tokens.

use lockstep_backend::TreeSize;

use super::chain::depth;
use crate::{ChainPass, DraftRow, Drafts, Node, TreeShape};

/// Whose drafts these are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drafted {
    /// Where it keeps a node of depth 1, counted from a row's `kv_len`.
    pub first_cell: usize,
    /// Columns of its logits.
    pub vocab: usize,
}

impl Drafted {
    /// Levels of a row's draft.
    pub fn levels(self, row: &DraftRow) -> usize {
        match row.topk {
            1 => depth(row, self.first_cell),
            _ => self.shape(row).steps,
        }
    }

    fn shape(self, row: &DraftRow) -> TreeShape {
        TreeShape::fit(row, self.first_cell)
    }

    /// Begins the chains or trees of `rows` in `chains`, and pushes as many nodes of each
    /// to `drafts` as it is to have. Their tokens are any, and in a tree each follows the
    /// root.
    pub fn begin(self, rows: &[DraftRow], drafts: &mut Drafts, chains: &mut ChainPass) {
        if rows.iter().all(|row| row.topk == 1) {
            chains.begin(rows.iter().map(|row| self.levels(row)));
            for (at, row) in rows.iter().enumerate() {
                for parent in 0..self.levels(row) as u32 {
                    drafts.push(at, Node { token: 0, parent });
                }
            }
            return;
        }
        chains.begin_trees(rows.len(), |at| {
            let shape = self.shape(&rows[at]);
            TreeSize {
                steps: shape.steps as u32,
                branches: shape.topk as u32,
            }
        });
        let root = Node {
            token: 0,
            parent: 0,
        };
        for (at, row) in rows.iter().enumerate() {
            for _ in 0..self.shape(row).nodes(self.vocab) {
                drafts.push(at, root);
            }
        }
    }
}
