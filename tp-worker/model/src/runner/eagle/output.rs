//! From hidden states to logits.

use std::{mem::take, ops::Range};

use lockstep_backend::{Axis, Backend, Linear, Owners};

use super::{EagleHead, HiddenSource};
use crate::{ModelError, Tables, models::eagle::Wiring, runner::limits::fits};

impl<B: Backend> EagleHead<B> {
    /// Returns the head's logits for each of `sources`, `[sources, vocab]`, on the host.
    /// Columns are the head's tokens, see [`Self::target_token`]. At most
    /// [`crate::ForwardLimits::logit_block_rows`] rows are computed at a time. One block is
    /// read in place, several are collected.
    ///
    /// # Errors
    /// [`ModelError::TooLarge`] for more sources than a pass has tokens;
    /// [`ModelError::NoHiddenState`].
    pub fn logits(
        &mut self,
        backend: &mut B,
        tables: Tables<'_, B>,
        sources: &[HiddenSource],
    ) -> Result<&[f32], ModelError> {
        let block = self.limits.logit_block_rows;
        fits("draft logits", sources.len(), self.limits.max_tokens)?;
        if sources.len() <= block {
            return self.logit_block(backend, tables, sources);
        }
        let mut collected = take(&mut self.buffers.collected);
        collected.clear();
        for sources in sources.chunks(block) {
            collected.extend_from_slice(self.logit_block(backend, tables, sources)?);
        }
        self.buffers.collected = collected;
        Ok(&self.buffers.collected)
    }

    fn logit_block(
        &mut self,
        backend: &mut B,
        tables: Tables<'_, B>,
        sources: &[HiddenSource],
    ) -> Result<&[f32], ModelError> {
        let (b, rows) = (&mut self.buffers, sources.len());
        if rows == 0 {
            return Ok(&[]);
        }
        self.picks.sort(sources, self.requests, self.outputs)?;
        backend.set_rows(&mut b.head_input, rows);
        backend.set_rows(&mut b.head_normed, rows);
        backend.set_rows(&mut b.logits, rows);
        let outputs = &b.layer.residual;
        self.picks
            .copy(backend, &b.roots, outputs, &mut b.head_input);
        let input = match &self.weights.wiring {
            Wiring::Eagle { .. } => backend.as_operand(&b.head_input, &mut b.head_normed),
            Wiring::Eagle3 { norm, .. } => {
                norm.run(backend, &b.head_input, &mut b.head_normed);
                &b.head_normed
            }
        };
        let head = self.weights.head.as_ref().unwrap_or(tables.head);
        backend.matmul(input, Linear::unbiased(head), &mut b.logits);
        let owners = Owners {
            widths: &[self.vocab],
            rows: &[Range {
                start: 0,
                end: rows,
            }],
        };
        Ok(backend.gather_to_host(Axis::Alone, &b.logits, owners, &mut b.host_logits)?)
    }
}
