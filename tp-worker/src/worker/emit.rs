//! From logits to a step's outputs, on the rank that leads.

use lockstep_model::LogitBlock;
use lockstep_sampling::{Sampler, token_logprob};
use lockstep_speculation::{Drafts, Verifier, VerifyRow};
use lockstep_types::step::SlotOutput;

use super::{
    batch::{BatchBuffers, LogitUse, Wanted},
    outcome::Outcomes,
    slots::{RowTask, Slot, Slots},
};

/// Samples, verifies and scores rows of logits as they arrive.
pub struct Emitter<'a> {
    pub slots: &'a mut Slots,
    pub tasks: &'a [RowTask],
    pub batch: &'a BatchBuffers,
    /// The step's drafts, and those of a row that has none.
    pub drafts: (&'a Drafts, &'a Drafts),
    pub sampler: &'a mut Sampler,
    pub verifier: &'a mut Verifier,
    pub outputs: &'a mut [SlotOutput],
    pub outcomes: &'a mut Outcomes,
}

impl Emitter<'_> {
    /// Consumes one block.
    pub fn take(&mut self, block: LogitBlock<'_>) {
        let rows = block.logits.chunks_exact(block.vocab);
        let uses = &self.batch.uses()[block.first..];
        for (logits, LogitUse { row, wanted }) in rows.zip(uses) {
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

    /// Takes in a node's logits; with the row's last one it is decided. A slot
    /// whose logits are not finite emits nothing from then on, which its
    /// scheduler takes for an error of that request alone.
    fn verify(&mut self, task: RowTask, number: u32, last: bool, logits: &[f32]) {
        let slot = self.slots.get_mut(task.slot);
        let mut row = verify_row(slot, self.drafts, task.drafts);
        if number == 0 {
            self.verifier.begin(&row);
        }
        let failed = self
            .verifier
            .node(number, logits, &mut row, self.sampler)
            .is_err();
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
fn verify_row<'a>(
    slot: &'a mut Slot,
    (drafts, none): (&'a Drafts, &'a Drafts),
    row: Option<usize>,
) -> VerifyRow<'a> {
    let reported = slot.logprobs;
    VerifyRow {
        drafts: if row.is_some() { drafts } else { none },
        row: row.unwrap_or(0),
        position: slot.tokens.len() as u64 - u64::from(slot.prompt_len),
        params: &slot.sampling,
        history: &mut slot.history,
        logprobs: reported.output.then_some(reported.top as usize),
    }
}
