//! Cached prefixes of requests that wait or get a slot.

use super::{
    Found, Kv, RequestKv, States, Windows, lag::Drafted, prefix::Text, radix::common_prefix,
};
use crate::{
    DraftKv,
    request::{RequestState, len_u32},
};

impl Kv {
    /// Finds and locks the cached prefix of a request that gets a slot. `pauses` says that its
    /// step drafts nothing. Pages without the drafter's KV at the end of the prefix are left
    /// out if they are few and the drafter is at work: computing them again gives the drafter
    /// the whole prefix. So is what lacks the pages that the next query sees in groups with windows,
    /// or a cached state at its end. Nothing is ever added to what another rule has left out.
    /// States are taken once the slot is certain: [`enter_states`](Self::enter_states).
    pub fn match_prefix(&mut self, request: &mut RequestState, pauses: bool) {
        let units = request.cacheable() as usize;
        let held = &mut request.kv;
        held.clear();
        let Some(cache) = &mut self.cache else {
            return;
        };
        let text = Text::new(&held.namespace, &request.tokens);
        held.node = cache.match_prefix(text, units, &mut held.pages);
        let groups = self.pools.groups();
        self.blocks.clear();
        self.blocks.extend(held.pages.iter().step_by(groups));
        let (found, page) = (self.blocks.len(), self.page_size);
        let (windows, states) = (&self.windows, &self.states);
        held.found = Found {
            full: found as u32 * page,
            window: windows.usable(&self.blocks) as u32 * page,
            state: states.usable(&self.blocks) as u32 * page,
        };
        let mut matched = usable(windows, states, &self.blocks);
        let mut drafted = matched;
        if self.draft_kv != DraftKv::None {
            let blocks = self.blocks[..matched].iter();
            drafted = blocks
                .take_while(|block| self.drafted[**block as usize])
                .count();
            let shorter = usable(windows, states, &self.blocks[..drafted]);
            if self.lag.recomputes(matched - shorter, pauses) {
                matched = shorter;
            }
        }
        if matched < found {
            held.pages.clear();
            self.blocks.truncate(matched);
            let units = matched * page as usize;
            held.node = cache.match_prefix(text, units, &mut held.pages);
        }
        self.windows.enter(&mut held.windows, &self.blocks);
        cache.lock(held.node);
        held.blocks = matched as u32;
        held.protected_blocks = held.blocks;
        held.committed = held.protected_blocks * self.page_size;
        held.planned = held.committed;
        held.drafted = Drafted::of_prefix(held.committed, drafted >= matched);
        held.marked_blocks = held.drafted.len / self.page_size;
    }

    /// Gives a live state to a request that gets a slot and whose prefix is matched. That may evict
    /// a cached state, so no request takes one that may have to wait.
    pub fn enter_states(&mut self, request: &mut RequestState) {
        let (held, len) = (&mut request.kv, len_u32(&request.tokens));
        self.blocks.clear();
        let pages = held.pages.iter().step_by(self.pools.groups());
        self.blocks.extend(pages);
        let found = (held.found.full / self.page_size) as usize;
        self.states
            .enter(&mut held.states, &self.blocks, found, len);
    }

    /// Undoes [`match_prefix`](Self::match_prefix) for a request that stays in the queue.
    pub fn unmatch(&mut self, held: &mut RequestKv) {
        if let Some(cache) = &mut self.cache {
            cache.unlock(held.node);
        }
        self.windows.leave_all(&mut held.windows);
        held.clear();
    }

    /// Returns the number of leading tokens of a waiting request that are cached.
    pub fn match_len(&mut self, request: &RequestState) -> u32 {
        let units = request.cacheable() as usize;
        let text = Text::new(&request.kv.namespace, &request.tokens);
        let Some(cache) = &mut self.cache else {
            return 0;
        };
        if self.windows.is_empty() && self.states.is_empty() {
            return cache.match_len(text, units, &mut |_| {}) as u32;
        }
        self.blocks.clear();
        cache.match_len(text, units, &mut |block| self.blocks.push(block[0]));
        usable(&self.windows, &self.states, &self.blocks) as u32 * self.page_size
    }

    /// Returns the number of leading tokens of a waiting request, in whole pages, that the
    /// cache could serve once the prompt of `other` is cached.
    pub fn shared_len(&self, other: &RequestState, request: &RequestState) -> u32 {
        if other.kv.namespace != request.kv.namespace {
            return 0;
        }
        let known = &other.tokens[..other.prefill_end as usize];
        let units = request.cacheable() as usize;
        let shared = match self.draft_kv {
            DraftKv::None | DraftKv::Tokens => common_prefix(known, &request.tokens[..units]),
            // A pair needs the token after its position, so the last common position has no
            // pair.
            DraftKv::Pairs => common_prefix(known, &request.tokens[..=units]).saturating_sub(1),
        };
        let shared = shared as u32 / self.page_size * self.page_size;
        match self.states.is_empty() {
            true => shared,
            false => self.states.promises(&other.kv.states, shared),
        }
    }
}

/// Returns the length of the longest prefix, in blocks, of the cached `blocks` that a request can
/// go on from: with the pages that its next query sees in groups with windows, and with a state.
/// Each rule only makes it shorter, so they come to agree. `blocks` yields the first group's
/// pages.
fn usable(windows: &Windows, states: &States, blocks: &[u32]) -> usize {
    let mut len = blocks.len();
    loop {
        let seen = windows.usable(&blocks[..len]);
        let shorter = states.usable(&blocks[..seen]);
        if shorter == len {
            return len;
        }
        len = shorter;
    }
}
