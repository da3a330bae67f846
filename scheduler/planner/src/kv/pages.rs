//! The page allocator of a group's KV pool.

/// Allocator of the page numbers `1..num_pages`; page 0 stays with padding.
#[derive(Debug)]
pub struct PagePool {
    /// Free pages as a stack: the pages freed last, warm in caches, go out first.
    free: Vec<u32>,
    taken: Vec<bool>,
    /// True if the highest pages go out first in a pool with all pages free.
    from_the_highest: bool,
    faults: u64,
}

impl PagePool {
    /// Makes a pool with all pages free; the lowest go out first.
    pub fn new(num_pages: u32) -> Self {
        Self::starting(num_pages, false)
    }

    /// Makes a pool with all pages free; the highest go out first.
    pub fn from_the_highest(num_pages: u32) -> Self {
        Self::starting(num_pages, true)
    }

    fn starting(num_pages: u32, from_the_highest: bool) -> Self {
        let mut pool = Self {
            free: Vec::with_capacity(num_pages as usize),
            taken: vec![false; num_pages as usize],
            from_the_highest,
            faults: 0,
        };
        pool.reset();
        pool
    }

    /// Returns the number of pages that [`alloc`](Self::alloc) can still give.
    pub fn free_pages(&self) -> u32 {
        u32::try_from(self.free.len()).unwrap_or(u32::MAX)
    }

    /// Returns the number of all pages but page 0.
    pub fn capacity(&self) -> u32 {
        u32::try_from(self.taken.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }

    /// Takes one page; `None` if no page is free.
    pub fn alloc(&mut self) -> Option<u32> {
        let page = self.free.pop()?;
        self.taken[page as usize] = true;
        Some(page)
    }

    /// Gives one page back. A page that is not taken is counted as a fault and
    /// otherwise ignored, so that it can never be handed out twice.
    pub fn release(&mut self, page: u32) {
        match self.taken.get_mut(page as usize) {
            Some(taken) if *taken => {
                *taken = false;
                self.free.push(page);
            }
            _ => self.faults += 1,
        }
    }

    /// Returns the number of releases of pages that were not taken: always 0.
    pub fn faults(&self) -> u64 {
        self.faults
    }

    /// Returns the free pages, for integrity checks.
    pub fn iter_free(&self) -> impl Iterator<Item = u32> + '_ {
        self.free.iter().copied()
    }

    /// Forgets every owner.
    pub fn reset(&mut self) {
        let pages = u32::try_from(self.taken.len()).unwrap_or(u32::MAX);
        self.taken.fill(false);
        self.free.clear();
        match self.from_the_highest {
            true => self.free.extend(1..pages),
            false => self.free.extend((1..pages).rev()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// The pool never hands out a page twice or page 0, and loses none; the reference is a
        /// set.
        #[test]
        fn equals_a_set(num_pages in 2u32..20, high: bool, ops in prop::collection::vec(any::<(bool, u8)>(), 0..200)) {
            let mut pool = if high { PagePool::from_the_highest(num_pages) } else { PagePool::new(num_pages) };
            let mut held = BTreeSet::new();
            for (alloc, pick) in ops {
                if alloc {
                    match pool.alloc() {
                        Some(page) => prop_assert!(page > 0 && page < num_pages && held.insert(page)),
                        None => prop_assert_eq!(held.len() as u32, pool.capacity()),
                    }
                } else if let Some(page) = held.iter().nth(pick as usize % held.len().max(1)).copied() {
                    held.remove(&page);
                    pool.release(page);
                }
                prop_assert_eq!(pool.free_pages() + held.len() as u32, num_pages - 1);
            }
            prop_assert_eq!(pool.faults(), 0);
        }
    }

    #[test]
    fn a_double_release_is_counted_and_harmless() {
        let mut pool = PagePool::new(3);
        let page = pool.alloc().unwrap();
        pool.release(page);
        pool.release(page);
        pool.release(0);
        pool.release(99);
        assert_eq!((pool.faults(), pool.free_pages()), (3, 2));
        assert_ne!(pool.alloc(), pool.alloc());
    }
}
