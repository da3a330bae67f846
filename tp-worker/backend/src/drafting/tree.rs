//! Trees of drafts that a device makes by itself, for the batch that verifies them.

use crate::{Batch, MOST_CANDIDATES, PassKey};

/// The sizes of the passes that grow trees, level by level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreePass {
    /// The size of the recorded pass. Every token of it is a tree.
    pub size: PassKey,
    /// Most nodes of a tree that a level expands.
    pub branches: usize,
}

/// A device that drafts trees by itself. [`crate::DeviceDrafter`] begins the trees as it begins
/// chains. `T`, `I` and `V` are the device's tensors, inputs and vectors. Both operations may
/// be part of a recorded pass.
pub trait DeviceTreeDrafter<T, I, V> {
    /// Generates level number `level` of every tree that has so many levels, from the wanted
    /// rows of `logits` of the pass in `inputs`. With `ids`, tokens become the target's numbers
    /// of them. After a tree's last level, its kept nodes go to `verified`: tokens, parents,
    /// positions and masks. `inputs` get the next pass: for every tree with more levels a
    /// masked row of all nodes expanded so far, of which the last level's nodes are wanted.
    ///
    /// # Panics
    /// Panics if a row of `logits` has fewer tokens than a node has branches. Such trees are
    /// grown on the host.
    fn grow(
        &mut self,
        logits: (&T, Option<&V>),
        level: usize,
        verified: &mut I,
        inputs: &mut I,
        pass: TreePass,
    );
    /// Sets `out[i]` to the features that the `i`-th token of the pass in `inputs` goes on
    /// from. These are a row of `outputs`, the features of all tokens of the pass before. For a
    /// child of its tree's root, they are a row of `roots`, the wanted features of the first
    /// pass.
    fn take_parents(&mut self, roots: &T, outputs: &T, verified: &I, inputs: &I, out: &mut T);
}

/// Returns the first rule of kernels that the trees of `batch` break.
pub(crate) fn broken_rule(batch: &Batch<'_>) -> Option<&'static str> {
    let chain = batch.chain.as_ref()?;
    if chain.trees.is_empty() {
        return None;
    }
    if chain.trees.len() != chain.requests.len() {
        return Some("every chain is a tree, or none is");
    }
    for (tree, request) in chain.trees.iter().zip(chain.requests) {
        if tree.steps == 0 || tree.branches == 0 || tree.candidates() > MOST_CANDIDATES {
            return Some("a tree has levels and branches, and no more than kernels generate");
        }
        let Some(drafted) = batch.choices.drafted.get(*request as usize) else {
            return Some("a tree belongs to a request");
        };
        let nodes = drafted.nodes as usize;
        if nodes > tree.candidates() {
            return Some("no more nodes are kept than are generated");
        }
        let mut rows = batch.rows.iter();
        let row = rows.find(|row| row.start == drafted.token);
        let whole = row.filter(|row| row.q_len == drafted.nodes + 1);
        let Some(row) = whole else {
            return Some("a tree is verified in a row that is its root and its nodes");
        };
        let branches = drafted.parents.is_some();
        if branches != row.mask.is_some() || (nodes > 1 && !branches) {
            return Some("a tree of more than a node has parents and a mask");
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use crate::{ChainBatch, Choice, ChoiceBatch, ChoiceMethod, DraftedRow, Row, TreeSize};

    use super::*;

    /// Returns the rule that a request with two drafts breaks with this tree.
    fn found(tree: TreeSize, parents: Option<u32>, row: Row) -> Option<&'static str> {
        let nothing = Batch::default();
        let choice = Choice {
            how: ChoiceMethod::Greedy,
            seed: 0,
            position: 0,
        };
        let drafted = DraftedRow {
            logits: 0,
            token: 4,
            nodes: 2,
            parents,
        };
        let batch = Batch {
            rows: &[row],
            choices: ChoiceBatch {
                choices: &[choice],
                drafted: &[drafted],
                parents: &[0, 0],
                ..ChoiceBatch::default()
            },
            chain: Some(ChainBatch {
                first: &nothing,
                requests: &[0],
                sources: &[],
                trees: &[tree],
            }),
            ..nothing
        };
        broken_rule(&batch)
    }

    #[test]
    fn trees_that_kernels_could_not_grow_are_found() {
        let tree = |steps, branches| TreeSize { steps, branches };
        let row = Row {
            start: 4,
            q_len: 3,
            kv_len: 7,
            pages_start: 0,
            mask: Some(0),
        };
        assert_eq!((tree(3, 4).candidates(), tree(3, 4).expanded()), (36, 8));
        for sound in [tree(1, 2), tree(2, 1), tree(4, 18)] {
            assert_eq!(found(sound, Some(0), row), None, "{sound:?}");
        }
        for broken in [tree(0, 2), tree(2, 0), tree(1, 1), tree(4, 19)] {
            assert!(found(broken, Some(0), row).is_some(), "{broken:?}");
        }
        // Without parents; then without a mask, in another place, and with another number of
        // nodes.
        let others = [
            Row { mask: None, ..row },
            Row { start: 3, ..row },
            Row { q_len: 4, ..row },
        ];
        assert!(found(tree(2, 2), None, row).is_some());
        for other in others {
            assert!(found(tree(2, 2), Some(0), other).is_some(), "{other:?}");
        }
    }
}
