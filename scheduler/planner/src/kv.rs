//! The KV memory: every page is in the free list, in the prefix cache, or held by one request.

use std::iter::Sum;

use crate::{
    CacheEvent, DraftKv, PlannerConfig,
    request::{RequestState, len_u32},
};
use lag::{Drafted, DrafterLag};
use pages::PagePool;
use prefix::{PrefixCache, prefix_cache};
use radix::common_prefix;

mod check;
mod lag;
#[cfg(test)]
mod naive_cache;
mod pages;
mod prefix;
pub mod radix;
mod request;

pub(crate) use request::RequestKv;

/// Page pool and prefix cache together.
#[derive(Debug)]
pub(crate) struct Kv {
    page_size: u32,
    draft_kv: DraftKv,
    lag: DrafterLag,
    pool: PagePool,
    /// For each page in the cache: true if it has the drafter's KV too.
    drafted: Vec<bool>,
    /// `None` without prefix caching.
    cache: Option<Box<dyn PrefixCache>>,
    evicted_pages: u64,
}

/// Number of pages by holder, counted in tokens.
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
    /// Pages without a known holder.
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
            pool: PagePool::new(config.num_pages),
            drafted: vec![false; config.num_pages as usize],
            cache: config
                .radix_cache
                .then(|| prefix_cache(config.draft_kv, config.page_size, config.kv_events)),
            evicted_pages: 0,
        }
    }

    /// Returns true if prefixes are cached.
    pub fn caches_prefixes(&self) -> bool {
        self.cache.is_some()
    }

    /// Returns the number of pages that hold `tokens` tokens.
    pub fn pages_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.page_size)
    }

    /// Returns the number of pages that a request lacks until its pages hold `tokens` tokens.
    pub fn missing(&self, held: &RequestKv, tokens: u32) -> u32 {
        self.pages_for(tokens).saturating_sub(len_u32(&held.pages))
    }

    /// Returns the number of pages that are free or can be evicted.
    pub fn available(&self) -> u32 {
        self.pool.free_pages() + self.evictable_pages()
    }

    /// Returns the number of all other pages.
    pub fn in_use(&self) -> u32 {
        self.pool.capacity() - self.available()
    }

    /// Returns the tokens that fit beyond the planned ones, in the request's own pages and all
    /// available pages.
    pub fn room(&self, held: &RequestKv) -> u64 {
        let pages = held.pages.len() as u64 + u64::from(self.available());
        (pages * u64::from(self.page_size)).saturating_sub(u64::from(held.planned))
    }

    /// Appends pages until `tokens` tokens fit, and evicts cached pages if needed. Returns
    /// false, and changes nothing, if there are not enough.
    pub fn grow(&mut self, held: &mut RequestKv, tokens: u32) -> bool {
        let missing = self.missing(held, tokens);
        if missing == 0 {
            return true;
        }
        let free = self.pool.free_pages();
        if free < missing {
            if self.available() < missing {
                return false;
            }
            self.evict(missing - free);
        }
        for page in (0..missing).map_while(|_| self.pool.alloc()) {
            self.drafted[page as usize] = false;
            held.pages.push(page);
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
        held.node = cache.match_prefix(&request.tokens, units, &mut held.pages);
        let has = |page: &&u32| self.drafted[**page as usize];
        let drafted = match self.draft_kv {
            DraftKv::None => held.pages.len(),
            DraftKv::Tokens | DraftKv::Pairs => held.pages.iter().take_while(has).count(),
        };
        if self.lag.recomputes(held.pages.len() - drafted, pauses) {
            held.pages.clear();
            let units = drafted * self.page_size as usize;
            held.node = cache.match_prefix(&request.tokens, units, &mut held.pages);
        }
        cache.lock(held.node);
        held.protected_pages = len_u32(&held.pages);
        held.committed = held.protected_pages * self.page_size;
        held.planned = held.committed;
        held.drafted = Drafted::of_prefix(held.committed, drafted >= held.pages.len());
        held.marked_pages = held.drafted.len / self.page_size;
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
        self.cache
            .as_mut()
            .map_or(0, |cache| cache.match_len(&request.tokens, units) as u32)
    }

    /// Returns the number of leading tokens of a waiting request, in whole pages, that the
    /// cache could serve once `known` is cached.
    pub fn shared_len(&self, known: &[u32], request: &RequestState) -> u32 {
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

    /// Caches the whole pages that a running request has committed of its prompt. Notes the
    /// ones with the drafter's KV.
    pub fn share(&mut self, request: &mut RequestState, in_prompt: bool) {
        let to = self.shareable(request) / self.page_size;
        let held = &mut request.kv;
        let from = held.protected_pages;
        if let Some(cache) = self.cache.as_mut().filter(|_| in_prompt && to > from) {
            let positions = (from * self.page_size) as usize..(to * self.page_size) as usize;
            let pages = &held.pages[from as usize..to as usize];
            if let Some(node) = cache.extend(held.node, &request.tokens, positions, pages) {
                held.node = node;
                held.protected_pages = to;
            }
        }
        let shared = held.protected_pages;
        self.mark_drafted(request, shared);
    }

    /// Notes the pages with the drafter's KV among a request's leading `pages` pages, which the
    /// cache has.
    fn mark_drafted(&mut self, request: &mut RequestState, pages: u32) {
        let to = request.kv.drafted.len.min(self.shareable(request)) / self.page_size;
        let held = &mut request.kv;
        let (from, to) = (held.marked_pages, to.min(pages));
        for page in held.pages.iter().take(to as usize).skip(from as usize) {
            self.drafted[*page as usize] = true;
        }
        held.marked_pages = from.max(to);
    }

    /// Forgets the tokens that a request has committed beyond its shared pages, so that its
    /// release adds nothing to the cache.
    pub fn discard_unshared(&self, held: &mut RequestKv) {
        held.truncate(held.protected_pages * self.page_size);
    }

    /// Takes all pages of a request: whole shareable pages go to the cache, the others to the
    /// free list, where the next plan may take them at once.
    ///
    /// Rows of this request may still be in flight. They write only at positions `≥ committed`,
    /// hence into pages freed here and never into cached ones. A drafter's rows write at
    /// `≥ drafted`, hence into no page that is noted as drafted. Every worker executes plans in
    /// order, so such a write ends before the page's next owner writes, and an owner reads only
    /// positions that it wrote.
    pub fn release(&mut self, request: &mut RequestState) {
        let full = self.shareable(request) / self.page_size;
        self.mark_drafted(request, full);
        let full = full as usize;
        let held = &mut request.kv;
        let from = held.protected_pages as usize;
        let mut kept = from..from;
        if let Some(cache) = &mut self.cache {
            // A page that another request has cached meanwhile is held twice. Our page goes,
            // unless only ours has the drafter's KV.
            if held.marked_pages > held.protected_pages {
                let drafted = &self.drafted;
                let better =
                    |cached: u32, own: u32| drafted[own as usize] && !drafted[cached as usize];
                cache.replace(&request.tokens, &mut held.pages[..full], &better);
            }
            kept = cache.insert(&request.tokens, &held.pages[..full])..full;
            cache.unlock(held.node);
        }
        let own = held.pages.iter().enumerate().skip(from).rev();
        for (at, page) in own {
            if !kept.contains(&at) {
                self.pool.release(*page);
            }
        }
        held.clear();
    }

    /// Drops the cache; no request may hold pages. Returns the number of tokens dropped.
    pub fn flush(&mut self) -> u64 {
        let Some(cache) = &mut self.cache else {
            return 0;
        };
        let pages = cache.total_pages();
        cache.clear(&mut |page| self.pool.release(page));
        u64::from(pages) * u64::from(self.page_size)
    }

    /// Frees all pages and empties the cache, because the engine's memory is gone.
    pub fn reset(&mut self) {
        if let Some(cache) = &mut self.cache {
            cache.clear(&mut |_| {});
        }
        self.pool.reset();
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
        let outside = self.pool.capacity() - self.pool.free_pages();
        let evictable = self.evictable_pages();
        let cached = self.cache.as_ref().map_or(0, |cache| cache.total_pages());
        let own: u32 = holders
            .map(|held| len_u32(&held.pages) - held.protected_pages)
            .sum();
        KvUsage {
            used: u64::from(outside - evictable) * page,
            evictable: u64::from(evictable) * page,
            total: u64::from(self.pool.capacity()) * page,
            evicted: self.evicted_pages * page,
            leaked_pages: u64::from(outside.saturating_sub(cached + own)),
        }
    }

    fn evictable_pages(&self) -> u32 {
        self.cache
            .as_ref()
            .map_or(0, |cache| cache.evictable_pages())
    }

    fn evict(&mut self, count: u32) {
        if let Some(cache) = &mut self.cache {
            let freed = cache.evict(count, &mut |page| self.pool.release(page));
            self.evicted_pages += u64::from(freed);
        }
    }

    /// Returns the pool, for tests that take pages away.
    #[cfg(test)]
    pub fn pool(&mut self) -> &mut PagePool {
        &mut self.pool
    }
}
