//! Hidden states that passes keep for a drafter.

use lockstep_backend::{Backend, BackendError, Holds};

use super::Transformer;
use crate::{CaptureSpec, Exit, ModelError};

/// Hidden states that passes keep, and their layout.
pub(super) struct Capture<B: Backend> {
    spec: CaptureSpec,
    /// Kept states, `[n, width]`.
    features: B::Tensor,
    hidden: usize,
}

impl<B: Backend> Transformer<B> {
    /// Makes passes keep the states of `spec` from now on, in memory allocated here. An empty
    /// `spec` keeps nothing. Ranks may differ in layers, but must agree on the last hidden
    /// state, which takes collectives over every token.
    ///
    /// # Errors
    /// [`ModelError::NoSuchLayer`]; [`ModelError::Backend`] when memory is short.
    pub fn set_capture(&mut self, backend: &mut B, spec: CaptureSpec) -> Result<(), ModelError> {
        let layers = self.weights.layers.len();
        if let Some(&layer) = spec.layers.iter().find(|layer| **layer >= layers) {
            return Err(ModelError::NoSuchLayer { layer, layers });
        }
        self.capture = match spec.is_empty() {
            true => None,
            false => Some(Capture::new(
                backend,
                spec,
                self.limits.max_tokens,
                self.model.hidden_size,
            )?),
        };
        self.passes = self.fresh_passes(backend);
        Ok(())
    }

    /// States that the last pass kept, `[tokens of the pass, width of the capture]`, in batch
    /// order; no rows if the pass failed. `None` if nothing is kept. All ranks have the same
    /// bits.
    pub fn features(&self) -> Option<&B::Tensor> {
        self.capture.as_ref().map(|capture| &capture.features)
    }

    /// Returns the end of this model's passes.
    pub(super) fn exit(&self) -> Exit {
        let capture = self.capture.as_ref();
        capture.map_or(Exit::Logits, |capture| capture.spec.exit())
    }
}

impl<B: Backend> Capture<B> {
    fn new(
        backend: &mut B,
        spec: CaptureSpec,
        tokens: usize,
        hidden: usize,
    ) -> Result<Self, BackendError> {
        let mut features = backend.tensor(tokens, spec.width(hidden), Holds::Operand)?;
        backend.set_rows(&mut features, 0);
        Ok(Self {
            spec,
            features,
            hidden,
        })
    }

    /// States that the last pass kept.
    pub fn features(&self) -> &B::Tensor {
        &self.features
    }

    /// Begins a pass over `rows` tokens.
    pub fn begin(&mut self, backend: &mut B, rows: usize) {
        backend.set_rows(&mut self.features, rows);
    }

    /// Keeps the input of layer `number` if it is wanted.
    pub fn layer_input(&mut self, backend: &mut B, number: usize, residual: &B::Tensor) {
        for (place, _) in (0..).zip(&self.spec.layers).filter(|(_, l)| **l == number) {
            backend.place_columns(residual, &mut self.features, place * self.hidden);
        }
    }

    /// Keeps the normed output of the last layer if it is wanted.
    pub fn last_hidden(&mut self, backend: &mut B, normed: &B::Tensor) {
        if self.spec.last_hidden {
            let first = self.spec.layers.len() * self.hidden;
            backend.place_columns(normed, &mut self.features, first);
        }
    }
}
