//! Changing drafts by what is known of a request's next tokens. Only drafts that were not sampled
//! may be changed: a text would show that others were left out because of their tokens.

use super::{Drafts, Node};

impl Drafts {
    /// Makes a row the chain of `tokens`.
    ///
    /// # Panics
    /// Panics if the chain has more nodes than a row may have, or if a token of the row was
    /// sampled.
    pub fn set_chain(&mut self, row: usize, tokens: &[u32]) {
        assert!(!self.is_sampled(row), "sampled drafts stay as they are");
        self.rows[row] = 0;
        for (parent, token) in (0..).zip(tokens) {
            self.push(
                row,
                Node {
                    token: *token,
                    parent,
                },
            );
        }
    }

    /// Removes the first drafts of a row that `allowed` forbids, with everything behind them.
    /// Returns the number of first drafts that went.
    ///
    /// # Panics
    /// Panics if a token of the row was sampled.
    pub fn prune(&mut self, row: usize, allowed: impl Fn(u32) -> bool) -> u32 {
        assert!(!self.is_sampled(row), "sampled drafts stay as they are");
        let nodes = &mut self.nodes[row * self.most..][..self.rows[row]];
        // For each node that was seen, its new number; 0 if it is gone. The root stays.
        self.numbers.clear();
        let (mut kept, mut forbidden) = (0, 0);
        for at in 0..nodes.len() {
            let Node { token, parent } = nodes[at];
            let parent = match parent {
                0 if allowed(token) => Some(0),
                0 => {
                    forbidden += 1;
                    None
                }
                own => Some(self.numbers[own as usize - 1]).filter(|number| *number > 0),
            };
            let number = parent.map_or(0, |parent| {
                nodes[kept] = Node { token, parent };
                kept += 1;
                kept as u32
            });
            self.numbers.push(number);
        }
        self.rows[row] = kept;
        forbidden
    }

    /// Adds the `path` of tokens from the root, along nodes that are there. If a row of `most`
    /// nodes has no room for it, the last nodes make room. Returns the number of the first node
    /// that was added: all nodes from there on are of the path. Returns `None` if the path was
    /// there.
    ///
    /// # Panics
    /// Panics if a token of the row was sampled, or if `most` is more than a row may have.
    pub fn graft(&mut self, row: usize, path: &[u32], most: usize) -> Option<u32> {
        assert!(!self.is_sampled(row), "sampled drafts stay as they are");
        self.rows[row] = self.rows[row].min(most.saturating_sub(path.len()));
        let (mut parent, mut added) = (0, None);
        for token in path.iter().take(most) {
            let node = Node {
                token: *token,
                parent,
            };
            let known = self.nodes(row).iter().position(|own| *own == node);
            parent = match known {
                Some(at) => at as u32 + 1,
                None => {
                    let number = self.push(row, node);
                    added.get_or_insert(number);
                    number
                }
            };
        }
        added
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::depth;

    fn drafts(nodes: &[(u32, u32)], most: usize) -> Drafts {
        let mut drafts = Drafts::new(2, most, 0);
        drafts.begin(2);
        for (token, parent) in nodes {
            let (token, parent) = (*token, *parent);
            drafts.push(1, Node { token, parent });
        }
        drafts
    }

    /// Returns the tokens from the root to each node.
    fn paths(drafts: &Drafts) -> Vec<Vec<u32>> {
        let mut paths: Vec<Vec<u32>> = vec![vec![]];
        for node in drafts.nodes(1) {
            let mut path = paths[node.parent as usize].clone();
            path.push(node.token);
            paths.push(path);
        }
        paths.split_off(1)
    }

    #[test]
    fn a_chain_takes_the_place_of_a_row() {
        let mut drafts = drafts(&[(7, 0), (8, 0), (9, 2)], 4);
        drafts.set_chain(1, &[1, 2]);
        assert_eq!(paths(&drafts), [vec![1], vec![1, 2]]);
        assert!(drafts.is_chain(1));
        drafts.set_chain(1, &[]);
        assert!(drafts.nodes(1).is_empty() && drafts.nodes(0).is_empty());
    }

    #[test]
    fn a_path_is_added_where_it_leaves_the_tree() {
        let mut tree = drafts(&[(7, 0), (8, 0), (9, 2)], 6);
        assert_eq!(tree.graft(1, &[8, 9], 6), None);
        assert_eq!(tree.graft(1, &[8, 5, 6], 6), Some(4));
        assert_eq!(paths(&tree)[3..], [vec![8, 5], vec![8, 5, 6]]);
        assert_eq!(depth(tree.nodes(1)), 3);
        // The last nodes make room.
        let mut tree = drafts(&[(7, 0), (8, 0), (9, 2)], 3);
        assert_eq!(tree.graft(1, &[1, 2], 3), Some(2));
        assert_eq!(paths(&tree), [vec![7], vec![1], vec![1, 2]]);
    }

    proptest! {
        /// Pruning leaves the paths whose first token is allowed, in their order; a grafted path
        /// is there, no row outgrows its nodes, and added nodes are the last ones.
        #[test]
        fn what_is_left_and_what_is_added(
            picks in prop::collection::vec((0u32..5, any::<u32>()), 0..9),
            path in prop::collection::vec(0u32..5, 1..6),
            allowed in 0u32..32,
            more in 0usize..4,
        ) {
            let numbered = picks.iter().zip(1u32..);
            let nodes: Vec<(u32, u32)> = numbered
                .map(|((token, parent), number)| (*token, parent % number))
                .collect();
            let most = nodes.len().max(path.len()) + more;
            let mut drafts = drafts(&nodes, most);
            let before = paths(&drafts);
            let allows = |token: u32| allowed >> token & 1 == 1;
            let forbidden = drafts.prune(1, allows);
            let mut expected = before;
            let firsts = expected.iter().filter(|path| path.len() == 1 && !allows(path[0]));
            prop_assert_eq!(forbidden as usize, firsts.count());
            expected.retain(|path| allows(path[0]));
            prop_assert_eq!(&paths(&drafts), &expected);
            let added = drafts.graft(1, &path, most);
            let found = paths(&drafts);
            prop_assert!(found.len() <= most && found.contains(&path));
            let own = added.map_or(found.len(), |first| first as usize - 1);
            prop_assert_eq!(&found[..own], &expected[..own]);
            prop_assert!(found[own..].iter().all(|found| path.starts_with(found)));
            prop_assert!(drafts.nodes(0).is_empty());
        }
    }
}
