//! Invariants of nodes, and their content as a whole.

use super::*;

impl Nodes {
    /// Panics if lists, table and arena disagree, or if the oldest node isn't a leaf.
    pub(in super::super) fn check(&self) {
        let nodes = self.by_use();
        let mut ages = vec![usize::MAX; self.arena.len()];
        ages[ROOT as usize] = 0;
        let mut pieces = 0;
        for (age, node) in nodes.iter().enumerate() {
            let Node {
                token,
                parent,
                count,
                ..
            } = self.arena[*node as usize];
            ages[*node as usize] = 1 + age;
            assert!(ages[parent as usize] <= age, "parents are newer");
            assert_eq!(self.child(parent, token), Some(*node));
            assert!(count > 0);
            pieces += leaf_entries(1 + self.tail(*node).count()) - 1;
        }
        assert_eq!(self.oldest, nodes.last().copied().unwrap_or(NONE));
        assert_eq!(self.table.used(), nodes.len());
        assert_eq!(self.used, nodes.len() + pieces);
        let free = successors(some(self.free), |at| some(self.arena[*at as usize].below));
        assert_eq!(self.arena.len(), 1 + self.used + free.count());
        let mut children = 0;
        for parent in nodes.iter().copied().chain([ROOT]) {
            let mut newer = NONE;
            let tail = self.tail(parent).count();
            for (End { node, along }, token, count) in self.children(End::at(parent)) {
                if tail > 0 {
                    assert_eq!((node, along), (parent, 1));
                    continue;
                }
                assert_eq!((along, self.own(node)), (0, (parent, token, count)));
                assert_eq!(self.arena[node as usize].siblings.newer, newer);
                assert!(ages[newer as usize] < ages[node as usize], "by use");
                (children, newer) = (children + 1, node);
            }
        }
        assert_eq!(children, nodes.len());
    }

    /// Returns all paths with their counts, the one used last first. Tokens of tails count as
    /// nodes.
    pub(in super::super) fn paths(&self) -> Vec<(Vec<u32>, u32)> {
        let mut paths = Vec::new();
        for node in self.by_use() {
            let above = |node: &u32| some(self.arena[*node as usize].parent);
            let nodes = successors(Some(node), above);
            let mut path: Vec<u32> = nodes.map(|at| self.arena[at as usize].token).collect();
            path.reverse();
            let count = self.arena[node as usize].count;
            paths.push((path.clone(), count));
            for token in self.tail(node) {
                path.push(token);
                paths.push((path.clone(), count));
            }
        }
        paths
    }

    /// Returns the bytes that were allocated.
    pub(in super::super) fn allocated(&self) -> u64 {
        let arena = self.arena.capacity() * size_of::<Node>();
        (arena + self.table.allocated()) as u64
    }

    fn by_use(&self) -> Vec<u32> {
        let mut newer = NONE;
        let older = |node: &u32| some(self.arena[*node as usize].uses.older);
        let nodes = successors(some(self.newest), older);
        let nodes = nodes.inspect(|node| {
            assert_eq!(self.arena[*node as usize].uses.newer, newer);
            newer = *node;
        });
        nodes.collect()
    }
}
