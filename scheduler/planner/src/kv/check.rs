//! Checks that compare the holders of pages with the pages, for tests and for an idle server.

use super::{Kv, RequestKv};
use crate::{
    IntegrityError,
    error::total,
    request::{RequestState, Stage},
};

impl Kv {
    /// Checks that every page is in exactly one of free list, cache and the `running` requests,
    /// and that the cache's locks are those of the `running` requests.
    pub fn check<'a>(
        &self,
        running: impl Iterator<Item = &'a RequestKv> + Clone,
    ) -> Result<(), IntegrityError> {
        let mut holders = vec![0; self.pool.capacity() as usize + 1];
        let mut hold = |page: u32| {
            if let Some(count) = holders.get_mut(page as usize) {
                *count += 1;
            }
        };
        self.pool.iter_free().for_each(&mut hold);
        for held in running.clone() {
            let own = &held.pages[held.protected_pages as usize..];
            own.iter().copied().for_each(&mut hold);
        }
        if let Some(cache) = &self.cache {
            cache.check(&mut running.map(|held| held.node), &mut hold)?;
        }
        for (page, count) in (0..).zip(holders) {
            if count != u32::from(page != 0) {
                return Err(IntegrityError::Page {
                    page,
                    holders: count,
                });
            }
        }
        total("page releases at fault", self.pool.faults(), 0)
    }

    /// Checks the lengths of one request.
    pub fn check_request(&self, request: &RequestState) -> Result<(), &'static str> {
        let held = &request.kv;
        let page = u64::from(self.page_size);
        let protected = u64::from(held.protected_pages) * page;
        let allocated = held.pages.len() as u64 * page;
        if protected > u64::from(held.committed)
            || held.committed > held.planned
            || u64::from(held.planned) > allocated
        {
            Err("not protected <= committed <= planned <= allocated")
        } else if held.sent_pages > held.pages.len() {
            Err("sent pages that it does not hold")
        } else if held.committed > request.len() {
            Err("committed beyond its tokens")
        } else if request.stage != Stage::Running && !held.pages.is_empty() {
            Err("holds pages without a slot")
        } else {
            Ok(())
        }
    }
}
