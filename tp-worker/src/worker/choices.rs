//! How the tokens of a step are chosen where their logits are, on the device.

use lockstep_backend::{Choice, ChoiceBatch, ChoiceRow, DraftedRow, How};
use lockstep_speculation::{Drafts, Verifier, is_chain};

use super::{
    WorkerLimits,
    batch::{BatchBuffers, LogitUse, Wanted},
    slots::{RowTask, Slot, Slots},
};

/// The rows of a step that sample, and what was drafted for them.
#[derive(Debug)]
pub struct Choices {
    choices: Vec<Choice>,
    rows: Vec<ChoiceRow>,
    drafted: Vec<DraftedRow>,
    parents: Vec<u32>,
}

impl Choices {
    pub fn new(limits: &WorkerLimits) -> Self {
        let (requests, step) = (limits.step.requests, &limits.step);
        let parents = match step.branches {
            true => requests * step.verified.saturating_sub(1),
            false => 0,
        };
        Self {
            choices: Vec::with_capacity(requests),
            rows: Vec::with_capacity(step.tokens),
            drafted: Vec::with_capacity(requests),
            parents: Vec::with_capacity(parents),
        }
    }

    /// Leaves all to the host.
    pub fn clear(&mut self) {
        self.choices.clear();
        self.rows.clear();
        self.drafted.clear();
        self.parents.clear();
    }

    /// Those of the rows of `batch`, of which `verifier` says whether a device may.
    /// `drafts` are the step's, and those of a row that has none.
    pub fn lay_out(
        &mut self,
        batch: &BatchBuffers,
        tasks: &[RowTask],
        slots: &Slots,
        verifier: &Verifier,
        drafts: (&Drafts, &Drafts),
    ) {
        self.clear();
        for (at, LogitUse { row, wanted }) in batch.uses().iter().enumerate() {
            let task = &tasks[*row];
            let Wanted::Node(number) = wanted else {
                self.rows.push(ChoiceRow::HOST);
                continue;
            };
            let drafts = drafts_of(task, drafts);
            if *number == 0 {
                self.choices.push(choice(task, slots, verifier, drafts));
                self.draft(at, batch.wanted(at), drafts);
            }
            self.rows.push(ChoiceRow {
                request: task.choice as u32,
                depth: batch.depth(at, task),
            });
        }
    }

    /// Notes what was drafted behind `token` of the batch, whose logits are wanted as
    /// number `at`.
    fn draft(&mut self, at: usize, token: u32, (drafts, row): (&Drafts, usize)) {
        let nodes = drafts.nodes(row);
        let tree = !is_chain(nodes);
        self.drafted.push(DraftedRow {
            logits: at as u32,
            token,
            nodes: nodes.len() as u32,
            parents: tree.then_some(self.parents.len() as u32),
        });
        if tree {
            self.parents.extend(nodes.iter().map(|node| node.parent));
        }
    }

    /// As a batch has them.
    pub fn batch(&self) -> ChoiceBatch<'_> {
        ChoiceBatch {
            choices: &self.choices,
            rows: &self.rows,
            drafted: &self.drafted,
            parents: &self.parents,
        }
    }
}

/// How the tokens of a row are chosen. One that reports log-probabilities or needs its
/// history is the host's.
fn choice(
    task: &RowTask,
    slots: &Slots,
    verifier: &Verifier,
    (drafts, row): (&Drafts, usize),
) -> Choice {
    let slot = slots.get(task.slot);
    let choice = choice_of(slot);
    if !is_devices(slot) || !verifier.samples(drafts, row, &slot.sampling) {
        return Choice {
            how: How::Host,
            ..choice
        };
    }
    choice
}

/// Whether a device may choose a request's next token: all ranks say the same. Where
/// logits of a prompt were no numbers, the host that scored it alone knows that its request
/// has failed.
pub fn is_devices(slot: &Slot) -> bool {
    let reports = slot.logprobs.output || slot.logprobs.prompt_start.is_some();
    !reports && choice_of(slot).how != How::Host
}

fn choice_of(slot: &Slot) -> Choice {
    let outputs = slot.tokens.len() as u64 - u64::from(slot.prompt_len);
    Choice::of(&slot.sampling, outputs)
}

/// A row's drafts, and which row of them it is.
pub fn drafts_of<'a>(
    task: &RowTask,
    (drafts, none): (&'a Drafts, &'a Drafts),
) -> (&'a Drafts, usize) {
    match task.drafts {
        Some(row) => (drafts, row),
        None => (none, 0),
    }
}
