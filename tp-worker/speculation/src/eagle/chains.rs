//! Chains and trees of a head, drafted by the device. The pairs of a step wait for the next
//! step, whose drafts begin with them.

use lockstep_backend::Backend;
use lockstep_model::{ModelError, Staged};

use super::{EagleDrafter, Head};
use crate::{
    ChainPass, Device, DraftError, DraftRow, Drafts, DraftsOnDevice, ExtendRow,
    propose::{Proposer, layout::Drafted},
};

impl<B: Backend> EagleDrafter<B> {
    /// Takes the new pairs of a row into the head's next pass, except for the pairs that wait.
    /// `rows` are the rows of the pairs' features.
    pub(super) fn take_or_wait(&mut self, device: &Device<'_, B>, row: &ExtendRow, rows: &[u32]) {
        let waits = match row.ends {
            true => self.waiting.share(rows.len()),
            false => 0,
        };
        let (now, later) = rows.split_at(rows.len() - waits);
        if !now.is_empty() {
            let now = now.iter().copied();
            let span = self.spans[row.slot];
            self.pairs
                .push(device, row.slot, row.pages_start, span, now);
        }
        self.spans[row.slot].to = row.start + now.len();
        if waits > 0 {
            self.waiting.push(row.slot, row.pages_start, later);
        } else if row.ends {
            self.pairs.root(row.slot);
        }
    }

    fn own(&self) -> Drafted {
        Drafted {
            first_cell: Proposer::<B>::first_cell(&self.head),
            vocab: Proposer::<B>::vocab(&self.head),
        }
    }

    /// Returns the depth that the device would draft for a row; `None` if only the host can
    /// draft for it.
    fn device_depth(&self, row: &DraftRow, page_size: usize) -> Option<usize> {
        let (span, waits) = (self.spans[row.slot], self.waiting.of(row.slot).pairs);
        let wanted = self.own().levels(row);
        match (waits, row.kv_len.saturating_sub(span.to + waits)) {
            _ if wanted == 0 => Some(0),
            (1.., 0) => Some(wanted),
            // The host could not draft either.
            (0, 1..) if self.missed.reach(span, row.kv_len, page_size).is_none() => Some(0),
            _ => None,
        }
    }

    /// Takes in the waiting pairs, except for pairs that the step's chains take in.
    fn take_waiting(&mut self, device: &mut Device<'_, B>) -> Result<(), DraftError> {
        let Some(features) = device.features.filter(|_| self.waiting.may()) else {
            return Ok(());
        };
        for slot in 0..self.waiting.slots() {
            let waits = self.waiting.of(slot);
            if waits.pairs == 0 || waits.chained {
                continue;
            }
            let rows = self.waiting.rows(waits).iter().copied();
            let span = &mut self.spans[slot];
            self.pairs
                .push(device, slot, waits.pages_start, *span, rows);
            self.pairs.root(slot);
            span.to += waits.pairs;
            self.waiting.done(slot);
        }
        self.pairs.take_in(&mut self.head, device, features)
    }
}

impl<B: Backend> DraftsOnDevice<B> for EagleDrafter<B> {
    fn lay_out(
        &mut self,
        device: &mut Device<'_, B>,
        rows: &[DraftRow],
        drafts: &mut Drafts,
        chains: &mut ChainPass,
    ) -> Result<bool, DraftError> {
        if !self.waiting.may() || !self.chains.fit(&self.head.head.limits(), rows.len()) {
            return Ok(false);
        }
        self.rows.clear();
        for row in rows {
            match self.device_depth(row, device.pages.page_size as usize) {
                None => return Ok(false),
                Some(0) => self.rows.push(DraftRow { steps: 0, ..*row }),
                Some(_) => self.rows.push(*row),
            }
        }
        self.own().begin(&self.rows, drafts, chains);
        for row in self.rows.iter().filter(|row| row.steps > 0) {
            self.waiting.chain(row.slot);
        }
        self.take_waiting(device)?;
        let (waiting, spans) = (&mut self.waiting, &mut self.spans);
        chains.fill(|at, pass, sources| {
            let (slot, row) = (rows[at].slot, &rows[at]);
            let (span, waits) = (&mut spans[slot], waiting.of(slot));
            let tokens = &device.requests.tokens(slot)[span.to + 1..][..waits.pairs];
            let place = span.place(span.to);
            pass.begin(place, span.pages(device.pages, row.pages_start));
            pass.push_chain(device.pages, tokens, place);
            sources.extend_from_slice(waiting.rows(waits));
            span.to += waits.pairs;
            waiting.done(slot);
        });
        Ok(true)
    }

    fn settle(&mut self, device: &mut Device<'_, B>) -> Result<(), DraftError> {
        self.take_waiting(device)
    }

    fn run(
        &mut self,
        backend: &mut B,
        staged: Staged<'_, B>,
        chains: &ChainPass,
    ) -> Result<(), ModelError> {
        let Head { head, cache, .. } = &mut self.head;
        head.draft_chains(backend, cache, &mut self.chains, chains.size(), staged)
    }

    fn record(
        &mut self,
        backend: &mut B,
        staged: Staged<'_, B>,
        each: &mut dyn FnMut(usize),
    ) -> Result<(), ModelError> {
        // Layers that draft in turn are asked by the host.
        if self.head.head.layers() > 1 || !self.chains.serve(backend, self.own().vocab) {
            return Ok(());
        }
        self.waiting.begin(self.chains.first());
        let Head { head, cache, .. } = &mut self.head;
        head.record_chains(backend, cache, &mut self.chains, staged, each)
    }
}
