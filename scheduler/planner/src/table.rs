//! Every request the planner knows.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    ops::{Index, IndexMut},
};

use lockstep_types::{
    request::{SpeculationUsage, Usage},
    sampling::{LogprobParams, SamplingParams, TokenLogprob},
};

use crate::{
    RequestId, ReserveConfig,
    radix::{NodeId, ROOT},
};

/// Where a request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// In the queue; holds no slot and no page.
    Waiting,
    /// Holds a slot.
    Running,
    /// Lost its slot and pages, and waits for results in flight before it may
    /// queue again.
    Draining,
}

/// One request.
///
/// Lengths are in tokens: `cache_protected ≤ committed ≤ allocated`, where
/// `cache_protected` is `protected_pages` whole pages and `allocated` is
/// `pages` whole pages.
#[derive(Debug)]
pub(crate) struct Entry {
    pub id: RequestId,
    /// Consecutive number of its submission; never reused.
    pub arrival: u64,
    pub priority: i32,
    pub stage: Stage,
    pub slot: u32,
    pub prompt_len: u32,
    /// `max_new_tokens`, cut to the context length.
    pub max_new: u32,
    /// Draft steps it may take at the most; 0 = it never drafts.
    pub max_depth: u32,
    /// Tokens known when the slot was opened; the prefill ends there.
    pub prefill_end: u32,
    /// Upper bound of the slot's KV length after all planned steps.
    pub planned: u32,
    /// KV that is final: positions below hold exactly `tokens`.
    pub committed: u32,
    /// The drafter's KV that is sure to be in place; only a draft model's may
    /// be less than `committed`.
    pub drafted: u32,
    /// Leading pages that the cache owns, locked through `node`.
    pub protected_pages: u32,
    pub node: NodeId,
    pub rows_in_flight: u32,
    pub samples_in_flight: u32,
    /// Steps it stood back for another request that computes its prefix.
    pub deferrals: u32,
    /// Had a slot before: goes before others of its priority.
    pub retracted: bool,
    /// The slot's page table.
    pub pages: Vec<u32>,
    /// Prompt and output.
    pub tokens: Vec<u32>,
    pub rest: Box<Rest>,
}

/// What is rarely looked at.
#[derive(Debug)]
pub(crate) struct Rest {
    pub sampling: SamplingParams,
    pub logprobs: LogprobParams,
    /// The request's own limit of draft steps.
    pub max_draft_steps: Option<u32>,
    /// Of the chunks so far, until the first output takes them.
    pub prompt_logprobs: Vec<TokenLogprob>,
    /// The first output is out.
    pub delivered: bool,
    /// What speculation brought it.
    pub speculation: SpeculationUsage,
    /// Cached tokens at the first admission.
    pub cached_tokens: Option<u32>,
    pub deadline: Option<u64>,
    pub queue_deadline: Option<u64>,
}

impl Entry {
    /// Order among running requests, most important first.
    pub fn rank(&self) -> (Reverse<i32>, u64) {
        (Reverse(self.priority), self.arrival)
    }

    pub fn len(&self) -> u32 {
        len_u32(&self.tokens)
    }

    pub fn emitted(&self) -> u32 {
        self.len() - self.prompt_len
    }

    /// Tokens it may still bring.
    pub fn remaining(&self) -> u32 {
        self.max_new.saturating_sub(self.emitted())
    }

    /// KV tokens it needs to go on alone: its known tokens, and what a decode
    /// step after the prefill writes, if there is one.
    pub fn least_tokens(&self, reserve: &ReserveConfig) -> u32 {
        let decodes = self.remaining() > 1;
        let alloc_len = reserve.alloc_len_at(self.max_depth);
        self.len() + if decodes { alloc_len } else { 0 }
    }

    /// Known tokens are left that no step brings.
    pub fn prefilling(&self) -> bool {
        self.planned < self.prefill_end
    }

    /// Its prefill is planned, and the results in flight can't be all there is:
    /// each brings at least one token.
    pub fn decodes(&self) -> bool {
        !self.prefilling() && self.emitted() + self.samples_in_flight < self.max_new
    }

    /// Prompt log-probabilities to report from this position on.
    pub fn prompt_logprobs_from(&self) -> Option<u32> {
        self.rest
            .logprobs
            .prompt_start
            .filter(|_| !self.rest.delivered)
    }

    /// The longest prefix that may come from the cache: one token must be
    /// computed for its logits, and position `s`'s log-probability needs those
    /// of position `s - 1`.
    pub fn cacheable(&self) -> u32 {
        let scored = self.prompt_logprobs_from().unwrap_or(u32::MAX);
        (self.len() - 1).min(scored.saturating_sub(1))
    }

    pub fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_len,
            completion_tokens: self.emitted(),
            cached_tokens: self.rest.cached_tokens.unwrap_or(0),
        }
    }

    /// Forgets slot and pages, which the caller has given back.
    pub fn clear_kv(&mut self) {
        self.pages.clear();
        self.protected_pages = 0;
        self.node = ROOT;
        self.planned = 0;
        self.committed = 0;
        self.drafted = 0;
    }
}

/// Lengths of token lists stay below the KV capacity, which fits `u32`.
pub(crate) fn len_u32<T>(list: &[T]) -> u32 {
    u32::try_from(list.len()).unwrap_or(u32::MAX)
}

/// Requests by a small index that is reused, and by id.
#[derive(Debug, Default)]
pub(crate) struct RequestTable {
    entries: Vec<Option<Entry>>,
    unused: Vec<u32>,
    by_id: BTreeMap<RequestId, u32>,
}

impl RequestTable {
    pub fn insert(&mut self, entry: Entry) -> u32 {
        let index = self.unused.pop().unwrap_or_else(|| {
            self.entries.push(None);
            len_u32(&self.entries) - 1
        });
        self.by_id.insert(entry.id, index);
        self.entries[index as usize] = Some(entry);
        index
    }

    pub fn remove(&mut self, index: u32) -> Option<Entry> {
        let entry = self.entries[index as usize].take()?;
        self.by_id.remove(&entry.id);
        self.unused.push(index);
        Some(entry)
    }

    pub fn find(&self, id: RequestId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// Whether `index` still is the request that arrived as number `arrival`.
    pub fn lives(&self, index: u32, arrival: u64) -> bool {
        matches!(self.entries.get(index as usize), Some(Some(entry)) if entry.arrival == arrival)
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Entry)> {
        (0..)
            .zip(&self.entries)
            .filter_map(|(index, entry)| Some((index, entry.as_ref()?)))
    }

    /// All indices, by arrival.
    pub fn by_arrival(&self) -> Vec<u32> {
        let mut all: Vec<_> = self
            .iter()
            .map(|(index, entry)| (entry.arrival, index))
            .collect();
        all.sort_unstable();
        all.into_iter().map(|(_, index)| index).collect()
    }
}

impl Index<u32> for RequestTable {
    type Output = Entry;
    fn index(&self, index: u32) -> &Entry {
        self.entries[index as usize]
            .as_ref()
            .expect("queue and running list name live requests only")
    }
}

impl IndexMut<u32> for RequestTable {
    fn index_mut(&mut self, index: u32) -> &mut Entry {
        self.entries[index as usize]
            .as_mut()
            .expect("queue and running list name live requests only")
    }
}
