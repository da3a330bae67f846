//! A step in flight, and the check that a result fits it.

use lockstep_types::step::{SlotOutput, StepResult};

use crate::{batch::RowInFlight, request::len_u32};

/// One step in flight.
#[derive(Debug)]
pub(crate) struct StepInFlight {
    number: u64,
    /// Rows by DP rank.
    rows: Vec<Vec<RowInFlight>>,
}

impl StepInFlight {
    pub(super) fn new(number: u64, rows: Vec<Vec<RowInFlight>>) -> Self {
        Self { number, rows }
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns true if a DP rank has rows in the step.
    pub fn runs(&self, dp_rank: usize) -> bool {
        self.rows.get(dp_rank).is_some_and(|rows| !rows.is_empty())
    }

    /// Returns the rows of all DP ranks.
    pub fn rows(&self) -> impl Iterator<Item = &RowInFlight> {
        self.rows.iter().flatten()
    }

    /// Returns the rows of each DP rank, each row with its output.
    pub fn results(
        &self,
        outputs: Vec<Vec<SlotOutput>>,
    ) -> impl Iterator<Item = impl Iterator<Item = (&RowInFlight, Option<SlotOutput>)>> {
        self.rows.iter().zip(outputs).map(|(rows, outputs)| {
            let mut outputs = outputs.into_iter().peekable();
            rows.iter()
                .map(move |row| (row, outputs.next_if(|output| output.slot == row.slot)))
        })
    }

    /// Checks that a result has a part for each DP rank, and that each part fits.
    pub(super) fn check(&self, result: &StepResult) -> Result<(), String> {
        let (parts, expected) = (result.outputs.len(), self.rows.len());
        if parts != expected {
            return Err(format!("it has {parts} parts for {expected} DP ranks"));
        }
        let mut parts = self.rows.iter().zip(&result.outputs);
        parts.try_for_each(|(rows, outputs)| check_part(rows, outputs))
    }

    /// Returns the emptied buffers.
    pub(super) fn into_buffers(mut self) -> Vec<Vec<RowInFlight>> {
        self.rows.iter_mut().for_each(Vec::clear);
        self.rows
    }
}

/// Checks the outputs of one DP rank, which stand in the order of its rows. A row that samples
/// has an output. That output has a token, or none if the logits were not numbers. It has
/// several tokens only if as many drafts stand before them. A row has drafts only if it may
/// draft.
fn check_part(rows: &[RowInFlight], outputs: &[SlotOutput]) -> Result<(), String> {
    let mut outputs = outputs.iter().peekable();
    for row in rows {
        let slot = row.slot;
        let Some(output) = outputs.next_if(|output| output.slot == slot) else {
            if row.sample {
                return Err(format!("slot {slot} brought nothing"));
            }
            continue;
        };
        let depth = output.draft_depth;
        if depth > row.depth || (depth == 0) != (output.draft_tokens == 0) {
            return Err(format!(
                "slot {slot} drafted {} tokens in {depth} steps, at most {} steps",
                output.draft_tokens, row.depth
            ));
        }
        let (forced, accepted) = (output.forced_tokens, output.accepted_forced_tokens);
        if forced > output.draft_tokens || accepted > forced {
            return Err(format!(
                "slot {slot} drafted {} tokens, {forced} of them forced, of which {accepted} \
                 were accepted",
                output.draft_tokens
            ));
        }
        let count = len_u32(&output.token_ids);
        let most = row.max_tokens.min(1 + depth);
        if count > most {
            return Err(format!(
                "slot {slot} brought {count} tokens, at most {most}"
            ));
        }
    }
    match outputs.next() {
        Some(output) => Err(format!("slot {} was not in the plan", output.slot)),
        None => Ok(()),
    }
}
