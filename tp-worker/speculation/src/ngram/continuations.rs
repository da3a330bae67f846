//! Possible continuations from several sources, and the best of them as a tree.

use crate::{Drafts, Node, TreeShape};

/// Continuations of one text as a tree, with the evidence for each node.
///
/// Evidence has a rank, and lower is stronger: one piece of a lower rank outweighs any number
/// of pieces of a higher rank. Evidence for a node is also evidence for the nodes before it, so
/// a parent is never worse than its children.
#[derive(Debug, Default)]
pub(super) struct Continuations {
    /// The root, then all nodes that may follow.
    nodes: Vec<Found>,
    order: Vec<u32>,
}

/// The node where continuations begin.
pub(super) const ROOT: u32 = 0;

#[derive(Debug, Clone, Copy, Default)]
struct Found {
    token: u32,
    parent: u32,
    rank: u32,
    /// Number of pieces of evidence of that rank.
    weight: u32,
    /// The child that was found last; 0 if there is none.
    child: u32,
    /// The sibling that was found before this node; 0 if there is none.
    sibling: u32,
    /// Number of the node among the drafted ones, if it is drafted.
    number: Option<u32>,
    /// Number of children that are drafted.
    children: usize,
}

impl Continuations {
    /// Removes everything, keeping the memory.
    pub(super) fn clear(&mut self) {
        self.nodes.clear();
        self.nodes.push(Found {
            number: Some(0),
            ..Found::default()
        });
    }

    /// Adds evidence for a path from the root.
    pub(super) fn add_path(&mut self, rank: u32, path: impl Iterator<Item = u32>) {
        path.fold(ROOT, |parent, token| self.add(parent, token, rank, 1));
    }

    /// Adds `weight` pieces of evidence for `token` after the node `parent`, which has at least
    /// as many. Returns the token's node.
    pub(super) fn add(&mut self, parent: u32, token: u32, rank: u32, weight: u32) -> u32 {
        let sibling = self.nodes[parent as usize].child;
        let mut at = sibling;
        while at != 0 {
            let found = &mut self.nodes[at as usize];
            if found.token != token {
                at = found.sibling;
                continue;
            }
            if rank < found.rank {
                (found.rank, found.weight) = (rank, weight);
            } else if rank == found.rank {
                found.weight = found.weight.saturating_add(weight);
            }
            return at;
        }
        let new = self.nodes.len() as u32;
        self.nodes[parent as usize].child = new;
        self.nodes.push(Found {
            token,
            parent,
            rank,
            weight,
            sibling,
            ..Found::default()
        });
        new
    }

    /// Drafts the best nodes, at most `shape.topk` after each node. A node with more evidence
    /// comes first, and among equals the node that was found earlier.
    pub(super) fn draft(&mut self, shape: TreeShape, drafts: &mut Drafts, row: usize) {
        let nodes = &mut self.nodes;
        self.order.clear();
        self.order.extend(1..nodes.len() as u32);
        self.order.sort_unstable_by_key(|at| {
            let Found { rank, weight, .. } = nodes[*at as usize];
            (rank, u32::MAX - weight, *at)
        });
        let mut drafted = 0;
        for at in &self.order {
            if drafted == shape.most {
                break;
            }
            let Found { token, parent, .. } = nodes[*at as usize];
            let before = &mut nodes[parent as usize];
            if let Some(parent) = before.number
                && before.children < shape.topk
            {
                before.children += 1;
                drafted += 1;
                nodes[*at as usize].number = Some(drafts.push(row, Node { token, parent }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drafted(found: &mut Continuations, topk: usize, most: usize) -> Vec<(u32, u32)> {
        let mut drafts = Drafts::new(1, most, 0);
        drafts.begin(1);
        let shape = TreeShape {
            steps: 9,
            topk,
            most,
        };
        found.draft(shape, &mut drafts, 0);
        let nodes = drafts.nodes(0).iter();
        nodes.map(|node| (node.token, node.parent)).collect()
    }

    fn found(paths: &[(u32, &[u32])]) -> Continuations {
        let mut found = Continuations::default();
        found.clear();
        for (rank, path) in paths {
            found.add_path(*rank, path.iter().copied());
        }
        found
    }

    #[test]
    fn the_most_frequent_path_is_the_chain() {
        let mut found = found(&[(0, &[1, 2, 3]), (0, &[4, 5]), (0, &[4, 6]), (0, &[4, 6])]);
        assert_eq!(drafted(&mut found, 1, 9), [(4, 0), (6, 1)]);
    }

    #[test]
    fn what_was_found_first_wins_among_equals_and_rank_beats_number() {
        let paths: [(u32, &[u32]); 4] = [(1, &[7, 8]), (1, &[7, 9]), (0, &[5]), (0, &[6])];
        assert_eq!(drafted(&mut found(&paths), 1, 1), [(5, 0)]);
        let all = [(5, 0), (6, 0), (7, 0), (8, 3), (9, 3)];
        assert_eq!(drafted(&mut found(&paths), 3, 9), all);
        // Two branches fill the root before the third, of a higher rank, is looked at.
        assert_eq!(drafted(&mut found(&paths), 2, 9), all[..2]);
    }

    proptest! {
        #[test]
        fn parents_come_first_and_sizes_hold(
            paths in prop::collection::vec((0u32..3, prop::collection::vec(0u32..4, 1..6)), 0..30),
            topk in 1usize..4,
            most in 1usize..20,
        ) {
            let mut found = Continuations::default();
            found.clear();
            for (rank, path) in &paths {
                found.add_path(*rank, path.iter().copied());
            }
            let nodes = drafted(&mut found, topk, most);
            prop_assert!(nodes.len() <= most);
            prop_assert_eq!(nodes.is_empty(), paths.is_empty());
            let mut seen = std::collections::BTreeSet::new();
            for (at, (token, parent)) in nodes.iter().enumerate() {
                prop_assert!(*parent as usize <= at);
                prop_assert!(seen.insert((*parent, *token)), "siblings differ");
                let siblings = nodes.iter().filter(|(_, p)| p == parent).count();
                prop_assert!(siblings <= topk);
            }
        }
    }
}
