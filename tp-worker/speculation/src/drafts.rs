//! Drafted tokens of one step: chains and trees.

/// A drafted token's place in its row, and what it follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// The token.
    pub token: u32,
    /// The node that it follows: 0 = the request's last known token, `n` = the
    /// row's `n`-th drafted token (from 1). Always less than its own number.
    pub parent: u32,
}

/// Which of a step's nodes are one request's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftedRow {
    /// Index of the first in [`Drafts::nodes`].
    pub start: usize,
    /// How many.
    pub len: usize,
}

/// What was drafted for the decode rows of a step, in their order. Parents come
/// before children.
#[derive(Debug, Default)]
pub struct Drafts {
    rows: Vec<DraftedRow>,
    nodes: Vec<Node>,
    /// Where a drafted token was sampled: the distribution it was sampled from.
    probabilities: Vec<f32>,
    /// Columns of `probabilities`; 0 = drafts are not sampled.
    vocab: usize,
}

impl Drafts {
    /// For `requests` rows of at most `nodes` nodes; `vocab > 0` where drafts
    /// are sampled and keep their distributions.
    pub fn new(requests: usize, nodes: usize, vocab: usize) -> Self {
        Self {
            rows: Vec::with_capacity(requests),
            nodes: Vec::with_capacity(requests * nodes),
            probabilities: Vec::new(),
            vocab,
        }
    }

    /// Forgets everything, keeping the memory.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.nodes.clear();
        self.probabilities.clear();
    }

    /// Whether drafted tokens are sampled and keep their distributions.
    pub fn sampled(&self) -> bool {
        self.vocab > 0
    }

    /// Begins the next row.
    pub fn begin(&mut self) {
        let start = self.nodes.len();
        self.rows.push(DraftedRow { start, len: 0 });
    }

    /// Adds a node to the row begun last and gives its number, from 1.
    ///
    /// # Panics
    /// Before [`Self::begin`].
    pub fn push(&mut self, node: Node) -> u32 {
        let row = self.rows.last_mut().expect("a row was begun");
        self.nodes.push(node);
        row.len += 1;
        row.len as u32
    }

    /// The distribution that the node pushed next is sampled from, all zero:
    /// over the target's vocabulary, to be filled by the drafter.
    pub fn distribution(&mut self) -> &mut [f32] {
        let at = self.nodes.len() * self.vocab;
        self.probabilities.resize(at + self.vocab, 0.0);
        &mut self.probabilities[at..]
    }

    /// The rows.
    pub fn rows(&self) -> &[DraftedRow] {
        &self.rows
    }

    /// A row's nodes; node number `n` is at `n - 1`.
    pub fn nodes(&self, row: usize) -> &[Node] {
        let DraftedRow { start, len } = self.rows[row];
        &self.nodes[start..start + len]
    }

    /// The distribution that node `number` of a row was sampled from; `None`
    /// where it was not sampled.
    pub fn probabilities(&self, row: usize, number: u32) -> Option<&[f32]> {
        let at = (self.rows[row].start + number as usize - 1) * self.vocab;
        self.probabilities
            .get(at..at + self.vocab)
            .filter(|p| !p.is_empty())
    }

    /// The row's depth: the most nodes on a path.
    pub fn depth(&self, row: usize) -> u32 {
        let nodes = self.nodes(row);
        let depth = |node: &Node| {
            std::iter::successors(Some(*node), |node| {
                (node.parent > 0).then(|| nodes[node.parent as usize - 1])
            })
            .count() as u32
        };
        nodes.iter().map(depth).max().unwrap_or(0)
    }

    /// Whether each node of a row follows the one before it.
    pub fn is_chain(&self, row: usize) -> bool {
        let mut nodes = self.nodes(row).iter().enumerate();
        nodes.all(|(at, node)| node.parent as usize == at)
    }
}
