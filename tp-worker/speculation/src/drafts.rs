//! Drafted tokens of one step: chains and trees.

mod edit;

use crate::DraftRow;

/// A drafted token, and its parent in its row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Node {
    /// The token.
    pub token: u32,
    /// Number of the node that the token follows: 0 for the request's last known token, `n` for
    /// the row's `n`-th drafted token (from 1). It is always less than the node's own number.
    pub parent: u32,
}

/// Drafts of a step's decode rows, in the order of these rows. Rows grow side by side; parents
/// come before children.
#[derive(Debug, Default)]
pub struct Drafts {
    /// Number of nodes of each row.
    rows: Vec<usize>,
    /// Nodes, `[rows, most]`.
    nodes: Vec<Node>,
    most: usize,
    /// Distribution that each drafted token was sampled from, `[rows, most, vocab]`.
    probabilities: Vec<f32>,
    /// True for nodes that were sampled, `[rows, most]`.
    sampled: Vec<bool>,
    /// Number of tokens of the vocabulary; 0 if drafts are not sampled.
    vocab: usize,
    /// New numbers of a row's nodes while some are removed.
    numbers: Vec<u32>,
}

impl Drafts {
    /// Makes drafts for `requests` rows of at most `most` nodes. With `vocab > 0`, drafts are
    /// sampled and keep their distributions.
    pub fn new(requests: usize, most: usize, vocab: usize) -> Self {
        Self {
            rows: Vec::with_capacity(requests),
            nodes: vec![Node::default(); requests * most],
            most,
            probabilities: Vec::new(),
            sampled: vec![false; requests * most],
            vocab,
            numbers: Vec::with_capacity(most),
        }
    }

    /// Removes all rows and begins `rows` empty rows.
    ///
    /// # Panics
    /// Panics with more rows than the drafts were made for.
    pub fn begin(&mut self, rows: usize) {
        assert!(rows * self.most <= self.nodes.len(), "rows are limited");
        self.rows.clear();
        self.rows.resize(rows, 0);
        self.sampled.fill(false);
    }

    /// Returns true if drafted tokens are sampled and keep their distributions.
    pub fn sampled(&self) -> bool {
        self.vocab > 0
    }

    /// Adds a node to a row. Returns the node's number, from 1.
    ///
    /// # Panics
    /// Panics if the row is full.
    pub fn push(&mut self, row: usize, node: Node) -> u32 {
        let len = &mut self.rows[row];
        assert!(*len < self.most, "a row's nodes are limited");
        self.nodes[row * self.most + *len] = node;
        *len += 1;
        *len as u32
    }

    /// Sets the tokens of a row's nodes, in their order, and in a tree the parents. For a chain
    /// `parents` is empty.
    pub fn set_nodes(&mut self, row: usize, tokens: &[u32], parents: &[u32]) {
        let nodes = &mut self.nodes[row * self.most..][..self.rows[row]];
        for (node, token) in nodes.iter_mut().zip(tokens) {
            node.token = *token;
        }
        for (node, parent) in nodes.iter_mut().zip(parents) {
            node.parent = *parent;
        }
    }

    /// Returns the distribution that the row's next node is sampled from, given its earlier
    /// siblings. It covers the target's vocabulary and is all zero, to be filled before the
    /// node is pushed. Not called for a node that is not sampled.
    ///
    /// # Panics
    /// Panics if the row is full.
    pub fn distribution(&mut self, row: usize) -> &mut [f32] {
        let node = row * self.most + self.rows[row];
        self.sampled[node] = true;
        let start = node * self.vocab;
        let end = start + self.vocab;
        if self.probabilities.len() < end {
            self.probabilities.resize(end, 0.0);
        }
        let distribution = &mut self.probabilities[start..end];
        distribution.fill(0.0);
        distribution
    }

    /// Returns true if a token of a row was sampled.
    pub fn is_sampled(&self, row: usize) -> bool {
        let first = row * self.most;
        self.sampled[first..first + self.rows[row]].contains(&true)
    }

    /// Notes that another rank has sampled a row's tokens. That rank keeps their distributions.
    pub fn note_sampled(&mut self, row: usize) {
        let first = row * self.most;
        self.sampled[first..first + self.rows[row]].fill(true);
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Returns the most nodes of a row.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Returns a row's nodes. Node number `n` is at index `n - 1`.
    pub fn nodes(&self, row: usize) -> &[Node] {
        &self.nodes[row * self.most..][..self.rows[row]]
    }

    /// Returns the distribution that node `number` of a row was sampled from; `None` if the
    /// node was not sampled.
    pub fn probabilities(&self, row: usize, number: u32) -> Option<&[f32]> {
        let node = row * self.most + number as usize - 1;
        if self.vocab == 0 || !self.sampled[node] {
            return None;
        }
        self.probabilities
            .get(node * self.vocab..(node + 1) * self.vocab)
    }

    /// Returns the first rule of drafts that a row breaks. The row was drafted for `asked`.
    pub fn fault(&self, row: usize, asked: &DraftRow) -> Option<&'static str> {
        let nodes = self.nodes(row);
        let later = |(before, node): (usize, &Node)| node.parent as usize > before;
        if nodes.len() > asked.most {
            Some("a row has at most `most` nodes")
        } else if nodes.iter().enumerate().any(later) {
            Some("parents come before children")
        } else if asked.topk == 1 && !is_chain(nodes) {
            Some("a row is a chain where `topk` is 1")
        } else {
            (depth(nodes) as usize > asked.steps).then_some("a row is at most `steps` deep")
        }
    }

    /// Returns true if each node of a row follows the one before it.
    pub fn is_chain(&self, row: usize) -> bool {
        is_chain(self.nodes(row))
    }
}

/// Returns the depth of a row: the most nodes on a path.
pub fn depth(nodes: &[Node]) -> u32 {
    let depth = |node: &Node| {
        std::iter::successors(Some(*node), |node| {
            (node.parent > 0).then(|| nodes[node.parent as usize - 1])
        })
        .count() as u32
    };
    nodes.iter().map(depth).max().unwrap_or(0)
}

/// Returns true if each node follows the one before it.
pub fn is_chain(nodes: &[Node]) -> bool {
    let mut nodes = nodes.iter().enumerate();
    nodes.all(|(at, node)| node.parent as usize == at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_no_deeper_than_asked_though_it_has_nodes_left() {
        let mut drafts = Drafts::new(1, 3, 0);
        drafts.begin(1);
        let mut asked = DraftRow {
            slot: 0,
            pages_start: 0,
            kv_len: 1,
            steps: 1,
            topk: 3,
            most: 3,
            room: 9,
            may_stop: false,
        };
        for parent in [0, 0] {
            drafts.push(0, Node { token: 7, parent });
        }
        assert_eq!(drafts.fault(0, &asked), None);
        drafts.push(
            0,
            Node {
                token: 7,
                parent: 2,
            },
        );
        let fault = drafts.fault(0, &asked);
        assert_eq!(fault, Some("a row is at most `steps` deep"));
        asked.steps = 2;
        assert_eq!(drafts.fault(0, &asked), None);
        asked.topk = 1;
        let fault = drafts.fault(0, &asked);
        assert_eq!(fault, Some("a row is a chain where `topk` is 1"));
        (asked.topk, asked.most) = (3, 2);
        let fault = drafts.fault(0, &asked);
        assert_eq!(fault, Some("a row has at most `most` nodes"));
    }

    #[test]
    fn a_node_follows_an_earlier_one() {
        let asked = DraftRow {
            slot: 0,
            pages_start: 0,
            kv_len: 1,
            steps: 3,
            topk: 3,
            most: 3,
            room: 9,
            may_stop: false,
        };
        for (parents, broken) in [
            ([0, 1, 2], false),
            ([0, 0, 1], false),
            // A later node, then the node itself.
            ([0, 3, 0], true),
            ([0, 2, 0], true),
            ([1, 0, 0], true),
        ] {
            // The second row is checked.
            let mut drafts = Drafts::new(2, 3, 0);
            drafts.begin(2);
            for parent in parents {
                drafts.push(1, Node { token: 7, parent });
            }
            let fault = broken.then_some("parents come before children");
            assert_eq!(drafts.fault(1, &asked), fault, "{parents:?}");
            assert_eq!(drafts.fault(0, &asked), None);
        }
    }

    #[test]
    fn one_row_gets_its_tokens_and_what_they_follow() {
        let mut drafts = Drafts::new(3, 3, 0);
        drafts.begin(3);
        let node = |token, parent| Node { token, parent };
        for row in [0, 1, 1, 1, 2, 2] {
            drafts.push(row, node(9, drafts.nodes(row).len() as u32));
        }
        drafts.set_nodes(1, &[5, 6, 7], &[0, 0, 2]);
        // A chain stays one.
        drafts.set_nodes(2, &[3, 4], &[]);
        assert_eq!(drafts.nodes(0), [node(9, 0)]);
        assert_eq!(drafts.nodes(1), [node(5, 0), node(6, 0), node(7, 2)]);
        assert_eq!(drafts.nodes(2), [node(3, 0), node(4, 1)]);
    }

    /// Another rank has drawn the tokens that this rank verifies, and keeps their
    /// distributions.
    #[test]
    fn a_row_is_noted_as_sampled_by_itself() {
        let mut drafts = Drafts::new(3, 2, 4);
        drafts.begin(3);
        for row in [0, 1, 1, 2] {
            drafts.push(row, Node::default());
        }
        drafts.note_sampled(1);
        assert_eq!(
            [0, 1, 2].map(|row| drafts.is_sampled(row)),
            [false, true, false]
        );
    }

    #[test]
    fn a_distribution_is_all_zero_until_it_is_filled() {
        let mut drafts = Drafts::new(2, 2, 4);
        for _ in 0..2 {
            drafts.begin(2);
            for node in 0..2 {
                let law = drafts.distribution(1);
                assert_eq!(law, [0.0; 4]);
                law[node] = 1.0;
                drafts.push(1, Node::default());
            }
            for (number, token) in [(1, 0), (2, 1)] {
                let law = drafts.probabilities(1, number).expect("it was sampled");
                assert_eq!(law.iter().position(|p| *p > 0.0), Some(token));
            }
        }
    }
}
