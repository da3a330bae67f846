//! Hidden states of a head: fed, kept and found again.

use lockstep_backend::{Backend, Rows};

use super::EagleHead;
use crate::{
    ModelError,
    models::eagle::{HeadLayer, Wiring},
    runner::limits::fits,
};

/// Place of a hidden state in a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HiddenSource {
    /// The root that [`EagleHead::take_in`] kept for this slot; where layers draft in turn, that of
    /// the layer whose outputs are read.
    Root(u32),
    /// The output of the last pass in this row.
    Output(u32),
    /// The hidden input of the last pass in this row, which stays what it was.
    Input(u32),
}

impl<B: Backend> EagleHead<B> {
    /// Feeds the hidden inputs of the next pass, token after token: the rows `rows` of
    /// `features`, which the target's pass kept for [`Self::capture`]. The first layer reads them.
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
        let HeadLayer { fc, wiring, .. } = &self.weights.layers[0];
        match wiring {
            Wiring::Eagle { .. } | Wiring::Nextn { .. } => {
                backend.gather_rows(features, Rows::List(rows), &mut b.hidden);
            }
            Wiring::Eagle3 { feature_norms, .. } => {
                let to = b.features_for(backend, feature_norms, rows.len());
                backend.gather_rows(features, Rows::List(rows), to);
                b.norm_features(backend, feature_norms, (rows.len(), self.hidden));
                fc.run(backend, &b.features, &mut b.hidden);
            }
        }
        (self.fed, self.turn) = (rows.len(), 0);
        Ok(())
    }

    /// Feeds the hidden inputs of the next pass from `sources`, token after token. The pass is
    /// number `level` of a draft, from 1. A head with one layer runs it in each. Of layers that
    /// draft in turn, pass number `level` runs the one with that number, from 0, and reads the
    /// outputs and roots of the layer before; behind the last layer it runs that again, over its
    /// own outputs.
    ///
    /// # Errors
    /// [`ModelError::TooLarge`], [`ModelError::NoHiddenState`].
    pub fn feed_hidden(
        &mut self,
        backend: &mut B,
        level: usize,
        sources: &[HiddenSource],
    ) -> Result<(), ModelError> {
        fits("hidden states", sources.len(), self.limits.max_tokens)?;
        let last = self.layers() - 1;
        let before = level.saturating_sub(1).min(last);
        self.feed_from(backend, before, sources)?;
        (self.fed, self.turn) = (sources.len(), level.min(last));
        Ok(())
    }

    /// Makes hidden inputs from `sources`, of which roots and outputs are those of layer `before`.
    ///
    /// # Errors
    /// [`ModelError::NoHiddenState`].
    pub(super) fn feed_from(
        &mut self,
        backend: &mut B,
        before: usize,
        sources: &[HiddenSource],
    ) -> Result<(), ModelError> {
        let (b, picks) = (&mut self.buffers, &mut self.picks);
        // No root is kept of the last of several layers.
        let roots = b.roots.get(before);
        let known = Known {
            roots: roots.map_or(0, |_| self.requests),
            outputs: self.outputs,
            inputs: self.outputs,
        };
        picks.sort(sources, known)?;
        // The inputs that stay wait in a buffer that the pass fills anew.
        backend.set_rows(&mut b.embedded, sources.len());
        picks.take_inputs(backend, &b.hidden, &mut b.embedded);
        backend.set_rows(&mut b.hidden, sources.len());
        let roots = roots.unwrap_or(&b.roots[0]);
        picks.copy(backend, roots, &b.layer.residual, &mut b.hidden);
        self.go_on(backend, before, sources.len());
        let b = &mut self.buffers;
        self.picks.put_inputs(backend, &b.embedded, &mut b.hidden);
        Ok(())
    }

    /// Makes hidden inputs of the `rows` outputs of layer `turn` that lie in their buffer. A draft
    /// layer goes on from outputs behind its norm, like the target's own hidden states, and so do
    /// some EAGLE-3 heads.
    pub(super) fn go_on(&mut self, backend: &mut B, turn: usize, rows: usize) {
        let b = &mut self.buffers;
        if let Some(norm) = self.weights.layers[turn].wiring.output_norm() {
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

/// Numbers of hidden states that a head has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub roots: usize,
    pub outputs: usize,
    pub inputs: usize,
}

/// Hidden sources, sorted into roots, outputs and inputs. Each pair of lists holds the rows to
/// copy from and the rows to copy to.
pub(super) struct Picks {
    roots: [Vec<u32>; 2],
    outputs: [Vec<u32>; 2],
    inputs: [Vec<u32>; 2],
}

impl Picks {
    /// Reserves room for `most` sources.
    pub fn new(most: usize) -> Self {
        let list = || [Vec::with_capacity(most), Vec::with_capacity(most)];
        Self {
            roots: list(),
            outputs: list(),
            inputs: list(),
        }
    }

    /// Sorts `sources`, which must be `known`.
    ///
    /// # Errors
    /// [`ModelError::NoHiddenState`].
    pub fn sort(&mut self, sources: &[HiddenSource], known: Known) -> Result<(), ModelError> {
        for [from, to] in [&mut self.roots, &mut self.outputs, &mut self.inputs] {
            from.clear();
            to.clear();
        }
        for (to, source) in (0..).zip(sources) {
            let (row, lists) = match *source {
                HiddenSource::Root(slot) => {
                    root(slot, known.roots)?;
                    (slot, &mut self.roots)
                }
                HiddenSource::Output(row) => {
                    is_known("output", row, known.outputs)?;
                    (row, &mut self.outputs)
                }
                HiddenSource::Input(row) => {
                    is_known("input", row, known.inputs)?;
                    (row, &mut self.inputs)
                }
            };
            lists[0].push(row);
            lists[1].push(to);
        }
        Ok(())
    }

    /// Returns true if there are roots among the sources that were sorted last.
    pub fn has_roots(&self) -> bool {
        !self.roots[0].is_empty()
    }

    /// Copies the inputs that were sorted last from `inputs` to their places in `out`.
    pub fn take_inputs<B: Backend>(
        &self,
        backend: &mut B,
        inputs: &B::Tensor,
        out: &mut B::Tensor,
    ) {
        let [from, to] = &self.inputs;
        if !from.is_empty() {
            backend.copy_rows(inputs, from, out, to);
        }
    }

    /// Copies the inputs that [`Self::take_inputs`] took from `taken` to their places in `out`.
    pub fn put_inputs<B: Backend>(&self, backend: &mut B, taken: &B::Tensor, out: &mut B::Tensor) {
        let [_, to] = &self.inputs;
        if !to.is_empty() {
            backend.copy_rows(taken, to, out, to);
        }
    }

    /// Copies the roots and outputs that were sorted last to `out`, in their order.
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
    is_known("root", slot, requests)
}

fn is_known(what: &'static str, index: u32, count: usize) -> Result<(), ModelError> {
    if (index as usize) < count {
        return Ok(());
    }
    Err(ModelError::NoHiddenState { what, index, count })
}
