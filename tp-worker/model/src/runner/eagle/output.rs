//! From hidden states to logits.

use std::{mem::take, ops::Range};

use lockstep_backend::{Axis, Backend, Linear, LogitScaling, Owners};

use super::{EagleHead, HiddenSource, hidden::Known};
use crate::{
    ModelError, Tables,
    models::eagle::{Eagle, Wiring},
    runner::limits::fits,
};

/// Buffers between hidden states and logits.
pub(super) struct Output<'a, T> {
    /// The states as the output head reads them: normed by all heads but EAGLE-1/2's.
    pub normed: &'a mut T,
    /// The logits.
    pub logits: &'a mut T,
    /// Scaling of the products of the target's output head, if the head reads that.
    pub scaling: Option<LogitScaling>,
}

impl<T> Output<'_, T> {
    /// Computes the logits of `rows` hidden `states`, outputs of layer `turn`.
    pub fn compute<B: Backend<Tensor = T>>(
        self,
        backend: &mut B,
        weights: &Eagle<B>,
        turn: usize,
        tables: Tables<'_, B>,
        (states, rows): (&T, usize),
    ) {
        let Self {
            normed,
            logits,
            scaling,
        } = self;
        backend.set_rows(normed, rows);
        backend.set_rows(logits, rows);
        let input = match &weights.layers[turn].wiring {
            Wiring::Eagle { .. } => backend.as_operand(states, normed),
            Wiring::Eagle3 { norm, .. } | Wiring::Nextn { norm, .. } => {
                norm.run(backend, states, normed);
                &*normed
            }
        };
        let head = weights.head.as_ref().unwrap_or(tables.head);
        backend.matmul(input, Linear::unbiased(head), logits);
        if let Some(scaling) = scaling {
            backend.scale_logits(logits, scaling);
        }
    }
}

impl<B: Backend> EagleHead<B> {
    /// Returns the head's logits for each of `sources`, `[sources, vocab]`, on the host.
    /// Columns are the head's tokens, see [`Self::target_token`]. At most
    /// [`crate::ForwardLimits::logit_block_rows`] rows are computed at a time. One block is
    /// read in place, several are collected. Roots are those of the first layer. Where layers draft
    /// in turn, `sources` are all roots or all outputs.
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
        // Hidden inputs have no logits.
        let known = Known {
            roots: self.requests,
            outputs: self.outputs,
            inputs: 0,
        };
        self.picks.sort(sources, known)?;
        backend.set_rows(&mut b.head_input, rows);
        let outputs = &b.layer.residual;
        self.picks
            .copy(backend, &b.roots[0], outputs, &mut b.head_input);
        let turn = if self.picks.has_roots() { 0 } else { self.turn };
        let output = Output {
            normed: &mut b.head_normed,
            logits: &mut b.logits,
            scaling: self.scaling,
        };
        output.compute(backend, &self.weights, turn, tables, (&b.head_input, rows));
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
