//! The KV memory: every page of every group of layers is in the group's free list, in the
//! prefix cache, or held by one request.
//!
//! A block of `page_size` tokens has one page in each group. Blocks are granted, cached and
//! freed as a whole, so the groups always agree. Counts of pages are of each group: they are
//! counts of blocks. Groups with sliding windows are an exception: [`windows`] frees their pages
//! earlier, and has enough of them for all running requests. So only the other groups decide
//! if there is room.

use std::iter::Sum;

use lockstep_types::step::StateKeep;

use crate::{CacheEvent, DraftKv, PlannerConfig};
use lag::DrafterLag;
use pools::PagePools;
use prefix::{PrefixCache, prefix_cache};
use states::{StateUsage, States};
use windows::{WindowUsage, Windows};

mod check;
mod lag;
mod matching;
#[cfg(test)]
mod naive_cache;
mod pages;
mod pools;
mod prefix;
pub mod radix;
mod request;
mod sharing;
mod states;
mod windows;

pub(crate) use radix::Namespace;
pub(crate) use request::{Found, RequestKv};
pub(crate) use states::RowSpan;

/// Page pools and prefix cache together.
#[derive(Debug)]
pub(crate) struct Kv {
    page_size: u32,
    draft_kv: DraftKv,
    lag: DrafterLag,
    pools: PagePools,
    windows: Windows,
    states: States,
    /// Flags of the first group's pages: true if the page's block is cached together with the
    /// drafter's KV. The drafter's KV lies under the pages of that group.
    drafted: Vec<bool>,
    /// `None` without prefix caching.
    cache: Option<Box<dyn PrefixCache>>,
    evicted_blocks: u64,
    /// Buffer for the first group's pages of a prefix, reused from call to call.
    blocks: Vec<u32>,
}

/// Facts of a decode row whose result has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DecodeRow {
    /// Most tokens of its result.
    pub max_tokens: u32,
    /// True if its step drafted nothing.
    pub pauses: bool,
    /// True if it verified drafts.
    pub drafts: bool,
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
    /// The groups with windows.
    pub windows: WindowUsage,
    /// States of recurrent layers.
    pub states: StateUsage,
}

impl Sum for KvUsage {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            used: sum.used + one.used,
            evictable: sum.evictable + one.evictable,
            total: sum.total + one.total,
            evicted: sum.evicted + one.evicted,
            leaked_pages: sum.leaked_pages + one.leaked_pages,
            windows: sum.windows + one.windows,
            states: sum.states + one.states,
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
            windows: Windows::new(config),
            states: States::new(config),
            drafted: vec![false; config.num_pages as usize],
            cache: config.radix_cache.then(|| {
                let (page_size, groups) = (config.page_size, config.kv_groups);
                prefix_cache(config.draft_kv, page_size, groups, config.kv_events)
            }),
            evicted_blocks: 0,
            blocks: Vec::new(),
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
        if self.windows.available() < missing {
            debug_assert!(
                false,
                "groups with windows have pages for all running requests"
            );
            return false;
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
        self.windows.grow(&mut held.windows, missing);
        true
    }

    /// Takes in the result of a prefill chunk that ends at `to`. `pauses` says that its step
    /// drafted nothing.
    pub fn commit_prefill(&mut self, held: &mut RequestKv, to: u32, pauses: bool) {
        let stood = std::mem::replace(&mut held.committed, to);
        self.lag.prefill(&mut held.drafted, stood, to, pauses);
        self.states.pass(&mut held.states, to);
    }

    /// Takes in the result of a decode row: `tokens` of its at most `max_tokens` tokens. The live
    /// state has come over its token, or, if the row had drafts, only to where the row began.
    pub fn commit_decode(&mut self, held: &mut RequestKv, tokens: u32, row: DecodeRow) {
        let stood = held.committed;
        held.committed += tokens;
        held.planned -= row.max_tokens - tokens;
        self.lag
            .decode(&mut held.drafted, stood, held.committed, row.pauses);
        let position = if row.drafts { stood } else { held.committed };
        self.states.pass(&mut held.states, position);
    }

    /// Returns true if the model has recurrent layers.
    pub fn has_states(&self) -> bool {
        !self.states.is_empty()
    }

    /// Appends the copies of the request's live state to `list` that a row writes on its way.
    pub fn plan_keeps(&mut self, held: &mut RequestKv, row: RowSpan, list: &mut Vec<StateKeep>) {
        self.states.plan_keeps(&mut held.states, row, list);
    }

    /// Drops the cache; no request may hold pages. Returns the number of tokens dropped.
    pub fn flush(&mut self) -> u64 {
        let Some(cache) = &mut self.cache else {
            return 0;
        };
        let blocks = cache.total_blocks();
        cache.clear(&mut |block| {
            self.windows.uncache(block[0]);
            self.states.uncache(block[0]);
            self.pools.release(block);
        });
        u64::from(blocks) * u64::from(self.page_size)
    }

    /// Frees all pages and empties the cache, because the engine's memory is gone.
    pub fn reset(&mut self) {
        if let Some(cache) = &mut self.cache {
            cache.clear(&mut |_| {});
        }
        self.pools.reset();
        self.windows.reset();
        self.states.reset();
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
    pub fn usage<'a>(&self, holders: impl Iterator<Item = &'a RequestKv> + Clone) -> KvUsage {
        let windows = self
            .windows
            .usage(&holders.clone().map(|held| &held.windows));
        let states = self.states.usage(holders.clone().map(|held| &held.states));
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
            leaked_pages: self.pools.unknown(cached + own) + windows.leaked,
            windows,
            states,
        }
    }

    fn evictable_blocks(&self) -> u32 {
        self.cache
            .as_ref()
            .map_or(0, |cache| cache.evictable_blocks())
    }

    fn evict(&mut self, count: u32) {
        if let Some(cache) = &mut self.cache {
            let freed = cache.evict(count, &mut |block| {
                self.windows.uncache(block[0]);
                self.states.uncache(block[0]);
                self.pools.release(block);
            });
            self.evicted_blocks += u64::from(freed);
        }
    }

    /// Returns the pools, for tests that take pages away.
    #[cfg(test)]
    pub fn pools(&mut self) -> &mut PagePools {
        &mut self.pools
    }
}
