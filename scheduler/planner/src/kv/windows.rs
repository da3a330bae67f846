//! Pages of the groups of layers with sliding windows.
//!
//! A request gives a page back as soon as no query can see its positions any more, while the
//! pages of its other groups stay. So a block of a request, or of the cache, may lack pages of
//! these groups. The radix tree knows nothing of them: a page belongs to a cached block by the
//! block's page of the first group.

use std::ops::Add;

use crate::{IntegrityError, PlannerConfig};
use pool::WindowPool;

mod pool;

/// The pools of all groups with windows; none for most models.
#[derive(Debug)]
pub(super) struct Windows {
    page_size: u32,
    pools: Vec<WindowPool>,
}

/// Pages that one request has in the groups with windows.
#[derive(Debug, Default)]
pub(crate) struct HeldWindows {
    /// For each block in turn, a page of each group with a window; 0 = none.
    pages: Vec<u32>,
    /// For each group, the number of leading blocks that its window has passed.
    passed: Vec<u32>,
    /// For each group, the number of these that still have a page.
    kept: Vec<u32>,
}

/// Blocks of a running request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Passed {
    /// Whole blocks that are final.
    pub blocks: u32,
    /// Whole blocks of its prompt, where another request can go on from its text.
    pub prompt: u32,
    /// Leading blocks that are cached. Pages of others at the end of the prompt are kept until
    /// they are; `u32::MAX` if nothing is ever cached.
    pub cached: u32,
}

impl Passed {
    /// Returns true if a block that the window has passed keeps its page. `first` is the first
    /// block that a query behind the prompt sees.
    fn keeps(self, block: u32, first: u32) -> bool {
        self.is_at_end_of_prompt(block, first) && block >= self.cached
    }

    fn is_at_end_of_prompt(self, block: u32, first: u32) -> bool {
        (first..self.prompt).contains(&block)
    }
}

/// Tokens of pages by holder, all groups with windows together.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct WindowUsage {
    /// Tokens in pages that requests use, whole pages counted.
    pub used: u64,
    /// Tokens of the cache that can be evicted.
    pub evictable: u64,
    /// Tokens of all pages.
    pub total: u64,
    /// Uses of pages by requests that no running request knows of, or the reverse.
    pub leaked: u64,
}

impl Add for WindowUsage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            used: self.used + other.used,
            evictable: self.evictable + other.evictable,
            total: self.total + other.total,
            leaked: self.leaked + other.leaked,
        }
    }
}

impl Windows {
    pub fn new(config: &PlannerConfig) -> Self {
        let windows = config.windows.iter().enumerate();
        let pool = |(number, window): (usize, &u32)| {
            // As in the other groups, every second one begins with its highest page.
            let high = !(number + config.kv_groups as usize).is_multiple_of(2);
            WindowPool::new(*window, config.window_pages, config.num_pages, high)
        };
        Self {
            page_size: config.page_size,
            pools: windows.map(pool).collect(),
        }
    }

    /// Returns true if no group has a window.
    pub fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }

    /// Returns the number of blocks for which every group has a page free or can evict one.
    pub fn available(&self) -> u32 {
        let available = self.pools.iter().map(WindowPool::available);
        available.min().unwrap_or(u32::MAX)
    }

    /// Returns the length of the longest prefix, in blocks, of the cached `blocks` that a
    /// request can go on from: every group has the pages of the positions that the next query
    /// sees. `blocks` yields the first group's pages, from any block.
    pub fn usable(&self, blocks: &[u32]) -> usize {
        let mut len = blocks.len();
        loop {
            let before = len;
            for pool in &self.pools {
                len = self.usable_in(pool, &blocks[..len]);
            }
            if len == before {
                return len;
            }
        }
    }

    fn usable_in(&self, pool: &WindowPool, blocks: &[u32]) -> usize {
        let (mut len, mut at) = (blocks.len(), blocks.len());
        while at > self.first_seen(pool, len as u32) as usize {
            at -= 1;
            if pool.of_block(blocks[at]) == 0 {
                len = at;
            }
        }
        len
    }

    /// Returns the number of the first block that a query right behind `blocks` blocks sees.
    fn first_seen(&self, pool: &WindowPool, blocks: u32) -> u32 {
        (blocks * self.page_size + 1).saturating_sub(pool.window()) / self.page_size
    }

    /// Lets a request use the pages of its cached prefix that its next query sees. `blocks`
    /// are the first group's pages of the prefix, which is usable.
    pub fn enter(&mut self, held: &mut HeldWindows, blocks: &[u32]) {
        let groups = self.pools.len();
        held.pages.resize(blocks.len() * groups, 0);
        held.begin(groups);
        for group in 0..groups {
            let first = self.first_seen(&self.pools[group], blocks.len() as u32);
            held.passed[group] = first;
            for (at, block) in blocks.iter().enumerate().skip(first as usize) {
                held.pages[at * groups + group] = self.pools[group].use_block(*block);
            }
        }
    }

    /// Gives a request pages of `count` further blocks. The caller knows that there are as many
    /// [`available`](Self::available).
    pub fn grow(&mut self, held: &mut HeldWindows, count: u32) {
        held.begin(self.pools.len());
        for _ in 0..count {
            let page = |pool: &mut WindowPool| pool.alloc().unwrap_or(0);
            held.pages.extend(self.pools.iter_mut().map(page));
        }
    }

    /// Takes the pages from a running request that no query behind its final blocks can see,
    /// except those that are to be cached yet.
    pub fn leave_behind(&mut self, held: &mut HeldWindows, of: Passed) {
        let groups = self.pools.len();
        for group in 0..groups {
            let to = self.first_seen(&self.pools[group], of.blocks);
            let end = self.first_seen(&self.pools[group], of.prompt);
            for block in held.passed[group]..to {
                held.passed[group] = block + 1;
                if of.keeps(block, end) {
                    held.kept[group] += 1;
                    continue;
                }
                let page = &mut held.pages[block as usize * groups + group];
                let valued = of.is_at_end_of_prompt(block, end);
                self.pools[group].leave(std::mem::take(page), valued);
            }
        }
    }

    /// Takes all pages from a request, which ends where they are.
    pub fn leave_all(&mut self, held: &mut HeldWindows) {
        let groups = self.pools.len();
        for (at, page) in held.pages.iter().enumerate() {
            if *page != 0 {
                self.pools[at % groups].leave(*page, true);
            }
        }
        held.clear();
    }

    /// Caches a request's pages with the blocks that hold the same tokens, from the request's
    /// block number `from` on. Cached blocks that have a page already keep it.
    pub fn cache(&mut self, held: &HeldWindows, from: u32, blocks: impl Iterator<Item = u32>) {
        let groups = self.pools.len();
        for (own, block) in held.blocks(groups).skip(from as usize).zip(blocks) {
            for (pool, page) in self.pools.iter_mut().zip(own) {
                if *page != 0 {
                    pool.attach(block, *page);
                }
            }
        }
    }

    /// Forgets a block that is no longer cached.
    pub fn uncache(&mut self, block: u32) {
        self.pools.iter_mut().for_each(|pool| pool.detach(block));
    }

    /// Notes that block `to` is cached in the place of block `from`.
    pub fn replace(&mut self, from: u32, to: u32) {
        let pools = self.pools.iter_mut();
        pools.for_each(|pool| pool.move_block(from, to));
    }

    /// Frees all pages, whoever uses them.
    pub fn reset(&mut self) {
        self.pools.iter_mut().for_each(WindowPool::reset);
    }

    /// Counts the pages by holder; `holders` are the requests with a slot.
    pub fn usage<'a>(
        &self,
        holders: &(impl Iterator<Item = &'a HeldWindows> + Clone),
    ) -> WindowUsage {
        let mut usage = WindowUsage::default();
        for (group, pool) in self.pools.iter().enumerate() {
            let known = holders
                .clone()
                .map(|held| held.uses(group, self.pools.len()));
            let tokens = |pages: u32| u64::from(pages) * u64::from(self.page_size);
            usage.used += tokens(pool.capacity() - pool.available());
            usage.evictable += tokens(pool.evictable());
            usage.total += tokens(pool.capacity());
            usage.leaked += known.sum::<u64>().abs_diff(pool.uses());
        }
        usage
    }
}

impl HeldWindows {
    /// Forgets all pages, after they have been given back or are gone.
    pub fn clear(&mut self) {
        self.pages.clear();
        self.passed.fill(0);
        self.kept.fill(0);
    }

    fn begin(&mut self, groups: usize) {
        self.passed.resize(groups, 0);
        self.kept.resize(groups, 0);
    }

    /// Makes room for `more` pages of all groups, so that growing does not allocate.
    pub fn reserve(&mut self, more: usize) {
        self.pages.reserve(more);
    }

    /// Returns the pages of each block in turn, of `groups` groups; nothing for no group.
    pub fn blocks(&self, groups: usize) -> impl Iterator<Item = &[u32]> {
        self.pages.chunks(groups.max(1))
    }

    /// Returns the number of pages of a group that the request uses.
    fn uses(&self, group: usize, groups: usize) -> u64 {
        let count = |list: &[u32]| u64::from(list.get(group).copied().unwrap_or(0));
        (self.pages.len() / groups) as u64 - count(&self.passed) + count(&self.kept)
    }
}

/// Access for checks.
impl Windows {
    /// Checks that every page of every group has one state, and exactly the users that
    /// `holders` tell. `cached` says if a block is cached.
    pub fn check<'a>(
        &self,
        first_group: usize,
        holders: &(impl Iterator<Item = &'a HeldWindows> + Clone),
        cached: impl Fn(u32) -> bool + Copy,
    ) -> Result<(), IntegrityError> {
        let groups = self.pools.len();
        for (group, pool) in self.pools.iter().enumerate() {
            let mut users = vec![0; pool.capacity() as usize + 1];
            for held in holders.clone() {
                for page in held.pages.iter().skip(group).step_by(groups) {
                    users[*page as usize] += u32::from(*page != 0);
                }
            }
            let checked = pool.check(&users, cached);
            checked.map_err(|(page, holders)| IntegrityError::Page {
                group: first_group + group,
                page,
                holders,
            })?;
        }
        Ok(())
    }

    /// Returns true if a request of `blocks` blocks has exactly the pages of the positions that
    /// the query behind its final blocks and all later ones see, and those that are to be
    /// cached yet.
    pub fn has_what_it_sees(&self, held: &HeldWindows, blocks: u32, of: Passed) -> bool {
        let groups = self.pools.len();
        if held.pages.len() != blocks as usize * groups {
            return false;
        }
        let mut pools = self.pools.iter().enumerate();
        pools.all(|(group, pool)| {
            let first = self.first_seen(pool, of.blocks);
            let end = self.first_seen(pool, of.prompt);
            let passed = held.passed.get(group).copied().unwrap_or(0);
            let has = |at: u32| at >= first || of.keeps(at, end);
            let mut pages = (0..).zip(held.blocks(groups));
            passed == first && pages.all(|(at, own)| (own[group] != 0) == has(at))
        })
    }
}
