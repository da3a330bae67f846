//! Choosing the tokens of a step on the device, where their logits are.

use lockstep_backend::{Choice, ChoiceBatch, ChoiceMethod, ChoiceRow, DraftedRow};
use lockstep_speculation::{Drafts, Verifier, is_chain};

use super::{
    WorkerLimits,
    batch::{BatchBuffers, LogitUse, Wanted},
    slots::{RowTask, Slot, Slots},
};

/// The rows of a step that sample, and the shape of their drafts.
#[derive(Debug)]
pub struct Choices {
    choices: Vec<Choice>,
    rows: Vec<ChoiceRow>,
    drafted: Vec<DraftedRow>,
    parents: Vec<u32>,
}

/// The rules by which rows are the device's to choose from.
#[derive(Debug, Clone, Copy)]
pub struct ChoiceRules<'a> {
    /// Decides if a device may choose a row's tokens.
    pub verifier: &'a Verifier,
    /// True if masks of constrained rows come to the device.
    pub masks: bool,
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

    /// Removes all rows, which leaves all choices to the host.
    pub fn clear(&mut self) {
        self.choices.clear();
        self.rows.clear();
        self.drafted.clear();
        self.parents.clear();
    }

    /// Takes the rows of `batch` that sample, and decides by `rules` if a device may choose their
    /// tokens. `drafts` are the drafts of the step and, as second, the drafts of a row without
    /// any.
    pub fn lay_out(
        &mut self,
        batch: &BatchBuffers,
        tasks: &[RowTask],
        slots: &Slots,
        rules: ChoiceRules<'_>,
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
                self.choices.push(choice(task, slots, rules, drafts));
                self.draft(at, batch.wanted(at), drafts);
            }
            self.rows.push(ChoiceRow {
                request: task.choice as u32,
                depth: batch.depth(at, task),
            });
        }
    }

    /// Notes the drafts behind `token` of the batch, whose logits are wanted as number `at`.
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

    /// Returns the choices in the form that a batch has.
    pub fn batch(&self) -> ChoiceBatch<'_> {
        ChoiceBatch {
            choices: &self.choices,
            rows: &self.rows,
            drafted: &self.drafted,
            parents: &self.parents,
        }
    }
}

/// Returns the choice for a row. The host chooses if the row reports log-probabilities, needs
/// its history, or is constrained and has no masks on the device. For drafts it has them if its
/// constraint can look ahead.
fn choice(
    task: &RowTask,
    slots: &Slots,
    ChoiceRules { verifier, masks }: ChoiceRules<'_>,
    (drafts, row): (&Drafts, usize),
) -> Choice {
    let slot = slots.get(task.slot);
    let choice = choice_of(slot);
    let constrained = slot.generation.constraint.is_some();
    let masked = || {
        let output = slot.tokens.len() - slot.prompt_len as usize;
        let ahead = slot.constraint.as_ref();
        drafts.nodes(row).is_empty() || ahead.is_some_and(|own| own.looks_ahead(output))
    };
    let devices = is_samplers(slot) && (!constrained || masks && masked());
    if !devices || !verifier.samples(drafts, row, &slot.generation.sampling) {
        return Choice {
            how: ChoiceMethod::Host,
            ..choice
        };
    }
    choice
}

/// Returns true if a device may choose a request's next tokens, drafts and all. All ranks give the
/// same answer. A request with scored prompt positions is excluded: if their logits were not finite, only
/// the host that scored them knows that the request has failed.
pub fn is_devices(slot: &Slot) -> bool {
    slot.generation.constraint.is_none() && is_samplers(slot)
}

/// Returns true if a device's sampler may choose a request's next token, by a mask if the request
/// is constrained.
fn is_samplers(slot: &Slot) -> bool {
    let logprobs = slot.generation.logprobs;
    let reports = logprobs.output || logprobs.prompt_start.is_some();
    !reports && choice_of(slot).how != ChoiceMethod::Host
}

fn choice_of(slot: &Slot) -> Choice {
    let outputs = slot.tokens.len() as u64 - u64::from(slot.prompt_len);
    Choice::of(&slot.generation.sampling, outputs)
}

/// Returns the drafts that a row's drafts are in, and the number of their row.
pub fn drafts_of<'a>(
    task: &RowTask,
    (drafts, none): (&'a Drafts, &'a Drafts),
) -> (&'a Drafts, usize) {
    match task.drafts {
        Some(row) => (drafts, row),
        None => (none, 0),
    }
}
