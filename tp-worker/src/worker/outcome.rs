//! Outcomes of a step's rows, on every rank.

use lockstep_adaptive::Digest;
use lockstep_backend::{Axis, Backend, ChoiceBatch, Chosen};
use lockstep_model::ModelCache;
use lockstep_speculation::Verified;
use lockstep_types::StepLimits;

use super::{
    WorkerError,
    slots::{FAILED, RowTask, Slots},
};

/// The sampled rows of a step. The lead writes them, all ranks of its DP rank read them.
#[derive(Debug)]
pub struct Outcomes {
    /// For every sampled row: the number of tokens, the tokens, the accepted nodes.
    words: Vec<u32>,
    /// Tokens that the device has drafted, for every sampled row; empty if it has drafted none.
    drafted: Vec<u32>,
    /// Parents of these tokens, if they are trees.
    parents: Vec<u32>,
    /// Most tokens of a row.
    most: usize,
    /// Cells whose keys and values move: from, to.
    moves: Vec<(u32, u32)>,
}

/// Outcome of one row.
#[derive(Debug, Clone, Copy)]
pub struct Outcome<'a> {
    /// Accepted drafts and the token after them; empty if none was sampled.
    pub tokens: &'a [u32],
    /// Numbers of the accepted drafts, ascending.
    pub path: &'a [u32],
}

impl<'a> Outcome<'a> {
    const NONE: Self = Self {
        tokens: &[],
        path: &[],
    };

    fn of(words: &'a [u32], most: usize) -> Self {
        // A device counted the tokens: no more than there is room for are read.
        let count = (words[0] as usize).min(most);
        Self {
            tokens: &words[1..1 + count],
            path: &words[1 + most..][..count.saturating_sub(1)],
        }
    }
}

impl Outcomes {
    /// Makes outcomes for the largest step.
    pub fn of_steps(step: &StepLimits) -> Self {
        let nodes = step.verified.saturating_sub(1);
        Self::new(step.requests, step.max_commit, nodes)
    }

    /// Makes outcomes for `requests` rows. A row has at most `most` tokens and `nodes` drafts.
    pub fn new(requests: usize, most: usize, nodes: usize) -> Self {
        Self {
            words: Vec::with_capacity(requests * 2 * most),
            drafted: Vec::with_capacity(requests * nodes),
            parents: Vec::with_capacity(requests * nodes),
            most,
            moves: Vec::with_capacity(requests * most),
        }
    }

    /// Begins a step of which `rows` rows sample. All outcomes are empty.
    pub fn begin(&mut self, rows: usize) {
        self.words.clear();
        self.words.resize(rows * 2 * self.most, 0);
        self.drafted.clear();
        self.parents.clear();
    }

    /// Takes the drafts that the device has made.
    pub fn set_drafted(&mut self, chosen: &Chosen<'_>) {
        self.drafted.extend_from_slice(chosen.drafted);
        self.parents.extend_from_slice(chosen.parents);
    }

    /// Returns the tokens drafted by the device for the `at`-th row that samples, and in trees
    /// their parents. Both are empty if the drafts were known before the pass.
    pub fn drafted(&self, at: usize) -> (&[u32], &[u32]) {
        let rows = self.words.len() / (2 * self.most);
        let each = self.drafted.len().checked_div(rows).unwrap_or(0);
        let own = |list: &'_ [u32]| at * each..((at + 1) * each).min(list.len());
        let tokens = self.drafted.get(own(&self.drafted));
        let parents = self.parents.get(own(&self.parents));
        (tokens.unwrap_or(&[]), parents.unwrap_or(&[]))
    }

    /// Returns the range of words of the `at`-th row that samples.
    fn row(&self, at: usize) -> std::ops::Range<usize> {
        at * 2 * self.most..(at + 1) * 2 * self.most
    }

    /// Notes the outcome of the `at`-th row that samples; `None` if the row failed.
    pub fn set(&mut self, at: usize, verified: Option<&Verified>) {
        let row = self.row(at);
        let words = &mut self.words[row];
        words.fill(0);
        let (tokens, path) = match verified {
            Some(verified) => (verified.tokens.as_slice(), verified.path.as_slice()),
            None => (&[FAILED][..], &[][..]),
        };
        words[0] = tokens.len() as u32;
        words[1..][..tokens.len()].copy_from_slice(tokens);
        words[1 + self.most..][..path.len()].copy_from_slice(path);
    }

    /// Notes the outcome of the `at`-th row that samples. `words` are the words of all rows.
    pub fn take(&mut self, at: usize, words: &[u32]) -> Outcome<'_> {
        let row = self.row(at);
        self.words[row.clone()].copy_from_slice(&words[row.clone()]);
        Outcome::of(&self.words[row], self.most)
    }

    /// Leaves the first `tokens` tokens of the `at`-th row that samples.
    pub fn shorten(&mut self, at: usize, tokens: usize) -> Outcome<'_> {
        let row = self.row(at);
        let words = &mut self.words[row];
        let left = tokens.min(words[0] as usize);
        words[0] = left as u32;
        words[1 + left..=self.most].fill(0);
        words[1 + self.most..][left.saturating_sub(1)..].fill(0);
        Outcome::of(words, self.most)
    }

    /// Gives every rank of a DP rank the lead's outcomes. It is skipped if the ranks' devices
    /// have told each other all of them, which `choices`, equal on all ranks, says.
    ///
    /// # Errors
    /// [`WorkerError::Backend`] when a peer is gone.
    pub fn broadcast<B: Backend>(
        &mut self,
        backend: &mut B,
        choices: ChoiceBatch<'_>,
    ) -> Result<(), WorkerError> {
        let rows = self.words.len() / (2 * self.most).max(1);
        if (0..rows).any(|row| choices.is_hosts(row)) {
            backend
                .control(Axis::Attention)
                .broadcast(0, &mut self.words)?;
        }
        Ok(())
    }

    /// Takes the outcomes into the step's digest.
    pub fn digest(&self, digest: &mut Digest) {
        digest.list(&self.words);
    }

    /// Returns one outcome for each of the step's `tasks`, in order.
    pub fn of<'a>(&'a self, tasks: &'a [RowTask]) -> impl Iterator<Item = Outcome<'a>> {
        let most = self.most;
        let mut sampled = self.words.chunks_exact(2 * most);
        tasks.iter().map(move |task| {
            let words = if task.sample { sampled.next() } else { None };
            words.map_or(Outcome::NONE, |words| Outcome::of(words, most))
        })
    }

    /// Moves accepted nodes of trees to the cells of their positions, and commits to the slots.
    /// Nodes of `choices` that the device has moved already are left out.
    pub fn commit<B: Backend>(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        tasks: &[RowTask],
        choices: ChoiceBatch<'_>,
        slots: &mut Slots,
    ) {
        let mut moves = std::mem::take(&mut self.moves);
        for group in 0..slots.pages().groups() {
            moves.clear();
            for (task, outcome) in tasks.iter().zip(self.of(tasks)) {
                if choices.is_hosts(task.choice) {
                    push_moves(task, outcome, group, slots, &mut moves);
                }
            }
            cache.copy_cells(backend, group, &moves);
        }
        self.moves = moves;
        for (task, outcome) in tasks.iter().zip(self.of(tasks)) {
            slots.commit(*task, outcome.tokens);
        }
    }
}

/// Appends the cells of a group to move. Node `n` lies in the cell of position `start + n`. The
/// `i`-th accepted node belongs to position `start + i`. Since `i <= n`, no cell is overwritten in
/// this order before it was moved. Example: nodes 2 and 3 are accepted, so the cell of `start + 2`
/// moves to `start + 1`, and the cell of `start + 3` to `start + 2`.
fn push_moves(
    task: &RowTask,
    outcome: Outcome<'_>,
    group: usize,
    slots: &Slots,
    moves: &mut Vec<(u32, u32)>,
) {
    let cell = |offset: u32| slots.pages().cell(group, task.slot, task.start + offset);
    let path = (1..).zip(outcome.path);
    let moved = path.filter(|(to, from)| to != *from);
    moves.extend(moved.map(|(to, from)| (cell(*from), cell(to))));
}

#[cfg(test)]
mod tests;
