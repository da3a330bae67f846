//! From logits to a step's outputs, on the rank that leads.

use lockstep_backend::{Choice, FAILED, How};
use lockstep_model::{LogitBlock, LogitSink};
use lockstep_sampling::{Sampler, token_logprob};
use lockstep_speculation::{Drafts, Verifier, VerifyRow};
use lockstep_types::step::SlotOutput;

use super::{
    batch::{BatchBuffers, LogitUse, Wanted},
    choices::{Choices, drafts_of},
    outcome::Outcomes,
    slots::{RowTask, Slot, Slots},
};

/// Samples, verifies and scores rows of logits as they arrive.
pub struct Emitter<'a> {
    pub slots: &'a mut Slots,
    pub tasks: &'a [RowTask],
    pub batch: &'a BatchBuffers,
    /// How the device may choose tokens.
    pub choices: &'a Choices,
    /// The step's drafts, and those of a row that has none.
    pub drafts: (&'a Drafts, &'a Drafts),
    pub sampler: &'a mut Sampler,
    pub verifier: &'a mut Verifier,
    pub outputs: &'a mut [SlotOutput],
    pub outcomes: &'a mut Outcomes,
}

/// What is known at a node.
#[derive(Clone, Copy)]
enum Found<'a> {
    /// Its logits.
    Logits(&'a [f32]),
    /// The token that the device has chosen from them; `None`: they are not finite.
    Token(Option<u32>),
}

impl LogitSink for Emitter<'_> {
    fn choices(&self) -> &[Choice] {
        self.choices.list()
    }

    fn take(&mut self, block: LogitBlock<'_>) {
        let uses = &self.batch.uses()[block.first..];
        let choices = &self.choices.list()[block.first..];
        let rows = uses.iter().zip(choices).take(block.rows);
        for (at, (LogitUse { row, wanted }, choice)) in rows.enumerate() {
            let token = block.tokens.get(at);
            let found = match token.filter(|_| choice.how != How::Host) {
                Some(token) => Found::Token((*token != FAILED).then_some(*token)),
                None => Found::Logits(&block.logits[at * block.vocab..][..block.vocab]),
            };
            let task = self.tasks[*row];
            match (wanted, found) {
                (Wanted::Score(position), Found::Logits(logits)) => {
                    self.score(task, *position, logits);
                }
                // Scores are the host's.
                (Wanted::Score(_), Found::Token(_)) => {}
                (Wanted::Node(number), found) => {
                    let drafts = self.batch.rows()[*row].q_len - task.q_len;
                    self.verify(task, *number, *number == drafts, found);
                }
            }
        }
    }
}

impl Emitter<'_> {
    /// Reports the log-probability of a prompt position.
    fn score(&mut self, task: RowTask, position: u32, logits: &[f32]) {
        let slot = self.slots.get_mut(task.slot);
        let token = slot.tokens[position as usize];
        match token_logprob(logits, token, slot.logprobs.top as usize) {
            Ok(logprob) => {
                if let Some(output) = task.output {
                    self.outputs[output].prompt_logprobs.push(logprob);
                }
            }
            Err(_) => slot.failed = true,
        }
    }

    /// Takes in a node's logits or token; with the row's last one it is decided. A slot
    /// whose logits are not finite emits nothing from then on, which its
    /// scheduler takes for an error of that request alone.
    fn verify(&mut self, task: RowTask, number: u32, last: bool, found: Found<'_>) {
        let slot = self.slots.get_mut(task.slot);
        let mut row = verify_row(slot, drafts_of(&task, self.drafts));
        if number == 0 {
            self.verifier.begin(&row);
        }
        let verifier = &mut *self.verifier;
        let failed = match found {
            Found::Logits(logits) => verifier
                .node(number, logits, &mut row, self.sampler)
                .is_err(),
            Found::Token(token) => !verifier.chosen(number, token, &mut row),
        };
        let verified = last.then(|| self.verifier.finish(&mut row));
        slot.failed |= failed;
        let Some(verified) = verified else { return };
        if slot.failed || verified.tokens.is_empty() {
            slot.failed = true;
            self.outcomes.push(None);
            return;
        }
        self.outcomes.push(Some(verified));
        if let Some(output) = task.output {
            let output = &mut self.outputs[output];
            output.token_ids.extend_from_slice(&verified.tokens);
            output.logprobs.append(&mut verified.logprobs);
        }
    }
}

/// A row as the verifier sees it.
fn verify_row<'a>(slot: &'a mut Slot, (drafts, row): (&'a Drafts, usize)) -> VerifyRow<'a> {
    let reported = slot.logprobs;
    VerifyRow {
        drafts,
        row,
        position: slot.tokens.len() as u64 - u64::from(slot.prompt_len),
        params: &slot.sampling,
        history: &mut slot.history,
        logprobs: reported.output.then_some(reported.top as usize),
    }
}
