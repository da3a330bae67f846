//! Hidden states of a head: fed, kept and found again.

use lockstep_backend::{Backend, Rows};

use super::EagleHead;
use crate::{ModelError, models::eagle::Wiring, runner::limits::fits};

/// Place of a hidden state in a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HiddenSource {
    /// The root that [`EagleHead::take_in`] kept for this slot.
    Root(u32),
    /// The output of the last pass in this row.
    Output(u32),
}

impl<B: Backend> EagleHead<B> {
    /// Feeds the hidden inputs of the next pass, token after token: the rows `rows` of
    /// `features`, which the target's pass kept for [`Self::capture`].
    ///
    /// # Errors
    /// [`ModelError::TooLarge`].
    ///
    /// # Panics
    /// Devices panic when `features` has another width or too few rows.
    pub fn feed_features(
        &mut self,
        backend: &mut B,
        features: &B::Tensor,
        rows: &[u32],
    ) -> Result<(), ModelError> {
        fits("hidden states", rows.len(), self.limits.max_tokens)?;
        let b = &mut self.buffers;
        backend.set_rows(&mut b.hidden, rows.len());
        match &self.weights.wiring {
            Wiring::Eagle { .. } | Wiring::Nextn { .. } => {
                backend.gather_rows(features, Rows::List(rows), &mut b.hidden);
            }
            Wiring::Eagle3 { feature_norms, .. } => {
                let to = b.features_for(backend, feature_norms, rows.len());
                backend.gather_rows(features, Rows::List(rows), to);
                b.norm_features(backend, feature_norms, (rows.len(), self.hidden));
                self.weights.fc.run(backend, &b.features, &mut b.hidden);
            }
        }
        self.fed = rows.len();
        Ok(())
    }

    /// Feeds the hidden inputs of the next pass from `sources`, token after token.
    ///
    /// # Errors
    /// [`ModelError::TooLarge`], [`ModelError::NoHiddenState`].
    pub fn feed_hidden(
        &mut self,
        backend: &mut B,
        sources: &[HiddenSource],
    ) -> Result<(), ModelError> {
        fits("hidden states", sources.len(), self.limits.max_tokens)?;
        let b = &mut self.buffers;
        self.picks.sort(sources, self.requests, self.outputs)?;
        backend.set_rows(&mut b.hidden, sources.len());
        let outputs = &b.layer.residual;
        self.picks.copy(backend, &b.roots, outputs, &mut b.hidden);
        self.go_on(backend, sources.len());
        self.fed = sources.len();
        Ok(())
    }

    /// Makes hidden inputs of the `rows` outputs of the head that lie in their buffer. A draft
    /// layer goes on from outputs behind its norm, like the target's own hidden states, and so do
    /// some EAGLE-3 heads.
    pub(super) fn go_on(&mut self, backend: &mut B, rows: usize) {
        let b = &mut self.buffers;
        if let Some(norm) = self.weights.wiring.output_norm() {
            backend.set_rows(&mut b.layer.normed, rows);
            norm.run(backend, &b.hidden, &mut b.layer.normed);
            backend.place_columns(&b.layer.normed, &mut b.hidden, 0);
        }
    }

    /// Checks that `roots` outputs can become the roots of `slots`.
    ///
    /// # Errors
    /// [`ModelError::NoHiddenState`] for a slot that the head lacks. [`ModelError::TooLarge`]
    /// when there are not as many slots as roots, or more than the head has.
    pub(super) fn check_roots(&self, roots: usize, slots: &[u32]) -> Result<(), ModelError> {
        fits("roots", roots, slots.len().min(self.requests))?;
        fits("slots of roots", slots.len(), roots)?;
        slots.iter().try_for_each(|slot| root(*slot, self.requests))
    }
}

/// Hidden sources, sorted into roots and outputs. Each pair of lists holds the rows to copy
/// from and the rows to copy to.
pub(super) struct Picks {
    roots: [Vec<u32>; 2],
    outputs: [Vec<u32>; 2],
}

impl Picks {
    /// Reserves room for `most` sources.
    pub fn new(most: usize) -> Self {
        let list = || [Vec::with_capacity(most), Vec::with_capacity(most)];
        Self {
            roots: list(),
            outputs: list(),
        }
    }

    /// Sorts `sources` into roots and outputs.
    ///
    /// # Errors
    /// [`ModelError::NoHiddenState`].
    pub fn sort(
        &mut self,
        sources: &[HiddenSource],
        requests: usize,
        outputs: usize,
    ) -> Result<(), ModelError> {
        let Self {
            roots: [root_from, root_to],
            outputs: [output_from, output_to],
        } = self;
        for list in [
            &mut *root_from,
            &mut *root_to,
            &mut *output_from,
            &mut *output_to,
        ] {
            list.clear();
        }
        for (to, source) in (0..).zip(sources) {
            let (from, lists) = match *source {
                HiddenSource::Root(slot) => {
                    root(slot, requests)?;
                    (slot, (&mut *root_from, &mut *root_to))
                }
                HiddenSource::Output(row) => {
                    output(row, outputs)?;
                    (row, (&mut *output_from, &mut *output_to))
                }
            };
            lists.0.push(from);
            lists.1.push(to);
        }
        Ok(())
    }

    /// Copies the sources that were sorted last to `out`, in their order.
    pub fn copy<B: Backend>(
        &self,
        backend: &mut B,
        roots: &B::Tensor,
        outputs: &B::Tensor,
        out: &mut B::Tensor,
    ) {
        for ([from, to], x) in [(&self.roots, roots), (&self.outputs, outputs)] {
            if !from.is_empty() {
                backend.copy_rows(x, from, out, to);
            }
        }
    }
}

fn root(slot: u32, requests: usize) -> Result<(), ModelError> {
    known("root", slot, requests)
}

fn output(row: u32, outputs: usize) -> Result<(), ModelError> {
    known("output", row, outputs)
}

fn known(what: &'static str, index: u32, count: usize) -> Result<(), ModelError> {
    if (index as usize) < count {
        return Ok(());
    }
    Err(ModelError::NoHiddenState { what, index, count })
}
