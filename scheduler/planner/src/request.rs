//! The planner's record of each request.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    ops::{Index, IndexMut},
};

use lockstep_types::{
    generation::GenerationParams,
    request::{Finish, FinishReason, Output, RequestError, SpeculationUsage, Usage},
    sampling::TokenLogprob,
};

use crate::{Millis, RequestId, ReserveConfig, kv::RequestKv};

/// Stage of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// In the queue; holds no slot and no page.
    Waiting,
    /// Holds a slot.
    Running,
    /// Lost its slot and pages; results in flight must come before it may queue again.
    Draining,
}

/// One request.
#[derive(Debug)]
pub(crate) struct RequestState {
    pub id: RequestId,
    /// The client request, if this is one of its several choices.
    pub parent: Option<RequestId>,
    /// Arrival number, which is never reused. Submissions and admissions are counted together.
    pub arrival: u64,
    pub priority: i32,
    pub stage: Stage,
    /// DP rank that it runs in, or ran in last.
    pub dp_rank: u32,
    pub slot: u32,
    pub prompt_len: u32,
    /// `max_new_tokens`, cut to the context length.
    pub max_new: u32,
    /// Most draft steps of a row; 0 = it never drafts.
    pub max_depth: u32,
    /// Number of tokens known when the slot was opened; the prefill ends there.
    pub prefill_end: u32,
    pub rows_in_flight: u32,
    pub samples_in_flight: u32,
    /// Number of steps in which it waited for another request that computes its prefix.
    pub deferrals: u32,
    /// True if it had a slot before: then it goes before others of its priority.
    pub retracted: bool,
    pub kv: RequestKv,
    /// Prompt and output.
    pub tokens: Vec<u32>,
    pub rest: Box<Rest>,
}

/// Fields that are rarely used.
#[derive(Debug)]
pub(crate) struct Rest {
    pub generation: GenerationParams,
    /// The only DP rank that it may run in; `None` = any.
    pub data_parallel_rank: Option<u32>,
    /// Prompt log-probabilities of the chunks so far, until the first output takes them.
    pub prompt_logprobs: Vec<TokenLogprob>,
    /// True if the first output is out.
    pub delivered: bool,
    /// Counts of its speculation.
    pub speculation: SpeculationUsage,
    pub arrived: Millis,
    /// Time of its arrival; from the first admission on, time of that admission.
    pub since: Millis,
    /// Number of cached tokens at the first admission.
    pub cached_tokens: Option<u32>,
    pub deadline: Option<u64>,
    pub queue_deadline: Option<u64>,
    /// True for a request of the engine's own, which loads and counters ignore.
    pub is_probe: bool,
}

impl RequestState {
    /// Returns the order among running requests, most important first.
    pub fn rank(&self) -> (Reverse<i32>, u64) {
        (Reverse(self.priority), self.arrival)
    }

    pub fn len(&self) -> u32 {
        len_u32(&self.tokens)
    }

    pub fn emitted(&self) -> u32 {
        self.len() - self.prompt_len
    }

    /// Returns the tokens that it may still generate.
    pub fn remaining(&self) -> u32 {
        self.max_new.saturating_sub(self.emitted())
    }

    /// Returns the KV tokens that it needs to go on alone: its known tokens, and the slots of a
    /// decode step after the prefill, if there is one.
    pub fn least_tokens(&self, reserve: &ReserveConfig) -> u32 {
        let decodes = self.remaining() > 1;
        let alloc_len = reserve.alloc_len_at(self.max_depth);
        self.len() + if decodes { alloc_len } else { 0 }
    }

    /// Returns true if known tokens are left that no planned step computes.
    pub fn prefilling(&self) -> bool {
        self.kv.planned() < self.prefill_end
    }

    /// Returns true if its prefill is planned and it needs more tokens than the results in
    /// flight are certain to bring. Each of those results has at least one token.
    pub fn decodes(&self) -> bool {
        !self.prefilling() && self.emitted() + self.samples_in_flight < self.max_new
    }

    /// Returns the first position of the prompt log-probabilities that are still to be
    /// reported.
    pub fn prompt_logprobs_from(&self) -> Option<u32> {
        let start = self.rest.generation.logprobs.prompt_start;
        start.filter(|_| !self.rest.delivered)
    }

    /// Returns the length of the longest prefix that may come from the cache. One token must be
    /// computed for its logits. The log-probability of position `s` needs the logits of
    /// position `s - 1`.
    pub fn cacheable(&self) -> u32 {
        let scored = self.prompt_logprobs_from().unwrap_or(u32::MAX);
        (self.len() - 1).min(scored.saturating_sub(1))
    }

    /// Appends an output's tokens. Returns the reason of the end and the matched token, if the
    /// request ends with them. Tokens behind the last one are dropped, so that neither client
    /// nor cache keys ever see them.
    #[inline]
    pub fn append(&mut self, output: &mut Output) -> Option<(FinishReason, Option<u32>)> {
        self.rest.delivered = true;
        if self.max_new == 0 {
            return Some((FinishReason::Length, None));
        }
        let mut finish = None;
        let mut taken = 0;
        for token in output.token_ids.iter().copied() {
            // The worker masks stop tokens before `min_new_tokens`.
            let may_stop = self.emitted() >= self.rest.generation.sampling.min_new_tokens;
            self.tokens.push(token);
            taken += 1;
            if may_stop
                && self
                    .rest
                    .generation
                    .sampling
                    .stop_token_ids
                    .contains(&token)
            {
                finish = Some((FinishReason::Stop, Some(token)));
            } else if self.emitted() >= self.max_new {
                finish = Some((FinishReason::Length, None));
            }
            if finish.is_some() {
                break;
            }
        }
        output.token_ids.truncate(taken);
        output.logprobs.truncate(taken);
        let len = self.len();
        self.kv.truncate(len);
        finish
    }

    /// Returns the end of the request, for its client.
    pub fn finish(
        self,
        outcome: Result<FinishReason, RequestError>,
        matched_token: Option<u32>,
    ) -> Finish {
        Finish {
            outcome,
            matched_token,
            usage: Usage {
                prompt_tokens: self.prompt_len,
                completion_tokens: self.emitted(),
                cached_tokens: self.rest.cached_tokens.unwrap_or(0),
            },
            speculation: (self.rest.speculation.verify_steps > 0).then_some(self.rest.speculation),
        }
    }
}

/// Converts a length. Token lists stay below the KV capacity, which fits `u32`.
pub(crate) fn len_u32<T>(list: &[T]) -> u32 {
    u32::try_from(list.len()).unwrap_or(u32::MAX)
}

/// Table of requests, by a small index that is reused, and by id.
#[derive(Debug, Default)]
pub(crate) struct RequestTable {
    requests: Vec<Option<RequestState>>,
    unused: Vec<u32>,
    by_id: BTreeMap<RequestId, u32>,
}

impl RequestTable {
    pub fn insert(&mut self, request: RequestState) -> u32 {
        let index = self.unused.pop().unwrap_or_else(|| {
            self.requests.push(None);
            len_u32(&self.requests) - 1
        });
        self.by_id.insert(request.id, index);
        self.requests[index as usize] = Some(request);
        index
    }

    pub fn remove(&mut self, index: u32) -> Option<RequestState> {
        let request = self.requests[index as usize].take()?;
        self.by_id.remove(&request.id);
        self.unused.push(index);
        Some(request)
    }

    pub fn find(&self, id: RequestId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// Returns true if `index` is still the request that arrived as number `arrival`.
    pub fn lives(&self, index: u32, arrival: u64) -> bool {
        let slot = self.requests.get(index as usize);
        matches!(slot, Some(Some(request)) if request.arrival == arrival)
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &RequestState)> {
        (0..)
            .zip(&self.requests)
            .filter_map(|(index, request)| Some((index, request.as_ref()?)))
    }

    /// Returns all requests, in no meaningful order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut RequestState> {
        self.requests.iter_mut().flatten()
    }

    /// Returns all indices, in order of arrival.
    pub fn by_arrival(&self) -> Vec<u32> {
        let mut all: Vec<_> = self
            .iter()
            .map(|(index, request)| (request.arrival, index))
            .collect();
        all.sort_unstable();
        all.into_iter().map(|(_, index)| index).collect()
    }
}

impl Index<u32> for RequestTable {
    type Output = RequestState;
    fn index(&self, index: u32) -> &RequestState {
        self.requests[index as usize]
            .as_ref()
            .expect("queue and running list name live requests only")
    }
}

impl IndexMut<u32> for RequestTable {
    fn index_mut(&mut self, index: u32) -> &mut RequestState {
        self.requests[index as usize]
            .as_mut()
            .expect("queue and running list name live requests only")
    }
}
