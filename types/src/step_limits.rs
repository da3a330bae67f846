//! Limits of the largest step that a worker is asked for.

use crate::{EngineConfig, ScheduleConfig, SpeculationConfig};

/// Sizes of the largest step. Memory is charged by these sizes, workers allocate by them, and
/// the planner keeps within them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepLimits {
    /// Rows of the batch: requests that run at once.
    pub requests: usize,
    /// Tokens of the batch: prompt tokens, and the tokens that are verified for every request.
    pub tokens: usize,
    /// Positions of one request. A text may end at the context length, and the step that is in
    /// flight then writes beyond it.
    pub positions: usize,
    /// Tokens of one request that a step verifies: the last known token and the drafts.
    pub verified: usize,
    /// Tokens that a step commits for one request.
    pub max_commit: usize,
    /// Nodes that a drafter expands for one request, the root included.
    pub draft_nodes: usize,
    /// True if drafts may be trees. Only trees need masks; a chain is a plain row.
    pub branches: bool,
}

impl StepLimits {
    /// Returns the limits for one DP rank's schedule and texts of at most `context_length`
    /// tokens.
    pub fn new(
        schedule: &ScheduleConfig,
        speculation: &SpeculationConfig,
        context_length: usize,
    ) -> Self {
        let requests = schedule.max_running_requests;
        let verified = speculation.max_speculative_num_draft_tokens.max(1);
        let prefill = Self::prefill_tokens(
            schedule.max_prefill_tokens,
            schedule.chunked_prefill_size,
            context_length,
        );
        let reserve = speculation.reserve();
        let beyond = reserve.req_to_token_extra_context_len(schedule.overlap);
        Self {
            requests,
            tokens: prefill.saturating_add(requests.saturating_mul(verified)),
            positions: context_length + beyond as usize,
            verified,
            max_commit: speculation.max_commit(),
            draft_nodes: speculation.num_steps * speculation.topk + 1,
            branches: speculation.topk > 1,
        }
    }

    /// Returns the most prompt tokens in one step. If prompts are cut, `chunk` is for all
    /// prompts together. If they are not, several prompts run in one step up to
    /// `max_prefill_tokens`, or one alone, however long.
    pub const fn prefill_tokens(
        max_prefill_tokens: usize,
        chunk: Option<usize>,
        context_length: usize,
    ) -> usize {
        match chunk {
            Some(chunk) if chunk < max_prefill_tokens => chunk,
            None if context_length > max_prefill_tokens => context_length,
            _ => max_prefill_tokens,
        }
    }

    /// Returns the most tokens of a drafter's pass. The pass takes in all tokens of a target
    /// step and those that the drafter has fallen behind, or all nodes of all trees.
    pub fn draft_tokens(&self) -> usize {
        let behind = self.requests.saturating_mul(2);
        let nodes = self.requests.saturating_mul(self.draft_nodes);
        self.tokens.saturating_add(behind).max(nodes)
    }
}

impl EngineConfig {
    /// Returns the limits of one step on the ranks of a DP rank.
    pub fn step_limits(&self) -> StepLimits {
        StepLimits::new(
            &self.schedule.of_dp_rank(self.parallel.dp_size),
            &self.speculation,
            self.server.context_length,
        )
    }
}

#[cfg(test)]
mod tests;
