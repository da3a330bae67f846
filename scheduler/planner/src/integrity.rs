//! All books at once: for tests, and for a server that is idle.

use std::cmp::Ordering;

use crate::{
    IntegrityError, Planner,
    table::{Entry, Stage},
};

impl Planner {
    /// Checks that every page is in exactly one of free list, cache and
    /// requests, that cache locks are those of running requests, that every
    /// slot is free or held once, and that all counters agree.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check_integrity(&self) -> Result<(), IntegrityError> {
        self.check_pages()?;
        self.check_slots()?;
        self.check_queue_totals()?;
        for (index, entry) in self.table.iter() {
            let message = self.check_entry(index, entry);
            if let Err(message) = message {
                return Err(IntegrityError::Request {
                    id: entry.id.0,
                    message: message.into(),
                });
            }
        }
        Ok(())
    }

    fn check_pages(&self) -> Result<(), IntegrityError> {
        let mut holders = vec![0; self.kv.pool.capacity() as usize + 1];
        let mut hold = |page: u32| {
            if let Some(count) = holders.get_mut(page as usize) {
                *count += 1;
            }
        };
        self.kv.pool.iter_free().for_each(&mut hold);
        let entries = || self.running.iter().map(|index| &self.table[*index]);
        for entry in entries() {
            let own = &entry.pages[entry.protected_pages as usize..];
            own.iter().copied().for_each(&mut hold);
        }
        if let Some(cache) = &self.kv.cache {
            cache.check(&mut entries().map(|entry| entry.node), &mut hold)?;
        }
        for (page, count) in (0..).zip(holders) {
            if count != u32::from(page != 0) {
                return Err(IntegrityError::Page {
                    page,
                    holders: count,
                });
            }
        }
        total("page releases at fault", self.kv.pool.faults(), 0)
    }

    fn check_slots(&self) -> Result<(), IntegrityError> {
        let mut holders = vec![0; self.slots.count() as usize];
        let held = self.running.iter().map(|index| self.table[*index].slot);
        for slot in self.slots.iter_free().chain(held) {
            holders[slot as usize] += 1;
        }
        for (slot, count) in (0..).zip(holders) {
            if count != 1 {
                return Err(IntegrityError::Slot {
                    slot,
                    holders: count,
                });
            }
        }
        Ok(())
    }

    fn check_queue_totals(&self) -> Result<(), IntegrityError> {
        let staged = |stage| self.table.iter().filter(move |(_, e)| e.stage == stage);
        let tokens = staged(Stage::Waiting).map(|(_, entry)| u64::from(entry.len()));
        total("queued tokens", self.queue.tokens(), tokens.sum())?;
        let waiting = staged(Stage::Waiting).count() as u64;
        total("queued requests", self.queue.len() as u64, waiting)?;
        let running = staged(Stage::Running).count() as u64;
        total("running requests", self.running.len() as u64, running)?;
        let limited = |(_, entry): &(u32, &Entry)| entry.rest.deadline.is_some();
        let limited = self.table.iter().filter(limited).count() as u64;
        total("deadlines", self.deadlines.len() as u64, limited)?;
        let limited = |(_, entry): &(u32, &Entry)| entry.rest.queue_deadline.is_some();
        let limited = self.table.iter().filter(limited).count() as u64;
        total(
            "queue deadlines",
            self.queue_deadlines.len() as u64,
            limited,
        )
    }

    fn check_entry(&self, index: u32, entry: &Entry) -> Result<(), &'static str> {
        let page = u64::from(self.config.page_size);
        let protected = u64::from(entry.protected_pages) * page;
        let allocated = entry.pages.len() as u64 * page;
        let in_flight = self.flight.steps.iter().flat_map(|step| &step.rows);
        let rows = in_flight.filter(|row| row.index == index && row.arrival == entry.arrival);
        let (rows, samples) = rows.fold((0, 0), |(rows, samples), row| {
            (rows + 1, samples + u32::from(row.sample))
        });
        if protected > u64::from(entry.committed)
            || entry.committed > entry.planned
            || u64::from(entry.planned) > allocated
        {
            Err("not cache_protected <= committed <= planned <= allocated")
        } else if entry.committed > entry.len() {
            Err("committed beyond its tokens")
        } else if (rows, samples) != (entry.rows_in_flight, entry.samples_in_flight) {
            Err("rows in flight miscounted")
        } else if entry.stage != Stage::Running && !entry.pages.is_empty() {
            Err("holds pages without a slot")
        } else if entry.stage == Stage::Draining && rows == 0 {
            Err("drains without rows in flight")
        } else {
            Ok(())
        }
    }
}

fn total(what: &'static str, kept: u64, counted: u64) -> Result<(), IntegrityError> {
    match kept.cmp(&counted) {
        Ordering::Equal => Ok(()),
        _ => Err(IntegrityError::Total {
            what,
            kept,
            counted,
        }),
    }
}
