//! The pages of one group of layers with a sliding window.

use super::super::pages::PagePool;
use crate::request::len_u32;

/// Pages of a group of layers that see only the last `window` positions.
///
/// A page is free, or requests use it, or it is the page of a cached block, or both of the last
/// two. A page of a cached block that no request uses is evicted, alone and without its block,
/// when pages run short: the one that was given up first goes first. Pages where another text
/// is likely to go on, or has gone on, go only when no other is left. Blocks are named by their
/// page of the first group, which no other block has.
#[derive(Debug)]
pub(super) struct WindowPool {
    window: u32,
    pages: PagePool,
    /// Number of requests that use each page.
    users: Vec<u32>,
    /// Cached block of each page; 0 if it has none.
    block: Vec<u32>,
    /// Page of each cached block; 0 if it has none.
    page: Vec<u32>,
    /// True for pages where another text is likely to go on.
    valued: Vec<bool>,
    /// Pages before and after each page in the ring of evictable pages, one ring for valued
    /// pages and one for others. Each begins and ends at a number that no page has: page 0, and
    /// the number of pages.
    ring: Vec<[u32; 2]>,
    evictable: u32,
    uses: u64,
}

const BEFORE: usize = 0;
const AFTER: usize = 1;

impl WindowPool {
    /// Makes a pool of `num_pages` free pages, for blocks of `num_blocks` pages of the first
    /// group. `high` says that the highest pages go out first.
    pub fn new(window: u32, num_pages: u32, num_blocks: u32, high: bool) -> Self {
        let (each, blocks) = (num_pages as usize, num_blocks as usize);
        Self {
            window,
            pages: match high {
                true => PagePool::from_the_highest(num_pages),
                false => PagePool::new(num_pages),
            },
            users: vec![0; each],
            block: vec![0; each],
            page: vec![0; blocks],
            valued: vec![false; each],
            ring: rings(num_pages),
            evictable: 0,
            uses: 0,
        }
    }

    /// Returns the number of positions that a query sees, its own included.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// Returns the number of pages that are free or can be evicted.
    pub fn available(&self) -> u32 {
        self.pages.free_pages() + self.evictable
    }

    /// Returns the number of pages that can be evicted.
    pub fn evictable(&self) -> u32 {
        self.evictable
    }

    /// Returns the number of all pages but page 0.
    pub fn capacity(&self) -> u32 {
        self.pages.capacity()
    }

    /// Returns the sum over all pages of the requests that use the page.
    pub fn uses(&self) -> u64 {
        self.uses
    }

    /// Returns the page of a cached block; 0 if it has none.
    pub fn of_block(&self, block: u32) -> u32 {
        self.page[block as usize]
    }

    /// Takes a page for one request; evicts one if none is free. `None` if requests use all.
    pub fn alloc(&mut self) -> Option<u32> {
        if self.pages.free_pages() == 0 {
            self.evict();
        }
        let page = self.pages.alloc()?;
        self.users[page as usize] = 1;
        self.valued[page as usize] = false;
        self.uses += 1;
        Some(page)
    }

    /// Evicts a page, if one is evictable.
    fn evict(&mut self) {
        let end = len_u32(&self.users);
        let oldest = [self.ring[0][AFTER], self.ring[end as usize][AFTER]];
        if let Some(page) = oldest.into_iter().find(|page| *page != 0 && *page != end) {
            self.detach(self.block[page as usize]);
        }
    }

    /// Adds a user, who goes on from another text, to the page of a cached block. Returns the
    /// page.
    pub fn use_block(&mut self, block: u32) -> u32 {
        let page = self.of_block(block);
        if page != 0 {
            if self.users[page as usize] == 0 {
                self.unlist(page);
            }
            self.users[page as usize] += 1;
            self.valued[page as usize] = true;
            self.uses += 1;
        }
        page
    }

    /// Takes a user from a page. If it was the last, the page is evictable if it is cached, else
    /// free. `valued` says that another text is likely to go on there.
    pub fn leave(&mut self, page: u32, valued: bool) {
        self.valued[page as usize] |= valued;
        debug_assert!(self.users[page as usize] > 0, "page {page} has no user");
        self.users[page as usize] = self.users[page as usize].saturating_sub(1);
        self.uses = self.uses.saturating_sub(1);
        if self.users[page as usize] > 0 {
            return;
        }
        match self.block[page as usize] {
            0 => self.pages.release(page),
            _ => self.list(page),
        }
    }

    /// Makes a page that requests use the page of a cached block, if the block has none and the
    /// page has no other block.
    pub fn attach(&mut self, block: u32, page: u32) {
        if self.of_block(block) == 0 && self.block[page as usize] == 0 {
            self.page[block as usize] = page;
            self.block[page as usize] = block;
        }
    }

    /// Takes the page from a block that is no longer cached. The page is free if nobody uses
    /// it.
    pub fn detach(&mut self, block: u32) {
        let page = std::mem::take(&mut self.page[block as usize]);
        if page != 0 {
            self.block[page as usize] = 0;
            if self.users[page as usize] == 0 {
                self.unlist(page);
                self.pages.release(page);
            }
        }
    }

    /// Gives the page of block `from`, which is no longer cached, to block `to`, which is.
    pub fn move_block(&mut self, from: u32, to: u32) {
        let page = std::mem::take(&mut self.page[from as usize]);
        debug_assert_eq!(self.of_block(to), 0, "block {to} was not cached");
        self.page[to as usize] = page;
        if page != 0 {
            self.block[page as usize] = to;
        }
    }

    /// Frees all pages, whoever uses them.
    pub fn reset(&mut self) {
        self.pages.reset();
        self.users.fill(0);
        self.block.fill(0);
        self.page.fill(0);
        self.ring = rings(len_u32(&self.users));
        (self.evictable, self.uses) = (0, 0);
    }

    /// Lists a page as the one of its kind that is evicted last.
    fn list(&mut self, page: u32) {
        let end = match self.valued[page as usize] {
            true => len_u32(&self.users),
            false => 0,
        };
        let last = self.ring[end as usize][BEFORE];
        self.ring[page as usize] = [last, end];
        self.ring[last as usize][AFTER] = page;
        self.ring[end as usize][BEFORE] = page;
        self.evictable += 1;
    }

    fn unlist(&mut self, page: u32) {
        let [before, after] = self.ring[page as usize];
        self.ring[before as usize][AFTER] = after;
        self.ring[after as usize][BEFORE] = before;
        self.evictable -= 1;
    }
}

/// Makes empty rings for `pages` pages.
fn rings(pages: u32) -> Vec<[u32; 2]> {
    let mut rings = vec![[0; 2]; pages as usize + 1];
    rings[pages as usize] = [pages; 2];
    rings
}

/// Access for checks.
impl WindowPool {
    /// Checks that every page is in one state and that all lists agree. `users` are the
    /// requests' uses of each page. `cached` says if a block is cached.
    pub fn check(&self, users: &[u32], cached: impl Fn(u32) -> bool) -> Result<(), (u32, u32)> {
        let mut free = vec![0; users.len()];
        for page in self.pages.iter_free() {
            free[page as usize] += 1;
        }
        let mut listed = vec![0; users.len()];
        for end in [0, users.len()] {
            let mut at = self.ring[end][AFTER] as usize;
            for _ in users {
                if at == end {
                    break;
                }
                listed[at] += u32::from(self.valued[at] == (end > 0));
                at = self.ring[at][AFTER] as usize;
            }
        }
        for (page, &used) in (0..).zip(users).skip(1) {
            let block = self.block[page as usize];
            let held = used > 0 || block != 0;
            let right = used == self.users[page as usize]
                && free[page as usize] == u32::from(!held)
                && listed[page as usize] == u32::from(block != 0 && used == 0)
                && (block == 0 || cached(block) && self.of_block(block) == page);
            if !right {
                return Err((page, free[page as usize] + used));
            }
        }
        let sums = [
            (self.evictable, listed.iter().sum()),
            (self.pages.faults() as u32, 0),
            (self.uses as u32, users.iter().sum()),
            (
                self.page.iter().filter(|page| **page != 0).count() as u32,
                self.block.iter().filter(|block| **block != 0).count() as u32,
            ),
        ];
        match sums.iter().find(|(kept, counted)| kept != counted) {
            Some((kept, _)) => Err((0, *kept)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
