//! The way of blocks from requests to the cache.

use super::{Kv, RequestKv, States, prefix::Text, windows::Passed};
use crate::{DraftKv, request::RequestState};

impl Kv {
    /// Returns the number of leading positions of a request's text that other requests may use.
    /// The target's KV of these positions is final, and depends on the text's own tokens alone.
    pub(super) fn shareable(&self, request: &RequestState) -> u32 {
        let held = &request.kv;
        match self.draft_kv {
            DraftKv::None | DraftKv::Tokens => held.committed,
            // The pair of the last position ends with a token that is not in the text. That
            // token is not sampled yet, or was sampled behind the end of the text.
            DraftKv::Pairs => held.committed.min(request.len() - 1),
        }
    }

    /// Caches the whole blocks that a running request has committed of its prompt. Notes the
    /// ones with the drafter's KV. Then takes the pages from the request that its windows have
    /// passed.
    ///
    /// Queries of all steps in flight and of later ones stand at `≥ committed`. The request
    /// keeps what a query at the last page boundary below sees, because that is where another
    /// request can go on from its text, whenever it ends. If its prompt is not in the cache yet,
    /// it also keeps what a query at the prompt's end sees.
    pub fn share(&mut self, request: &mut RequestState, in_prompt: bool) {
        let to = self.shareable(request) / self.page_size;
        let held = &mut request.kv;
        let from = held.protected_blocks;
        if let Some(cache) = self.cache.as_mut().filter(|_| in_prompt && to > from) {
            let positions = (from * self.page_size) as usize..(to * self.page_size) as usize;
            let groups = self.pools.groups();
            let pages = &held.pages[from as usize * groups..to as usize * groups];
            let text = Text::new(&held.namespace, &request.tokens);
            if let Some(node) = cache.extend(held.node, text, positions, pages) {
                held.node = node;
                held.protected_blocks = to;
            }
            if !self.windows.is_empty() {
                self.cache_windows(&request.kv, &request.tokens, from, to);
            }
            self.cache_states(&mut request.kv, &request.tokens, to, false);
        }
        let shared = request.kv.protected_blocks;
        self.mark_drafted(request, shared);
        let passed = self.passed(request);
        self.windows.leave_behind(&mut request.kv.windows, passed);
    }

    /// Returns the blocks of a running request that its windows can have passed.
    pub(super) fn passed(&self, request: &RequestState) -> Passed {
        Passed {
            blocks: self.shareable(request) / self.page_size,
            prompt: request.prefill_end.saturating_sub(1) / self.page_size,
            cached: match self.cache {
                Some(_) => request.kv.protected_blocks,
                None => u32::MAX,
            },
        }
    }

    /// Gives the cached blocks of a text the pages of groups with windows that a request has at
    /// the same positions, from its block `from` to its block `to`, if they lack these.
    fn cache_windows(&mut self, held: &RequestKv, tokens: &[u32], from: u32, to: u32) {
        let Some(cache) = &mut self.cache else {
            return;
        };
        self.blocks.clear();
        let text = Text::new(&held.namespace, tokens);
        let units = (to * self.page_size) as usize;
        cache.match_len(text, units, &mut |block| self.blocks.push(block[0]));
        let blocks = self.blocks.iter().copied().skip(from as usize);
        self.windows.cache(&held.windows, from, blocks);
    }

    /// Caches the copies of a request's state that stand at ends of cached blocks, up to its block
    /// `to`. Those in the output are left to the request's end, as their blocks are:
    /// `with_output` is true then.
    fn cache_states(&mut self, held: &mut RequestKv, tokens: &[u32], to: u32, with_output: bool) {
        let to = to * self.page_size;
        let furthest = States::furthest_copy(&held.states, to, with_output);
        let Some(cache) = self.cache.as_mut().filter(|_| furthest > 0) else {
            return;
        };
        self.blocks.clear();
        let text = Text::new(&held.namespace, tokens);
        let units = furthest as usize;
        cache.match_len(text, units, &mut |block| self.blocks.push(block[0]));
        self.states
            .cache(&mut held.states, &self.blocks, with_output);
    }

    /// Notes the blocks with the drafter's KV among a request's leading `blocks` blocks, which
    /// the cache has.
    fn mark_drafted(&mut self, request: &mut RequestState, blocks: u32) {
        let to = request.kv.drafted.len.min(self.shareable(request)) / self.page_size;
        let held = &mut request.kv;
        let (from, to) = (held.marked_blocks, to.min(blocks));
        if to <= from {
            return;
        }
        let groups = self.pools.groups();
        let new = &held.pages[from as usize * groups..to as usize * groups];
        for block in new.chunks(groups) {
            self.drafted[block[0] as usize] = true;
        }
        held.marked_blocks = to;
    }

    /// Forgets the tokens that a request has committed beyond its shared pages, so that its
    /// release adds nothing to the cache.
    pub fn discard_unshared(&self, held: &mut RequestKv) {
        held.truncate(held.protected_blocks * self.page_size);
    }

    /// Takes all pages of a request: whole shareable blocks go to the cache, the others' pages to
    /// the free lists, where the next plan may take them at once. So do its states: written
    /// copies at ends of cached blocks go to the cache, all others are free.
    ///
    /// Rows of this request may still be in flight. They write only at positions `≥ committed`,
    /// hence into pages freed here and never into cached ones. A drafter's rows write at
    /// `≥ drafted`, hence into no page that is noted as drafted. Every worker executes plans in
    /// order, so such a write ends before the page's next owner writes, and an owner reads only
    /// positions that it wrote.
    pub fn release(&mut self, request: &mut RequestState) {
        let full = self.shareable(request) / self.page_size;
        self.mark_drafted(request, full);
        let (full, groups) = (full as usize, self.pools.groups());
        let held = &mut request.kv;
        let from = held.protected_blocks as usize;
        let mut kept = from..from;
        if let Some(cache) = &mut self.cache {
            let whole = &mut held.pages[..full * groups];
            let text = Text::new(&held.namespace, &request.tokens);
            // A block that another request has cached meanwhile is held twice. Our block goes,
            // unless only ours has the drafter's KV.
            if held.marked_blocks > held.protected_blocks {
                let has = |block: &[u32]| self.drafted[block[0] as usize];
                let (windows, states) = (&mut self.windows, &mut self.states);
                cache.replace(text, whole, &mut |cached, own| {
                    let better = has(own) && !has(cached);
                    if better {
                        windows.replace(cached[0], own[0]);
                        states.replace(cached[0], own[0]);
                    }
                    better
                });
            }
            kept = cache.insert(text, whole)..full;
            cache.unlock(held.node);
        }
        if !self.windows.is_empty() {
            self.cache_windows(&request.kv, &request.tokens, from as u32, full as u32);
            self.windows.leave_all(&mut request.kv.windows);
        }
        self.cache_states(&mut request.kv, &request.tokens, full as u32, true);
        self.states.leave(&mut request.kv.states);
        let held = &mut request.kv;
        let own = held.pages.chunks(groups).enumerate().skip(from).rev();
        for (at, block) in own {
            if !kept.contains(&at) {
                self.pools.release(block);
            }
        }
        held.clear();
    }
}
