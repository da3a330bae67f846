//! The target's hidden states on their way into the draft's cache.

use lockstep_backend::Backend;

use super::Model;
use crate::{Device, DraftError, Pass, span::Span};

/// A pass over hidden states under construction, in buffers that are reused.
pub(super) struct Context {
    pass: Pass,
    /// Rows of features, one for each position.
    features: Vec<u32>,
    most: usize,
}

impl Context {
    /// Makes room for a pass of `tokens` positions of `requests` requests.
    pub fn new(requests: usize, tokens: usize) -> Self {
        Self {
            pass: Pass::new(requests, tokens),
            features: Vec::with_capacity(tokens),
            most: tokens,
        }
    }

    /// Returns the number of positions that still fit.
    pub fn room(&self) -> usize {
        self.most.saturating_sub(self.pass.len())
    }

    /// Adds the next positions of a request after its `span`, with the rows of their features.
    pub fn push<B: Backend>(
        &mut self,
        device: &Device<'_, B>,
        pages_start: u32,
        span: Span,
        rows: impl ExactSizeIterator<Item = u32>,
    ) {
        let first = span.place(span.to);
        self.pass
            .begin(first, span.pages(device.pages, pages_start));
        for place in first..first + rows.len() {
            // No token is read.
            self.pass.push(device.pages, 0, place, place);
        }
        self.features.extend(rows);
    }

    /// Takes in the positions, whose features are rows of `features`. Then begins anew.
    ///
    /// # Errors
    /// The errors of the model.
    pub fn take_in<B: Backend>(
        &mut self,
        model: &mut Model<B>,
        device: &mut Device<'_, B>,
        features: &B::Tensor,
    ) -> Result<(), DraftError> {
        if !self.pass.is_empty() {
            let Model { model, cache } = model;
            let batch = self.pass.batch(device.pages);
            model.take_in(device.backend, cache, features, &self.features, &batch)?;
        }
        self.pass.clear();
        self.features.clear();
        Ok(())
    }
}
