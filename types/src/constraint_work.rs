//! The cost of constraints of outputs, on a lead.

use std::ops::AddAssign;

/// Work for the constraints of a lead's requests, in one step or since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConstraintWork {
    /// Masks that a grammar computed.
    pub masks: u64,
    /// Time of these masks, microseconds.
    pub mask_us: u64,
    /// Times that a step stood still until a constraint was compiled.
    pub waits: u64,
    /// Time that steps stood still for that, microseconds.
    pub wait_us: u64,
    /// Constraints that were compiled.
    pub compiles: u64,
    /// Constraints of requests that had been compiled before, for another request or choice.
    pub cache_hits: u64,
    /// Requests whose constraint could not be followed any further.
    pub failures: u64,
    /// Drafted tokens that the constraint forbade where they were drafted, before the pass or in
    /// it. Tokens behind them do not count.
    pub cut_drafts: u64,
}

impl AddAssign for ConstraintWork {
    fn add_assign(&mut self, more: Self) {
        let Self {
            masks,
            mask_us,
            waits,
            wait_us,
            compiles,
            cache_hits,
            failures,
            cut_drafts,
        } = more;
        self.masks += masks;
        self.mask_us += mask_us;
        self.waits += waits;
        self.wait_us += wait_us;
        self.compiles += compiles;
        self.cache_hits += cache_hits;
        self.failures += failures;
        self.cut_drafts += cut_drafts;
    }
}
