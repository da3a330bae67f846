//! The planner's load, and counts of its work since the start.

use lockstep_types::{
    request::{ErrorKind, FinishReason, RequestError},
    step::{SlotOutput, StepPlan},
};

use crate::{Millis, kv::Found};

/// A snapshot of the planner's load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests that hold a slot.
    pub running_requests: u32,
    /// Requests that wait for a slot, retracted ones included.
    pub waiting_requests: u32,
    /// Tokens of the waiting requests.
    pub waiting_tokens: u64,
    /// KV tokens held by requests, in whole pages.
    pub kv_tokens_used: u64,
    /// KV tokens of the prefix cache that can be evicted.
    pub kv_tokens_cached: u64,
    /// KV tokens of all pages.
    pub kv_tokens_total: u64,
    /// KV tokens held by requests in all groups of layers with sliding windows, in whole pages.
    /// The other fields of this kind count the groups that keep all positions.
    pub kv_window_tokens_used: u64,
    /// KV tokens of these groups' part of the prefix cache that can be evicted.
    pub kv_window_tokens_cached: u64,
    /// KV tokens of all pages of these groups.
    pub kv_window_tokens_total: u64,
    /// States of recurrent layers held by requests: live ones, and copies not cached yet.
    pub kv_states_used: u64,
    /// States of the prefix cache. Each can be evicted, alone or with its block.
    pub kv_states_cached: u64,
    /// All states of recurrent layers.
    pub kv_states_total: u64,
    /// Pages without a known holder: always 0.
    pub leaked_pages: u64,
    /// States without a known holder: always 0.
    pub leaked_states: u64,
    /// Steps planned and not completed.
    pub steps_in_flight: u32,
    /// Sums since the start.
    pub counters: Counters,
}

/// Load of one DP rank. Waiting requests count here only if they name the DP rank or had begun
/// there; all others may run in any DP rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DpRankLoad {
    /// Requests that hold a slot of the DP rank.
    pub running_requests: u32,
    /// Requests that wait and name the DP rank, or name none and were retracted in it.
    pub waiting_requests: u32,
    /// Tokens of these waiting requests.
    pub waiting_tokens: u64,
    /// Number of these waiting requests that had begun.
    pub retracted_requests: u32,
    /// KV tokens of the DP rank held by requests, in whole pages.
    pub kv_tokens_used: u64,
    /// KV tokens of the DP rank's prefix cache that can be evicted.
    pub kv_tokens_cached: u64,
    /// KV tokens of all pages of the DP rank.
    pub kv_tokens_total: u64,
    /// Sums since the start.
    pub counters: DpRankCounters,
}

/// One DP rank's part of [`Counters`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DpRankCounters {
    /// Prompt tokens of requests that were admitted first here.
    pub prompt_tokens: u64,
    /// Tokens of these prompts that its prefix cache served.
    pub cached_tokens: u64,
    /// Tokens generated here.
    pub generated_tokens: u64,
    /// Requests put back because the DP rank's pages ran out.
    pub retractions: u64,
}

/// Sums since the start. Sums over requests and their tokens count clients' requests alone, not
/// the engine's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests accepted.
    pub requests: u64,
    /// Requests refused because a queue was full.
    pub rejected: u64,
    /// Requests that ended well.
    pub finished: u64,
    /// Requests aborted.
    pub aborted: u64,
    /// Requests that ran into a time limit.
    pub timed_out: u64,
    /// Requests that ended with another error.
    pub failed: u64,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens: u64,
    /// Tokens of these prompts that the prefix cache served.
    pub cached_tokens: u64,
    /// Tokens that it could have served to the layers that keep all positions.
    pub cached_full_tokens: u64,
    /// Tokens among these that it could have served to layers with sliding windows.
    pub cached_window_tokens: u64,
    /// Tokens among these that it could have served to recurrent layers.
    pub cached_state_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Prompt tokens computed, repeats after retractions included.
    pub prefill_tokens: u64,
    /// Decode rows planned.
    pub decode_rows: u64,
    /// Steps completed.
    pub steps: u64,
    /// Requests put back because pages ran out.
    pub retractions: u64,
    /// Requests put back in favour of a higher priority.
    pub preemptions: u64,
    /// KV tokens evicted from the prefix cache.
    pub evicted_tokens: u64,
    /// Times from a request's arrival to its first admission.
    pub queue: Times,
    /// Times from a request's first admission to its first token.
    pub prefill: Times,
}

/// Histogram of durations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// Counts by bucket of [`Times::BOUNDS_MS`]; the last one counts longer durations.
    pub counts: [u64; Times::BOUNDS_MS.len() + 1],
    /// Sum of all durations, milliseconds.
    pub sum_ms: u64,
}

impl Times {
    /// Upper bounds of the buckets, milliseconds.
    pub const BOUNDS_MS: [u64; 16] = [
        1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000,
    ];

    /// Counts the time from `since` until `now`.
    pub(crate) fn record(&mut self, since: Millis, now: Millis) {
        let ms = now.0.saturating_sub(since.0);
        let at = Self::BOUNDS_MS.partition_point(|bound| *bound < ms);
        self.counts[at] += 1;
        self.sum_ms = self.sum_ms.saturating_add(ms);
    }
}

impl Counters {
    /// Counts the rows and tokens of a step.
    pub(crate) fn count_plan(&mut self, plan: &StepPlan) {
        for extend in plan.rows() {
            self.prefill_tokens += u64::from(extend.prefill_len);
            self.decode_rows += u64::from(extend.prefill_len == 0);
        }
    }

    /// Counts the cached prefix of an admitted request by the layers that it could serve.
    pub(crate) fn count_found(&mut self, found: Found) {
        self.cached_full_tokens += u64::from(found.full);
        self.cached_window_tokens += u64::from(found.window);
        self.cached_state_tokens += u64::from(found.state);
    }

    /// Counts a request's end by its outcome.
    pub(crate) fn count_end(&mut self, outcome: &Result<FinishReason, RequestError>) {
        let counter = match outcome {
            Ok(FinishReason::Abort) => &mut self.aborted,
            Ok(_) => &mut self.finished,
            // Overloaded ends an accepted request only when it waited too long.
            Err(error) if matches!(error.kind, ErrorKind::Timeout | ErrorKind::Overloaded) => {
                &mut self.timed_out
            }
            Err(_) => &mut self.failed,
        };
        *counter += 1;
    }
}

/// Counts over all decode rows that verified drafted tokens.
///
/// A position where nothing was proposed is no rejection: the rate of acceptance at position
/// `i` is `accepted[i] / proposed[i]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpeculationCounters {
    /// Rows that verified drafted tokens.
    pub verify_steps: u64,
    /// Drafted tokens that were verified, all branches together.
    pub draft_tokens: u64,
    /// Drafted tokens that were accepted, even those behind the end of a text.
    pub accepted_tokens: u64,
    /// Drafted tokens that were rejected, and all of rows whose request had ended.
    pub wasted_tokens: u64,
    /// Drafted tokens that a constraint forced.
    pub forced_tokens: u64,
    /// Forced tokens that were accepted, even those behind the end of a text.
    pub accepted_forced_tokens: u64,
    /// By position: number of rows that proposed a token there.
    pub proposed: Vec<u64>,
    /// By position: number of rows that accepted a token there.
    pub accepted: Vec<u64>,
}

impl SpeculationCounters {
    /// Makes counts of zero, for drafts of up to `steps` positions.
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
        self.forced_tokens += u64::from(output.forced_tokens);
        self.accepted_forced_tokens += u64::from(output.accepted_forced_tokens);
        for (list, length) in [
            (&mut self.proposed, output.draft_depth),
            (&mut self.accepted, accepted),
        ] {
            let positions = list.iter_mut().take(length as usize);
            positions.for_each(|count| *count += 1);
        }
    }

    /// Counts a row whose drafts, if it had any, are wasted: its request had ended, or its
    /// logits were not numbers.
    pub(crate) fn count_wasted(&mut self, output: &SlotOutput) {
        if output.draft_depth == 0 {
            return;
        }
        self.verify_steps += 1;
        self.draft_tokens += u64::from(output.draft_tokens);
        self.wasted_tokens += u64::from(output.draft_tokens);
        self.forced_tokens += u64::from(output.forced_tokens);
    }
}
