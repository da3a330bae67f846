//! Layout of chains and trees that a device is to draft, before their tokens are known.

use lockstep_backend::TreeSize;

use super::chains::depth;
use crate::{ChainPass, DraftRow, Drafts, Node, TreeShape};

/// Sizes of the model that drafts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drafted {
    /// Position of the cell of a node of depth 1, counted from a row's `kv_len`.
    pub first_cell: usize,
    /// Number of columns of the model's logits.
    pub vocab: usize,
}

impl Drafted {
    /// Returns the number of levels of a row's draft.
    pub fn levels(self, row: &DraftRow) -> usize {
        match row.topk {
            1 => depth(row),
            _ => self.shape(row).steps,
        }
    }

    fn shape(self, row: &DraftRow) -> TreeShape {
        TreeShape::fit(row, self.first_cell)
    }

    /// Begins the chains or trees of `rows` in `chains`. Pushes one node to `drafts` for each
    /// draft that the device will make. The nodes' tokens are arbitrary, and in a tree each
    /// node follows the root.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a row with so many draft steps, branches and nodes.
    fn row(steps: usize, topk: usize, most: usize) -> DraftRow {
        DraftRow {
            slot: 0,
            pages_start: 0,
            kv_len: 9,
            steps,
            topk,
            most,
            room: 40,
            may_stop: false,
        }
    }

    /// Returns the drafts, the rows in the device's order, and their trees.
    fn begin(own: Drafted, rows: &[DraftRow]) -> (Drafts, Vec<usize>, Vec<TreeSize>) {
        let (mut drafts, mut chains) = (Drafts::new(rows.len(), 16, 0), ChainPass::new(4, 64));
        drafts.begin(rows.len());
        own.begin(rows, &mut drafts, &mut chains);
        let order = chains.rows().collect();
        (drafts, order, chains.trees().to_vec())
    }

    #[test]
    fn chains_are_as_deep_as_their_rows() {
        for first_cell in [0, 1] {
            let own = Drafted {
                first_cell,
                vocab: 100,
            };
            let rows = [row(2, 1, 5), row(0, 1, 5), row(4, 1, 3), row(3, 1, 3)];
            let (drafts, order, trees) = begin(own, &rows);
            for (at, depth) in [2, 0, 3, 3].into_iter().enumerate() {
                assert_eq!(own.levels(&rows[at]), depth);
                assert_eq!(drafts.nodes(at).len(), depth);
                assert!(drafts.is_chain(at));
            }
            assert_eq!((order, trees), (vec![2, 3, 0], vec![]));
        }
    }

    #[test]
    fn each_row_has_the_nodes_of_its_own_tree() {
        // At most two tokens may follow a node, since the vocabulary has no more.
        let own = Drafted {
            first_cell: 1,
            vocab: 2,
        };
        let rows = [row(2, 3, 9), row(1, 3, 9), row(0, 3, 9), row(3, 2, 4)];
        let (drafts, order, trees) = begin(own, &rows);
        for (at, nodes) in [2 + 4, 2, 0, 4].into_iter().enumerate() {
            assert_eq!(drafts.nodes(at).len(), nodes, "{at}");
            assert!(drafts.nodes(at).iter().all(|node| node.parent == 0));
        }
        let size = |steps, branches| TreeSize { steps, branches };
        assert_eq!(order, [3, 0, 1]);
        assert_eq!(trees, [size(3, 2), size(2, 3), size(1, 3)]);
    }
}
