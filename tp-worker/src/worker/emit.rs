//! Making a step's outputs from logits, on the lead.

use lockstep_backend::{ChoiceBatch, Chosen, Masks};
use lockstep_model::{LogitBlock, LogitSink};
use lockstep_sampling::{Sampler, TokenConstraint as _, token_logprob};
use lockstep_speculation::{Drafts, Verifier, VerifyRow};
use lockstep_types::{ConstraintWork, step::SlotOutput};

use super::{
    batch::{BatchBuffers, LogitUse, Wanted},
    choices::drafts_of,
    constraints::SlotConstraint,
    masks::RowMasks,
    outcome::Outcomes,
    slots::{FAILED, RowTask, Slot, Slots},
};

/// Samples, verifies and scores rows of logits as they arrive.
pub struct Emitter<'a> {
    pub slots: &'a mut Slots,
    pub tasks: &'a [RowTask],
    pub batch: &'a BatchBuffers,
    /// The choices that the device makes.
    pub choices: ChoiceBatch<'a>,
    /// The step's drafts, and the drafts of a row without any.
    pub drafts: (&'a Drafts, &'a Drafts),
    pub sampler: &'a mut Sampler,
    pub verifier: &'a mut Verifier,
    pub outputs: &'a mut [SlotOutput],
    pub outcomes: &'a mut Outcomes,
    /// Masks of the constrained rows that the device chooses from.
    pub masks: &'a mut RowMasks,
    /// Work for constraints so far.
    pub constraints: &'a mut ConstraintWork,
}

impl LogitSink for Emitter<'_> {
    fn masks(&mut self) -> Masks<'_> {
        self.masks.make(self.tasks, self.slots, self.drafts)
    }

    fn take(&mut self, block: LogitBlock<'_>) {
        let uses = self.batch.uses()[block.first..].iter().take(block.rows);
        for (at, LogitUse { row, wanted }) in uses.enumerate() {
            if !self.choices.is_hosts_row(block.first + at) {
                continue;
            }
            let logits = &block.logits[at * block.vocab..][..block.vocab];
            let task = self.tasks[*row];
            match wanted {
                Wanted::Score(position) => self.score(task, *position, logits),
                Wanted::Node(number) => {
                    let drafts = self.batch.rows()[*row].q_len - task.q_len;
                    self.verify(task, *number, *number == drafts, logits);
                }
            }
        }
    }

    fn outcomes(&mut self, chosen: Chosen<'_>) {
        self.outcomes.set_drafted(&chosen);
        let words = chosen.words;
        let tasks = self.tasks.iter().enumerate();
        let tasks = tasks.filter(|(_, task)| task.sample);
        for (at, task) in tasks.filter(|(_, task)| !self.choices.is_hosts(task.choice)) {
            let slot = self.slots.get_mut(task.slot);
            let mut found = self.outcomes.take(task.choice, words);
            slot.failed |= matches!(found.tokens, [] | [FAILED]);
            if let Some(constraint) = &mut slot.constraint {
                if !slot.failed {
                    let taken = take_all(constraint, found.tokens);
                    slot.failed |= taken == 0;
                    found = self.outcomes.shorten(task.choice, taken);
                    let (drafts, row) = drafts_of(task, self.drafts);
                    let cut = self.masks.cut(at, drafts.nodes(row), found.path);
                    self.constraints.cut_drafts += u64::from(cut);
                }
                constraint.report(self.constraints);
            }
            if slot.failed {
                tell_failure(task.slot, slot, self.constraints);
                self.outcomes.set(task.choice, None);
                continue;
            }
            // Only leads have outputs.
            let output = task.output.and_then(|output| self.outputs.get_mut(output));
            if let Some(output) = output {
                output.token_ids.extend_from_slice(found.tokens);
                output.accepted_forced_tokens = task.forced_in(found.path);
            }
        }
    }
}

/// Gives a constraint the tokens that a device chose. Returns the number that it took. Behind
/// drafts the masks are another state's, so they are computed here once more: they count for what
/// an output may cost, as they do where the host chooses.
fn take_all(constraint: &mut SlotConstraint, tokens: &[u32]) -> usize {
    let mut take = |token: &&u32| constraint.allowed().is_ok() && constraint.take(**token).is_ok();
    tokens.iter().take_while(|token| take(token)).count()
}

impl Emitter<'_> {
    /// Reports the log-probability of a prompt position.
    fn score(&mut self, task: RowTask, position: u32, logits: &[f32]) {
        let slot = self.slots.get_mut(task.slot);
        let token = slot.tokens[position as usize];
        match token_logprob(logits, token, slot.generation.logprobs.top as usize) {
            Ok(logprob) => {
                if let Some(output) = task.output {
                    self.outputs[output].prompt_logprobs.push(logprob);
                }
            }
            Err(_) => slot.failed = true,
        }
    }

    /// Takes in the logits of a node. The last node's logits decide the row. A slot whose
    /// logits are not finite emits nothing from then on. The scheduler takes that for an error
    /// of this request alone.
    fn verify(&mut self, task: RowTask, number: u32, last: bool, logits: &[f32]) {
        let slot = self.slots.get_mut(task.slot);
        let mut row = verify_row(slot, drafts_of(&task, self.drafts));
        if number == 0 {
            self.verifier.begin(&row);
        }
        let node = self.verifier.node(number, logits, &mut row, self.sampler);
        let verified = last.then(|| self.verifier.finish(&mut row));
        slot.failed |= node.is_err();
        let Some(verified) = verified else { return };
        if let Some(constraint) = &mut slot.constraint {
            constraint.report(self.constraints);
            self.constraints.cut_drafts += u64::from(verified.cut);
        }
        if slot.failed || verified.tokens.is_empty() {
            slot.failed = true;
            tell_failure(task.slot, slot, self.constraints);
            self.outcomes.set(task.choice, None);
            return;
        }
        self.outcomes.set(task.choice, Some(verified));
        if let Some(output) = task.output {
            let output = &mut self.outputs[output];
            output.token_ids.extend_from_slice(&verified.tokens);
            output.accepted_forced_tokens = task.forced_in(&verified.path);
            output.logprobs.append(&mut verified.logprobs);
        }
    }
}

/// Reports why a slot's constraint can't be followed, if that is why the slot has failed.
fn tell_failure(number: usize, slot: &mut Slot, work: &mut ConstraintWork) {
    let failure = slot.constraint.as_mut().and_then(SlotConstraint::failure);
    if let Some(why) = failure {
        work.failures += 1;
        tracing::warn!(slot = number, why, "a constraint can't be followed");
    }
}

/// Makes the row that the verifier reads.
fn verify_row<'a>(slot: &'a mut Slot, (drafts, row): (&'a Drafts, usize)) -> VerifyRow<'a> {
    let reported = slot.generation.logprobs;
    VerifyRow {
        drafts,
        row,
        position: slot.tokens.len() as u64 - u64::from(slot.prompt_len),
        params: &slot.generation.sampling,
        history: &mut slot.history,
        constraint: slot.constraint.as_mut().map(SlotConstraint::as_constraint),
        logprobs: reported.output.then_some(reported.top as usize),
    }
}
