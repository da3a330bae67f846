//! The target's features of the last positions of every request.

use lockstep_backend::{Backend, BackendError, Holds};

use crate::blocks::allocate::Allocate;

/// The target's features of every slot's last positions, kept for a head that has not read
/// them yet.
pub struct FeatureWindow<B: Backend> {
    /// `[slots · positions, features]`: a ring for each slot.
    rows: B::Tensor,
    positions: usize,
}

impl<B: Backend> FeatureWindow<B> {
    /// Allocates a window of `positions` positions for each of `slots` slots, of `width`
    /// columns each.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        backend: &mut B,
        slots: usize,
        positions: usize,
        width: usize,
    ) -> Result<Self, BackendError> {
        Ok(Self {
            rows: rows(backend, slots, positions, width)?,
            positions,
        })
    }

    /// Number of positions kept for each slot.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Returns the row of [`Self::features`] for a position of a slot.
    pub fn row(&self, slot: usize, position: usize) -> u32 {
        (slot * self.positions + position % self.positions) as u32
    }

    /// Copies the rows `from` of `features` to the rows `to` of the window, in order.
    pub fn keep(&mut self, backend: &mut B, features: &B::Tensor, from: &[u32], to: &[u32]) {
        backend.copy_rows(features, from, &mut self.rows, to);
    }

    /// The kept features, `[slots · positions, features]`.
    pub fn features(&self) -> &B::Tensor {
        &self.rows
    }
}

/// Allocates the tensor of a window.
pub(crate) fn rows<D: Allocate>(
    device: &mut D,
    slots: usize,
    positions: usize,
    width: usize,
) -> Result<D::Tensor, BackendError> {
    device.activations(slots.saturating_mul(positions), width, Holds::Operand)
}
