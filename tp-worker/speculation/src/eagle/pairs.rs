//! Pairs of features and tokens on their way into the head's cache.

use lockstep_backend::Backend;

use super::Head;
use crate::{Device, DraftError, Pass, span::Span};

/// A pass over pairs under construction, in buffers that are reused.
pub(super) struct Pairs {
    pass: Pass,
    /// Rows of features, one for each pair.
    features: Vec<u32>,
    /// Slots whose drafts start from the wanted pairs of the pass, in order. Where layers draft in
    /// turn, those of all rows.
    roots: Vec<u32>,
    /// For each row, true if the head has not the outputs before it as roots.
    begins: Vec<bool>,
    /// For each slot, the position after that of its roots; empty unless layers draft in turn.
    /// Later layers go on from outputs of the layers before them.
    rooted: Vec<Option<usize>>,
    most: usize,
}

impl Pairs {
    /// Makes room for a pass of `tokens` pairs of `requests` requests, for a head whose `layers`
    /// draft in turn.
    pub fn new(requests: usize, tokens: usize, layers: usize) -> Self {
        Self {
            pass: Pass::new(requests, tokens),
            features: Vec::with_capacity(tokens),
            roots: Vec::with_capacity(requests),
            begins: Vec::with_capacity(requests),
            rooted: if layers > 1 {
                vec![None; requests]
            } else {
                Vec::new()
            },
            most: tokens,
        }
    }

    /// Returns the number of pairs that still fit.
    pub fn room(&self) -> usize {
        self.most.saturating_sub(self.pass.len())
    }

    /// Adds the next pairs of a request after its `span`, as a row of the pass. `rows` are the
    /// rows of the pairs' features.
    pub fn push<B: Backend>(
        &mut self,
        device: &Device<'_, B>,
        slot: usize,
        pages_start: u32,
        span: Span,
        rows: impl ExactSizeIterator<Item = u32>,
    ) {
        let next = &device.requests.tokens(slot)[span.to + 1..][..rows.len()];
        let place = span.place(span.to);
        self.pass
            .begin(place, span.pages(device.pages, pages_start));
        self.pass.push_chain(device.pages, next, place);
        if let Some(rooted) = self.rooted.get_mut(slot) {
            self.begins.push(*rooted != Some(span.to));
            *rooted = Some(span.to + rows.len());
            self.pass.want();
            self.roots.push(slot as u32);
        }
        self.features.extend(rows);
    }

    /// Makes the slot's next draft start from the pair pushed last. Where layers draft in turn, all
    /// rows end with a root anyway.
    pub fn root(&mut self, slot: usize) {
        if self.rooted.is_empty() {
            self.pass.want();
            self.roots.push(slot as u32);
        }
    }

    /// Forgets that the head has roots of the slot's text.
    pub fn forget_roots(&mut self, slot: usize) {
        if let Some(rooted) = self.rooted.get_mut(slot) {
            *rooted = None;
        }
    }

    /// Runs the head over the pairs, whose features are rows of `features`. Then begins anew.
    ///
    /// # Errors
    /// The errors of the head.
    pub fn take_in<B: Backend>(
        &mut self,
        head: &mut Head<B>,
        device: &mut Device<'_, B>,
        features: &B::Tensor,
    ) -> Result<(), DraftError> {
        if !self.pass.is_empty() {
            let Head { head, cache, .. } = head;
            let batch = self.pass.batch(device.pages);
            head.feed_features(device.backend, features, &self.features)?;
            let roots = self.roots.as_slice();
            match self.rooted.is_empty() {
                true => head.take_in(device.backend, cache, device.tables, &batch, roots)?,
                false => {
                    let rows = (roots, self.begins.as_slice());
                    head.take_in_turn(device.backend, cache, device.tables, &batch, rows)?;
                }
            }
        }
        self.pass.clear();
        self.features.clear();
        self.roots.clear();
        self.begins.clear();
        Ok(())
    }
}
