//! What speculation brought, in sums since the start.

use lockstep_types::step::SlotOutput;

/// Counts over all decode rows that verified drafted tokens.
///
/// A position never proposed is no rejection: its rate of acceptance is
/// `accepted[i] / proposed[i]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpeculationCounters {
    /// Rows that verified drafted tokens.
    pub verify_steps: u64,
    /// Drafted tokens that were verified, all branches together.
    pub draft_tokens: u64,
    /// Of those, accepted ones; where a text ended among them, all the same.
    pub accepted_tokens: u64,
    /// The others, and all of rows whose request had ended.
    pub wasted_tokens: u64,
    /// By position: rows that proposed a token there.
    pub proposed: Vec<u64>,
    /// By position: rows that accepted one there.
    pub accepted: Vec<u64>,
}

impl SpeculationCounters {
    /// Nothing yet, for drafts of up to `steps` positions.
    pub(crate) fn new(steps: u32) -> Self {
        Self {
            proposed: vec![0; steps as usize],
            accepted: vec![0; steps as usize],
            ..Self::default()
        }
    }

    /// Counts a row whose request goes on.
    pub(crate) fn count(&mut self, output: &SlotOutput, accepted: u32) {
        self.verify_steps += 1;
        self.draft_tokens += u64::from(output.draft_tokens);
        self.accepted_tokens += u64::from(accepted);
        self.wasted_tokens += u64::from(output.draft_tokens.saturating_sub(accepted));
        for (list, length) in [
            (&mut self.proposed, output.draft_depth),
            (&mut self.accepted, accepted),
        ] {
            let positions = list.iter_mut().take(length as usize);
            positions.for_each(|count| *count += 1);
        }
    }

    /// Counts a row whose request had ended when its result came.
    pub(crate) fn count_wasted(&mut self, output: &SlotOutput) {
        self.verify_steps += 1;
        self.draft_tokens += u64::from(output.draft_tokens);
        self.wasted_tokens += u64::from(output.draft_tokens);
    }
}
