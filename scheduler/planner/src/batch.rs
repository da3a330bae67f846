//! Running requests of one DP rank: their slots, and the rows that they add to each step.

use std::sync::Arc;

use lockstep_types::step::{PlanPart, SlotOpen, StateKeep};

use crate::{
    IntegrityError, PlannerConfig,
    error::total,
    kv::Kv,
    request::{RequestTable, Stage, len_u32},
};
use slots::Slots;

mod part;
mod rows;
mod slots;

pub(crate) use part::{Part, RowInFlight};
#[cfg(test)]
pub(crate) use rows::Grant;

/// Running requests, and their rows in the step that is being planned.
#[derive(Debug)]
pub(crate) struct Batch {
    config: Arc<PlannerConfig>,
    /// Requests with a slot, most important first; rows stand in this order.
    running: Vec<u32>,
    slots: Slots,
    /// Part of the step that is being planned.
    pub next: Part,
    /// Buffers that are reused from plan to plan.
    page_lists: Vec<Vec<u32>>,
    keep_lists: Vec<Vec<StateKeep>>,
    #[cfg(test)]
    pub grant: Grant,
}

impl Batch {
    pub fn new(config: Arc<PlannerConfig>) -> Self {
        Self {
            running: Vec::with_capacity(config.max_running_requests as usize),
            slots: Slots::new(config.max_running_requests),
            next: Part::default(),
            page_lists: Vec::new(),
            keep_lists: Vec::new(),
            #[cfg(test)]
            grant: Grant::Exact,
            config,
        }
    }

    /// Running requests, most important first.
    pub fn running(&self) -> impl DoubleEndedIterator<Item = u32> + Clone + '_ {
        self.running.iter().copied()
    }

    pub fn len(&self) -> usize {
        self.running.len()
    }

    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// The least important running request.
    pub fn last(&self) -> Option<u32> {
        self.running.last().copied()
    }

    pub fn free_slots(&self) -> usize {
        self.slots.free()
    }

    /// Returns the number of requests that decode next.
    pub fn decodes(&self, requests: &RequestTable) -> u32 {
        let decodes = |index: &u32| requests[*index].decodes();
        self.running().filter(decodes).count() as u32
    }

    /// Gives a slot and its state to a request whose prefix is matched already. Returns false, and
    /// changes nothing, if no slot is free.
    pub fn open(&mut self, requests: &mut RequestTable, kv: &mut Kv, index: u32) -> bool {
        let Some(slot) = self.slots.take() else {
            return false;
        };
        let at = self.position(requests, index);
        self.running.insert(at, index);
        let request = &mut requests[index];
        kv.enter_states(request);
        request.stage = Stage::Running;
        request.slot = slot;
        request.prefill_end = request.len();
        // So the decode loop normally grows these lists without allocating.
        let more = request.remaining().min(1024) as usize;
        let blocks = more / self.config.page_size as usize + 2;
        request.tokens.reserve(more);
        let (groups, windows) = (self.config.kv_groups as usize, self.config.windows.len());
        request.kv.reserve_blocks(blocks, groups, windows);
        let depth = request.max_depth as usize;
        request.rest.speculation.proposed.reserve(depth);
        request.rest.speculation.accepted.reserve(depth);
        let mut generation = request.rest.generation.clone();
        generation.logprobs.prompt_start = request.prompt_logprobs_from();
        let (state, restore) = request.kv.opening_states();
        self.next.open(SlotOpen {
            slot,
            token_ids: request.tokens.clone(),
            prompt_len: request.prompt_len,
            cached_len: request.kv.committed(),
            drafted: request.kv.is_prefix_drafted(),
            state,
            restore,
            generation,
        });
        true
    }

    /// Frees slot and pages of a running request. Results in flight may still come.
    pub fn close(&mut self, requests: &mut RequestTable, kv: &mut Kv, index: u32) {
        let at = self.position(requests, index);
        debug_assert_eq!(self.running[at], index, "the running list is ranked");
        self.running.remove(at);
        let request = &mut requests[index];
        request.stage = Stage::Draining;
        self.slots.close(request.slot);
        kv.release(request);
    }

    /// Returns the place of a request in the list of running ones, or the place where it would
    /// be inserted.
    fn position(&self, requests: &RequestTable, index: u32) -> usize {
        let rank = requests[index].rank();
        self.running
            .partition_point(|other| requests[*other].rank() < rank)
    }

    /// Moves the planned part into `plan` and `rows`, in exchange for the empty buffers of an
    /// earlier part.
    pub fn launch(&mut self, plan: &mut PlanPart, rows: &mut Vec<RowInFlight>) {
        self.slots.drain_closes(&mut self.next.plan.closes);
        std::mem::swap(plan, &mut self.next.plan);
        std::mem::swap(rows, &mut self.next.rows);
    }

    /// Keeps the lists of a part that was sent.
    pub fn recycle(&mut self, part: &mut PlanPart) {
        let most_lists = part.extends.capacity().max(64);
        for extend in part.extends.drain(..) {
            if extend.new_pages.capacity() > 0 && self.page_lists.len() < most_lists {
                self.page_lists.push(extend.new_pages);
            }
            if extend.keeps.capacity() > 0 && self.keep_lists.len() < most_lists {
                self.keep_lists.push(extend.keeps);
            }
        }
    }

    /// Forgets all slots and pages, because the engine is gone.
    pub fn reset(&mut self, requests: &mut RequestTable) {
        for index in self.running.drain(..) {
            let request = &mut requests[index];
            request.stage = Stage::Draining;
            request.kv.clear();
        }
        self.slots.reset();
    }

    /// Checks the slots, and that `running` requests run.
    pub fn check(&self, requests: &RequestTable, running: u64) -> Result<(), IntegrityError> {
        let mut holders = vec![0; self.slots.count() as usize];
        let held = self.running().map(|index| requests[index].slot);
        for slot in self.slots.iter_free().chain(held) {
            holders[slot as usize] += 1;
        }
        for (slot, count) in (0..).zip(holders) {
            if count != 1 {
                return Err(IntegrityError::Slot {
                    slot,
                    holders: count,
                });
            }
        }
        total(
            "running requests",
            u64::from(len_u32(&self.running)),
            running,
        )
    }
}
