//! Checks that compare the holders of pages with the pages, for tests and for an idle server.

use super::{Kv, RequestKv};
use crate::{
    IntegrityError,
    error::total,
    request::{RequestState, Stage},
};

impl Kv {
    /// Checks that every page of every group has exactly one place: the free list, the cache or a
    /// `running` request, and every recurrent state. Checks also that the cache has exactly the locks of the `running`
    /// requests.
    pub fn check<'a>(
        &self,
        running: &(impl Iterator<Item = &'a RequestKv> + Clone),
    ) -> Result<(), IntegrityError> {
        let mut cached = Vec::new();
        if let Some(cache) = &self.cache {
            let nodes = &mut running.clone().map(|held| held.node);
            cache.check(nodes, &mut |block| cached.extend_from_slice(block))?;
        }
        let groups = self.pools.groups();
        for (group, pool) in self.pools.iter().enumerate() {
            let mut holders = vec![0; pool.capacity() as usize + 1];
            let mut hold = |page: u32| {
                if let Some(count) = holders.get_mut(page as usize) {
                    *count += 1;
                }
            };
            pool.iter_free().for_each(&mut hold);
            of_group(&cached, group, groups).for_each(&mut hold);
            for held in running.clone() {
                let own = &held.pages[held.protected_blocks as usize * groups..];
                of_group(own, group, groups).for_each(&mut hold);
            }
            for (page, count) in (0..).zip(holders) {
                if count != u32::from(page != 0) {
                    return Err(IntegrityError::Page {
                        group,
                        page,
                        holders: count,
                    });
                }
            }
            total("page releases at fault", pool.faults(), 0)?;
        }
        let mut is_cached = vec![false; self.drafted.len()];
        for block in of_group(&cached, 0, groups) {
            is_cached[block as usize] = true;
        }
        let held = running.clone().map(|held| &held.windows);
        let is_cached = |block: u32| is_cached[block as usize];
        self.windows.check(groups, &held, is_cached)?;
        let held = running.clone().map(|held| &held.states);
        self.states.check(held, is_cached)
    }

    /// Checks the lengths of one request.
    pub fn check_request(&self, request: &RequestState) -> Result<(), &'static str> {
        let held = &request.kv;
        let page = u64::from(self.page_size);
        let protected = u64::from(held.protected_blocks) * page;
        let allocated = u64::from(held.blocks) * page;
        let passed = self.passed(request);
        let runs = request.stage == Stage::Running;
        if held.pages.len() != held.blocks as usize * self.pools.groups() {
            Err("not as many pages of each group")
        } else if !self
            .windows
            .has_what_it_sees(&held.windows, held.blocks, passed)
        {
            Err("not exactly the pages that its windows show")
        } else if !self.states.fits(&held.states, runs, held.committed) {
            Err("not exactly the states of where it stands")
        } else if protected > u64::from(held.committed)
            || held.committed > held.planned
            || u64::from(held.planned) > allocated
        {
            Err("not protected <= committed <= planned <= allocated")
        } else if held.sent_blocks > held.blocks {
            Err("sent pages that it does not hold")
        } else if held.committed > request.len() {
            Err("committed beyond its tokens")
        } else if !runs && !held.pages.is_empty() {
            Err("holds pages without a slot")
        } else {
            Ok(())
        }
    }
}

/// Returns the pages of one of `groups` groups among the pages of blocks.
fn of_group(pages: &[u32], group: usize, groups: usize) -> impl Iterator<Item = u32> {
    pages.iter().copied().skip(group).step_by(groups)
}
