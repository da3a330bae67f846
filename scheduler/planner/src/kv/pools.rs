//! The page pools of all groups of layers. A block of `page_size` tokens has a page of each.

use super::pages::PagePool;

/// One pool for each group of layers.
#[derive(Debug)]
pub struct PagePools {
    pools: Vec<PagePool>,
}

impl PagePools {
    /// Makes pools of `num_pages` pages each, for at least one group. The first group begins
    /// with its lowest page, the second with its highest, and so on in turn: a page that is
    /// taken for one of another group is then a wrong page, and shows.
    pub fn new(num_pages: u32, groups: u32) -> Self {
        let pools = (0..groups.max(1)).map(|group| match group % 2 {
            0 => PagePool::new(num_pages),
            _ => PagePool::from_the_highest(num_pages),
        });
        Self {
            pools: pools.collect(),
        }
    }

    /// Returns the number of groups: pages of a block.
    pub fn groups(&self) -> usize {
        self.pools.len()
    }

    /// Returns the number of blocks for which every group still has a page.
    pub fn free_blocks(&self) -> u32 {
        self.least(PagePool::free_pages)
    }

    /// Returns the number of blocks for which every group has a page, free or not.
    pub fn capacity(&self) -> u32 {
        self.least(PagePool::capacity)
    }

    /// Takes a page of each group and appends them to `pages`. Returns false, and takes none,
    /// if a group has no free page.
    pub fn alloc(&mut self, pages: &mut Vec<u32>) -> bool {
        let free = self.free_blocks() > 0;
        if free {
            pages.extend(self.pools.iter_mut().filter_map(PagePool::alloc));
        }
        free
    }

    /// Gives back the pages of a block.
    pub fn release(&mut self, block: &[u32]) {
        for (pool, page) in self.pools.iter_mut().zip(block) {
            pool.release(*page);
        }
    }

    /// Returns the pages of all groups that are taken and not among `known` ones of each group.
    pub fn unknown(&self, known: u32) -> u64 {
        let taken = |pool: &PagePool| pool.capacity() - pool.free_pages();
        let unknown = |pool: &PagePool| u64::from(taken(pool).saturating_sub(known));
        self.pools.iter().map(unknown).sum()
    }

    /// Frees all pages, whoever owns them.
    pub fn reset(&mut self) {
        self.pools.iter_mut().for_each(PagePool::reset);
    }

    /// Returns the pools by group, for integrity checks.
    pub fn iter(&self) -> impl Iterator<Item = &PagePool> {
        self.pools.iter()
    }

    /// Returns the pool of a group, for tests that take pages away.
    #[cfg(test)]
    pub fn of_group(&mut self, group: usize) -> &mut PagePool {
        &mut self.pools[group]
    }

    fn least(&self, pages: impl Fn(&PagePool) -> u32) -> u32 {
        self.pools.iter().map(pages).min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_a_page_of_each_group_or_none() {
        let mut pools = PagePools::new(4, 2);
        let mut pages = Vec::new();
        assert!(pools.alloc(&mut pages));
        assert_eq!(pages, [1, 3]);
        let other = pools.of_group(1).alloc().unwrap();
        assert_eq!((pools.free_blocks(), pools.capacity()), (1, 3));
        assert_eq!((pools.unknown(1), pools.unknown(0)), (1, 3));
        assert!(pools.alloc(&mut pages));
        assert_eq!(pages, [1, 3, 2, 1]);
        assert!(!pools.alloc(&mut pages));
        assert_eq!(pages.len(), 4);
        pools.of_group(1).release(other);
        pools.release(&pages[..2]);
        assert_eq!(pools.free_blocks(), 2);
        pools.reset();
        assert_eq!(pools.free_blocks(), 3);
        let faults = pools.iter().map(PagePool::faults);
        assert_eq!(faults.sum::<u64>(), 0);
    }
}
