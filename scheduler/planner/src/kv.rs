//! Pages and prefix cache together: the KV memory as requests see it.

use crate::{
    DraftKv, PlannerConfig,
    pages::PagePool,
    prefix::{PrefixCache, prefix_cache},
    radix::{ROOT, common_prefix},
    table::Entry,
};

/// All KV pages, each in the free list, in the cache, or with one request.
#[derive(Debug)]
pub(crate) struct KvMemory {
    page_size: u32,
    draft_kv: DraftKv,
    pub pool: PagePool,
    /// `None` without prefix caching.
    pub cache: Option<Box<dyn PrefixCache>>,
    pub evicted_pages: u64,
}

impl KvMemory {
    pub fn new(config: &PlannerConfig) -> Self {
        Self {
            page_size: config.page_size,
            draft_kv: config.draft_kv,
            pool: PagePool::new(config.num_pages),
            cache: config
                .radix_cache
                .then(|| prefix_cache(config.draft_kv, config.page_size, config.kv_events)),
            evicted_pages: 0,
        }
    }

    /// Pages that hold `tokens` tokens.
    pub fn pages_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.page_size)
    }

    /// Pages missing until `tokens` tokens fit beside `held` pages.
    pub fn missing(&self, held: usize, tokens: u32) -> u32 {
        let held = u32::try_from(held).unwrap_or(u32::MAX);
        self.pages_for(tokens).saturating_sub(held)
    }

    pub fn evictable_pages(&self) -> u32 {
        self.cache
            .as_ref()
            .map_or(0, |cache| cache.evictable_pages())
    }

    /// Pages that can be had without taking any from a request.
    pub fn available(&self) -> u32 {
        self.pool.free_pages() + self.evictable_pages()
    }

    /// Appends pages until `tokens` tokens fit, evicting where needed; gives
    /// the number of pages there were. `None`, and nothing done, when there
    /// are not enough.
    pub fn grow(&mut self, pages: &mut Vec<u32>, tokens: u32) -> Option<usize> {
        let held = pages.len();
        let missing = self.missing(held, tokens);
        if missing == 0 {
            return Some(held);
        }
        let free = self.pool.free_pages();
        if free < missing {
            if self.available() < missing {
                return None;
            }
            self.evict(missing - free);
        }
        pages.extend((0..missing).map_while(|_| self.pool.alloc()));
        Some(held)
    }

    /// Finds and locks the cached prefix of a request that gets a slot.
    pub fn match_prefix(&mut self, entry: &mut Entry) {
        entry.clear_kv();
        let Some(cache) = &mut self.cache else {
            return;
        };
        let units = entry.cacheable() as usize;
        entry.node = cache.match_prefix(&entry.tokens, units, &mut entry.pages);
        cache.lock(entry.node);
        entry.protected_pages = crate::table::len_u32(&entry.pages);
        entry.committed = entry.protected_pages * self.page_size;
        entry.drafted = entry.committed;
        entry.planned = entry.committed;
    }

    /// How many leading tokens of a waiting request are cached.
    pub fn match_len(&mut self, entry: &Entry) -> u32 {
        let units = entry.cacheable() as usize;
        self.cache
            .as_mut()
            .map_or(0, |cache| cache.match_len(&entry.tokens, units) as u32)
    }

    /// How many leading tokens of a waiting request could be served, in whole
    /// pages, once `known` is cached.
    pub fn shared_len(&self, known: &[u32], entry: &Entry) -> u32 {
        let units = entry.cacheable() as usize;
        let shared = match self.draft_kv {
            DraftKv::None | DraftKv::Tokens => common_prefix(known, &entry.tokens[..units]),
            // The last token that both have is the next of the last position.
            DraftKv::Pairs => common_prefix(known, &entry.tokens[..=units]).saturating_sub(1),
        };
        shared as u32 / self.page_size * self.page_size
    }

    /// Leading positions of a request's text that others may use: all that is
    /// kept there, for the target and for drafting, is final and depends on the
    /// text's own tokens alone.
    fn shareable(&self, entry: &Entry) -> u32 {
        match self.draft_kv {
            DraftKv::None => entry.committed,
            DraftKv::Tokens => entry.committed.min(entry.drafted),
            // What the last token's own depends on is not in the text. Where
            // the text was cut among accepted tokens, neither is what was
            // sampled after it.
            DraftKv::Pairs => entry.committed.min(entry.len() - 1),
        }
    }

    /// Lets others use the whole pages that a running request has committed.
    pub fn share(&mut self, entry: &mut Entry) {
        let (from, to) = (
            entry.protected_pages,
            self.shareable(entry) / self.page_size,
        );
        let Some(cache) = &mut self.cache else {
            return;
        };
        if to <= from {
            return;
        }
        let positions = (from * self.page_size) as usize..(to * self.page_size) as usize;
        let pages = &entry.pages[from as usize..to as usize];
        if let Some(node) = cache.extend(entry.node, &entry.tokens, positions, pages) {
            entry.node = node;
            entry.protected_pages = to;
        }
    }

    /// Forgets what a request has committed beyond what it shares already, so
    /// that its release adds nothing to the cache.
    pub fn disown(&self, entry: &mut Entry) {
        entry.committed = entry.committed.min(entry.protected_pages * self.page_size);
    }

    /// Takes all pages of a request: whole shareable pages into the cache, the
    /// others into the free list, where the next plan may take them at once.
    ///
    /// Rows of this request may still be in flight. They write at positions
    /// `≥ committed` only, a draft model's at `≥ drafted`, hence into pages
    /// freed here and never into cached ones; and since every worker executes plans in order, such a write is
    /// done before a later plan's owner of the page writes, and an owner reads
    /// only positions that it wrote.
    pub fn release(&mut self, entry: &mut Entry) {
        let from = entry.protected_pages as usize;
        let mut kept = from..from;
        let full = (self.shareable(entry) / self.page_size) as usize;
        if let Some(cache) = &mut self.cache {
            // What another request has cached meanwhile is held twice: ours goes.
            kept = cache.insert(&entry.tokens, &entry.pages[..full])..full;
            cache.unlock(entry.node);
        }
        let own = entry.pages.iter().enumerate().skip(from).rev();
        for (at, page) in own {
            if !kept.contains(&at) {
                self.pool.release(*page);
            }
        }
        entry.clear_kv();
    }

    /// Undoes [`match_prefix`](Self::match_prefix) of a request that stays in the queue.
    pub fn unmatch(&mut self, entry: &mut Entry) {
        if let Some(cache) = &mut self.cache {
            cache.unlock(entry.node);
        }
        entry.clear_kv();
    }

    /// Drops the cache; no request may hold pages. Gives the tokens dropped.
    pub fn flush(&mut self) -> u64 {
        let Some(cache) = &mut self.cache else {
            return 0;
        };
        let pages = cache.total_pages();
        cache.clear(&mut |page| self.pool.release(page));
        u64::from(pages) * u64::from(self.page_size)
    }

    /// The engine's memory is gone: all pages are free and nothing is cached.
    pub fn reset(&mut self) {
        if let Some(cache) = &mut self.cache {
            cache.clear(&mut |_| {});
        }
        self.pool.reset();
    }

    fn evict(&mut self, count: u32) {
        if let Some(cache) = &mut self.cache {
            let freed = cache.evict(count, &mut |page| self.pool.release(page));
            self.evicted_pages += u64::from(freed);
        }
    }
}

const _: () = assert!(ROOT.0 == 0, "a request without a match holds the root");
