//! Waiting requests get slots.

use std::cmp::Reverse;

use lockstep_types::{sampling::LogprobParams, step::SlotOpen};

use crate::{Planner, SchedulePolicy, flight::Draft, table::Stage};

/// Longest-prefix order is worked out for queues up to this length.
const LPM_LONGEST_QUEUE: usize = 128;
/// Known tokens of the requests that one plan opens: they travel whole, also where
/// most of them are cached, and a plan has to fit a message.
const MOST_OPENED_TOKENS: u64 = 4 << 20;
/// Candidates passed over in one step before admission stops.
const MOST_DEFERRED: usize = 32;
/// Waiting for another request's prefix pays from so many tokens on (SGLang's 32/32 rule).
const SHARED_TOKENS_THAT_PAY: u32 = 32;
/// After so many steps a request no longer waits for others' prefixes.
const MOST_DEFERRALS: u32 = 1024;

enum Verdict {
    Admitted,
    /// Its prefix is being computed: not now, but others may go.
    Deferred,
    /// It does not fit, and nobody overtakes it.
    Full,
}

impl Planner {
    /// Opens slots in queue order while slots, budget and pages last.
    pub(crate) fn admit(&mut self, draft: &mut Draft) {
        if draft.budget == 0 || self.queue.is_empty() || self.slots.free() == 0 {
            return;
        }
        let (mut candidates, mut prefilling) = std::mem::take(&mut self.scratch);
        self.collect_candidates(&mut candidates);
        self.collect_prefilling(&mut prefilling);
        let mut future = self.future_pages();
        let (mut deferred, mut opened) = (0, 0);
        for index in candidates.iter().copied() {
            if draft.budget == 0 || deferred > MOST_DEFERRED || opened >= MOST_OPENED_TOKENS {
                break;
            }
            match self.try_admit(draft, index, &prefilling, future) {
                Verdict::Admitted => {
                    opened += u64::from(self.table[index].len());
                    future += self.future_pages_of(index);
                    prefilling.push(index);
                }
                Verdict::Deferred => deferred += 1,
                Verdict::Full => break,
            }
        }
        self.scratch = (candidates, prefilling);
    }

    fn collect_candidates(&mut self, candidates: &mut Vec<u32>) {
        candidates.clear();
        let Self {
            table, kv, queue, ..
        } = self;
        // Held back are those that never ran.
        let allowed = |index: &u32| !self.held || table[*index].retracted;
        let waiting = queue.iter().filter(allowed);
        let by_prefix =
            self.config.schedule_policy == SchedulePolicy::Lpm && queue.len() <= LPM_LONGEST_QUEUE;
        if by_prefix {
            candidates.extend(waiting);
            candidates.sort_by_cached_key(|index| {
                let entry = &table[*index];
                let matched = Reverse(kv.match_len(entry));
                (Reverse(entry.priority), !entry.retracted, matched)
            });
        } else {
            candidates.extend(waiting.take(self.slots.free() + MOST_DEFERRED));
        }
    }

    /// Running requests whose prompt is not all in the cache yet.
    pub(crate) fn collect_prefilling(&self, prefilling: &mut Vec<u32>) {
        prefilling.clear();
        if self.kv.cache.is_some() {
            let computes = |index: &&u32| {
                let entry = &self.table[**index];
                entry.committed < entry.prefill_end
            };
            prefilling.extend(self.running.iter().filter(computes));
        }
    }

    fn try_admit(
        &mut self,
        draft: &mut Draft,
        index: u32,
        prefilling: &[u32],
        future: u32,
    ) -> Verdict {
        if self.slots.free() == 0 {
            return Verdict::Full;
        }
        if self.should_defer(index, prefilling) {
            self.table[index].deferrals += 1;
            return Verdict::Deferred;
        }
        self.kv.match_prefix(&mut self.table[index]);
        if !self.fits(draft, index, future) {
            self.kv.unmatch(&mut self.table[index]);
            return Verdict::Full;
        }
        let Some(slot) = self.slots.take() else {
            self.kv.unmatch(&mut self.table[index]);
            return Verdict::Full;
        };
        self.open(draft, index, slot);
        let chunk = self.chunk(index, self.chunk_budget(draft));
        self.push_chunk(draft, index, chunk, true);
        Verdict::Admitted
    }

    /// Budget and pages. Alone, a request needs its prompt and one step only;
    /// beside others, what all of them are expected to want still.
    fn fits(&self, draft: &Draft, index: u32, future: u32) -> bool {
        let entry = &self.table[index];
        let whole = self.config.chunked_prefill_size.is_none();
        if whole && draft.has_prefill && entry.len() - entry.planned > draft.budget {
            return false;
        }
        let need = if self.running.is_empty() {
            let least = entry.least_tokens(&self.config.reserve);
            self.kv.missing(entry.pages.len(), least)
        } else {
            self.future_pages_of(index).saturating_add(future)
        };
        need <= self.kv.available()
    }

    /// Without chunking a prompt is computed whole, however long.
    fn chunk_budget(&self, draft: &Draft) -> u32 {
        match self.config.chunked_prefill_size {
            Some(_) => draft.budget,
            None => u32::MAX,
        }
    }

    /// Another request computes a good part of this one's prefix right now:
    /// standing back a step or more saves computing it twice.
    pub(crate) fn should_defer(&mut self, index: u32, prefilling: &[u32]) -> bool {
        let Self { table, kv, .. } = self;
        let entry = &table[index];
        if prefilling.is_empty() || entry.deferrals >= MOST_DEFERRALS {
            return false;
        }
        let shared = prefilling.iter().map(|other| {
            let other = &table[*other];
            kv.shared_len(&other.tokens[..other.prefill_end as usize], entry)
        });
        let shared = shared.max().unwrap_or(0);
        shared >= SHARED_TOKENS_THAT_PAY
            && shared - shared.min(kv.match_len(entry)) >= SHARED_TOKENS_THAT_PAY
    }

    fn open(&mut self, draft: &mut Draft, index: u32, slot: u32) {
        self.queue.remove(&self.table[index]);
        let rank = self.table[index].rank();
        let at = self
            .running
            .partition_point(|other| self.table[*other].rank() < rank);
        self.running.insert(at, index);
        let entry = &mut self.table[index];
        entry.stage = Stage::Running;
        entry.slot = slot;
        entry.prefill_end = entry.len();
        self.queue_deadlines
            .remove(entry.rest.queue_deadline.take(), index);
        self.pace.record(self.now.0);
        if entry.rest.cached_tokens.is_none() {
            entry.rest.cached_tokens = Some(entry.committed);
            self.counters.prompt_tokens += u64::from(entry.prompt_len);
            self.counters.cached_tokens += u64::from(entry.committed);
        }
        // The decode loop then grows these lists without allocating, as a rule.
        let more = entry.remaining().min(1024) as usize;
        entry.tokens.reserve(more);
        entry
            .pages
            .reserve(more / self.config.page_size as usize + 2);
        let depth = entry.max_depth as usize;
        entry.rest.speculation.proposed.reserve(depth);
        entry.rest.speculation.accepted.reserve(depth);
        draft.plan.opens.push(SlotOpen {
            slot,
            token_ids: entry.tokens.clone(),
            prompt_len: entry.prompt_len,
            cached_len: entry.committed,
            sampling: entry.rest.sampling.clone(),
            logprobs: LogprobParams {
                prompt_start: entry.prompt_logprobs_from(),
                ..entry.rest.logprobs
            },
            max_draft_steps: entry.rest.max_draft_steps,
        });
    }

    /// Pages that running requests are expected to want still.
    pub(crate) fn future_pages(&self) -> u32 {
        let running = self.running.iter().copied();
        running
            .map(|index| self.future_pages_of(index))
            .fold(0, u32::saturating_add)
    }

    /// Pages that one request is expected to want beyond what it holds.
    pub(crate) fn future_pages_of(&self, index: u32) -> u32 {
        let entry = &self.table[index];
        let (reserve, depth) = (&self.config.reserve, entry.max_depth);
        let reserve =
            reserve.alloc_len_at(depth) + reserve.commit_lag_at(depth, self.config.overlap);
        self.ratio.future_pages(&self.kv, entry, reserve)
    }
}
