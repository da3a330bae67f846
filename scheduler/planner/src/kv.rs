//! The KV memory: every page of every group of layers is in the group's free list, in the
//! prefix cache, or held by one request.
//!
//! A block of `page_size` tokens has one page in each group. Blocks are granted, cached and
//! freed as a whole, so the groups always agree. Counts of pages are of each group: they are
//! counts of blocks.

use std::iter::Sum;

use crate::{CacheEvent, DraftKv, PlannerConfig, request::RequestState};
use lag::{Drafted, DrafterLag};
use pools::PagePools;
use prefix::{PrefixCache, Text, prefix_cache};
use radix::common_prefix;

mod check;
mod lag;
#[cfg(test)]
mod naive_cache;
mod pages;
mod pools;
mod prefix;
pub mod radix;
mod request;

pub(crate) use radix::Namespace;
pub(crate) use request::RequestKv;

/// Page pools and prefix cache together.
#[derive(Debug)]
pub(crate) struct Kv {
    page_size: u32,
    draft_kv: DraftKv,
    lag: DrafterLag,
    pools: PagePools,
    /// Flags of the first group's pages: true if the page's block is cached together with the
    /// drafter's KV. The drafter's KV lies under the pages of that group.
    drafted: Vec<bool>,
    /// `None` without prefix caching.
    cache: Option<Box<dyn PrefixCache>>,
    evicted_blocks: u64,
}

/// Number of pages by holder, counted in tokens of the text.
#[derive(Debug, Default)]
pub(crate) struct KvUsage {
    /// Tokens in pages of requests, whole pages counted.
    pub used: u64,
    /// Tokens in the cache that can be evicted.
    pub evictable: u64,
    /// Tokens of all pages.
    pub total: u64,
    /// Tokens evicted since the start.
    pub evicted: u64,
    /// Pages of all groups without a known holder.
    pub leaked_pages: u64,
}

impl Sum for KvUsage {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            used: sum.used + one.used,
            evictable: sum.evictable + one.evictable,
            total: sum.total + one.total,
            evicted: sum.evicted + one.evicted,
            leaked_pages: sum.leaked_pages + one.leaked_pages,
        })
    }
}

impl Kv {
    pub fn new(config: &PlannerConfig) -> Self {
        Self {
            page_size: config.page_size,
            draft_kv: config.draft_kv,
            lag: DrafterLag::new(config),
            pools: PagePools::new(config.num_pages, config.kv_groups),
            drafted: vec![false; config.num_pages as usize],
            cache: config.radix_cache.then(|| {
                let (page_size, groups) = (config.page_size, config.kv_groups);
                prefix_cache(config.draft_kv, page_size, groups, config.kv_events)
            }),
            evicted_blocks: 0,
        }
    }

    /// Returns true if prefixes are cached.
    pub fn caches_prefixes(&self) -> bool {
        self.cache.is_some()
    }

    /// Returns the number of pages of each group that hold `tokens` tokens.
    pub fn pages_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.page_size)
    }

    /// Returns the number of pages that a request lacks in each group until its pages hold
    /// `tokens` tokens.
    pub fn missing(&self, held: &RequestKv, tokens: u32) -> u32 {
        self.pages_for(tokens).saturating_sub(held.blocks)
    }

    /// Returns the number of pages that every group has free or can evict.
    pub fn available(&self) -> u32 {
        self.pools.free_blocks() + self.evictable_blocks()
    }

    /// Returns the number of all other pages.
    pub fn in_use(&self) -> u32 {
        self.pools.capacity() - self.available()
    }

    /// Returns the tokens that fit beyond the planned ones, in the request's own pages and all
    /// available pages.
    pub fn room(&self, held: &RequestKv) -> u64 {
        let pages = u64::from(held.blocks) + u64::from(self.available());
        (pages * u64::from(self.page_size)).saturating_sub(u64::from(held.planned))
    }

    /// Appends pages of each group until `tokens` tokens fit, and evicts cached pages if needed.
    /// Returns false, and changes nothing, if a group has not enough.
    pub fn grow(&mut self, held: &mut RequestKv, tokens: u32) -> bool {
        let missing = self.missing(held, tokens);
        if missing == 0 {
            return true;
        }
        let free = self.pools.free_blocks();
        if free < missing {
            if self.available() < missing {
                return false;
            }
            self.evict(missing - free);
        }
        let from = held.pages.len();
        for _ in 0..missing {
            held.blocks += u32::from(self.pools.alloc(&mut held.pages));
        }
        for block in held.pages[from..].chunks(self.pools.groups()) {
            self.drafted[block[0] as usize] = false;
        }
        true
    }

    /// Finds and locks the cached prefix of a request that gets a slot. `pauses` says that its
    /// step drafts nothing. Pages without the drafter's KV at the end of the prefix are left
    /// out if they are few and the drafter is at work: computing them again gives the drafter
    /// the whole prefix.
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
        let has = |block: &&[u32]| self.drafted[block[0] as usize];
        let (blocks, matched) = (held.pages.chunks(groups), held.pages.len() / groups);
        let drafted = match self.draft_kv {
            DraftKv::None => matched,
            DraftKv::Tokens | DraftKv::Pairs => blocks.take_while(has).count(),
        };
        if self.lag.recomputes(matched - drafted, pauses) {
            held.pages.clear();
            let units = drafted * self.page_size as usize;
            held.node = cache.match_prefix(text, units, &mut held.pages);
        }
        cache.lock(held.node);
        let matched = held.pages.len() / groups;
        held.blocks = matched as u32;
        held.protected_blocks = held.blocks;
        held.committed = held.protected_blocks * self.page_size;
        held.planned = held.committed;
        held.drafted = Drafted::of_prefix(held.committed, drafted >= matched);
        held.marked_blocks = held.drafted.len / self.page_size;
    }

    /// Undoes [`match_prefix`](Self::match_prefix) for a request that stays in the queue.
    pub fn unmatch(&mut self, held: &mut RequestKv) {
        if let Some(cache) = &mut self.cache {
            cache.unlock(held.node);
        }
        held.clear();
    }

    /// Returns the number of leading tokens of a waiting request that are cached.
    pub fn match_len(&mut self, request: &RequestState) -> u32 {
        let units = request.cacheable() as usize;
        let text = Text::new(&request.kv.namespace, &request.tokens);
        let cache = self.cache.as_mut();
        cache.map_or(0, |cache| cache.match_len(text, units) as u32)
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
        shared as u32 / self.page_size * self.page_size
    }

    /// Returns the number of leading positions of a request's text that other requests may use.
    /// The target's KV of these positions is final, and depends on the text's own tokens alone.
    fn shareable(&self, request: &RequestState) -> u32 {
        let held = &request.kv;
        match self.draft_kv {
            DraftKv::None | DraftKv::Tokens => held.committed,
            // The pair of the last position ends with a token that is not in the text. That
            // token is not sampled yet, or was sampled behind the end of the text.
            DraftKv::Pairs => held.committed.min(request.len() - 1),
        }
    }

    /// Takes in the result of a prefill chunk that ends at `to`. `pauses` says that its step
    /// drafted nothing.
    pub fn commit_prefill(&self, held: &mut RequestKv, to: u32, pauses: bool) {
        let stood = std::mem::replace(&mut held.committed, to);
        self.lag.prefill(&mut held.drafted, stood, to, pauses);
    }

    /// Takes in the result of a decode row: `tokens` of at most `max_tokens` tokens. `pauses` says
    /// that its step drafted nothing.
    pub fn commit_decode(&self, held: &mut RequestKv, tokens: u32, max_tokens: u32, pauses: bool) {
        let stood = held.committed;
        held.committed += tokens;
        held.planned -= max_tokens - tokens;
        self.lag
            .decode(&mut held.drafted, stood, held.committed, pauses);
    }

    /// Caches the whole blocks that a running request has committed of its prompt. Notes the
    /// ones with the drafter's KV.
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
        }
        let shared = held.protected_blocks;
        self.mark_drafted(request, shared);
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
    /// the free lists, where the next plan may take them at once.
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
                let better = |cached: &[u32], own: &[u32]| has(own) && !has(cached);
                cache.replace(text, whole, &better);
            }
            kept = cache.insert(text, whole)..full;
            cache.unlock(held.node);
        }
        let own = held.pages.chunks(groups).enumerate().skip(from).rev();
        for (at, block) in own {
            if !kept.contains(&at) {
                self.pools.release(block);
            }
        }
        held.clear();
    }

    /// Drops the cache; no request may hold pages. Returns the number of tokens dropped.
    pub fn flush(&mut self) -> u64 {
        let Some(cache) = &mut self.cache else {
            return 0;
        };
        let blocks = cache.total_blocks();
        cache.clear(&mut |block| self.pools.release(block));
        u64::from(blocks) * u64::from(self.page_size)
    }

    /// Frees all pages and empties the cache, because the engine's memory is gone.
    pub fn reset(&mut self) {
        if let Some(cache) = &mut self.cache {
            cache.clear(&mut |_| {});
        }
        self.pools.reset();
    }

    /// Drains the changes of the cache, oldest first.
    pub fn cache_events(&mut self) -> impl Iterator<Item = CacheEvent> + '_ {
        let cache = self.cache.as_mut();
        cache.into_iter().flat_map(|cache| cache.take_events())
    }

    /// Returns the whole cache as events.
    pub fn cache_snapshot(&self) -> Vec<CacheEvent> {
        self.cache
            .as_ref()
            .map_or(Vec::new(), |cache| cache.snapshot())
    }

    /// Counts the pages by holder; `holders` are the requests with a slot.
    pub fn usage<'a>(&self, holders: impl Iterator<Item = &'a RequestKv>) -> KvUsage {
        let page = u64::from(self.page_size);
        let evictable = self.evictable_blocks();
        let cached = self.cache.as_ref().map_or(0, |cache| cache.total_blocks());
        let own: u32 = holders
            .map(|held| held.blocks - held.protected_blocks)
            .sum();
        KvUsage {
            used: u64::from(self.in_use()) * page,
            evictable: u64::from(evictable) * page,
            total: u64::from(self.pools.capacity()) * page,
            evicted: self.evicted_blocks * page,
            leaked_pages: self.pools.unknown(cached + own),
        }
    }

    fn evictable_blocks(&self) -> u32 {
        self.cache
            .as_ref()
            .map_or(0, |cache| cache.evictable_blocks())
    }

    fn evict(&mut self, count: u32) {
        if let Some(cache) = &mut self.cache {
            let freed = cache.evict(count, &mut |block| self.pools.release(block));
            self.evicted_blocks += u64::from(freed);
        }
    }

    /// Returns the pools, for tests that take pages away.
    #[cfg(test)]
    pub fn pools(&mut self) -> &mut PagePools {
        &mut self.pools
    }
}
