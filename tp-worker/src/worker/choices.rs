//! How the tokens of a step may be chosen where their logits are, on the device.

use lockstep_backend::{Choice, How};
use lockstep_speculation::{Drafts, Verifier};

use super::{
    batch::{BatchBuffers, LogitUse, Wanted},
    slots::{RowTask, Slots},
};

/// For each row of wanted logits how its token is chosen.
#[derive(Debug, Default)]
pub struct Choices {
    list: Vec<Choice>,
}

/// What scores prompts, reports log-probabilities or needs a request's history.
const HOST: Choice = Choice {
    how: How::Host,
    seed: 0,
    position: 0,
};

impl Choices {
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
        let uses = batch.uses().iter().enumerate();
        let choice = |(at, LogitUse { row, wanted }): (usize, &LogitUse)| {
            let task = &tasks[*row];
            let slot = slots.get(task.slot);
            let (drafts, row) = drafts_of(task, drafts);
            let samples = || verifier.samples(drafts, row, &slot.sampling);
            if matches!(wanted, Wanted::Score(_)) || slot.logprobs.output || !samples() {
                return HOST;
            }
            let outputs = slot.tokens.len() as u64 - u64::from(slot.prompt_len);
            Choice::of(&slot.sampling, outputs + u64::from(batch.depth(at, task)))
        };
        self.list.clear();
        self.list.extend(uses.map(choice));
    }

    /// In the order of [`BatchBuffers::uses`].
    pub fn list(&self) -> &[Choice] {
        &self.list
    }
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
