//! Hidden states to logits.

use lockstep_backend::Backend;

use super::{EagleHead, HiddenSource, Wiring};
use crate::{ModelError, Tables, limits::fits, solo};

impl<B: Backend> EagleHead<B> {
    /// What the head predicts from each of `sources`, `[sources, vocab]` on the
    /// host; columns are the head's tokens, see [`Self::target_token`].
    ///
    /// # Errors
    /// [`ModelError::TooLarge`] for more sources than
    /// [`crate::ForwardLimits::logit_block_rows`]; [`ModelError::NoHiddenState`];
    /// [`ModelError::NotSolo`].
    pub fn logits(
        &mut self,
        backend: &mut B,
        tables: Tables<'_, B>,
        sources: &[HiddenSource],
    ) -> Result<&[f32], ModelError> {
        solo::check(backend)?;
        let (rows, most) = (sources.len(), self.limits.logit_block_rows);
        fits("rows of draft logits", rows, most)?;
        if rows == 0 {
            return Ok(&[]);
        }
        let b = &mut self.buffers;
        b.picks.sort(sources, self.requests, self.outputs)?;
        backend.set_rows(&mut b.head_input, rows);
        backend.set_rows(&mut b.logits, rows);
        let outputs = &b.layer.residual;
        b.picks.copy(backend, &b.roots, outputs, &mut b.head_input);
        let input = match &self.wiring {
            Wiring::Eagle { .. } => &b.head_input,
            Wiring::Eagle3 { norm, .. } => {
                backend.set_rows(&mut b.head_normed, rows);
                let eps = self.geometry.eps;
                backend.rms_norm(&b.head_input, norm, eps, &mut b.head_normed);
                &b.head_normed
            }
        };
        let head = self.head.as_ref().unwrap_or(tables.head);
        backend.matmul(input, head, None, &mut b.logits);
        let widths = [self.vocab];
        Ok(backend.gather_to_host(&b.logits, &widths, &mut b.host_logits)?)
    }
}
