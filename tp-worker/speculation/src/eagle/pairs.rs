//! Pairs of features and tokens on their way into the head's cache.

use lockstep_backend::Backend;

use super::Head;
use crate::{Device, DraftError, Pass, span::Span};

/// A pass over pairs under construction, in buffers that are reused.
pub(super) struct Pairs {
    pass: Pass,
    /// Rows of features, one for each pair.
    features: Vec<u32>,
    /// Slots whose drafts start from the wanted pairs of the pass, in order.
    roots: Vec<u32>,
    most: usize,
}

impl Pairs {
    /// Makes room for a pass of `tokens` pairs of `requests` requests.
    pub fn new(requests: usize, tokens: usize) -> Self {
        Self {
            pass: Pass::new(requests, tokens),
            features: Vec::with_capacity(tokens),
            roots: Vec::with_capacity(requests),
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
        self.features.extend(rows);
    }

    /// Makes the slot's next draft start from the pair pushed last.
    pub fn root(&mut self, slot: usize) {
        self.pass.want();
        self.roots.push(slot as u32);
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
            head.take_in(device.backend, cache, device.tables, &batch, &self.roots)?;
        }
        self.pass.clear();
        self.features.clear();
        self.roots.clear();
        Ok(())
    }
}
