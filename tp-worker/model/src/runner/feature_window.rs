//! The target's features of the last positions of every request.

use lockstep_backend::{Backend, BackendError, Holds};

use crate::blocks::allocate::Allocate;

/// Features that no head has read yet, for a head that reads them later: of
/// every slot, those of its last positions.
pub struct FeatureWindow<B: Backend> {
    /// `[slots · positions, features]`: a ring for each slot.
    rows: B::Tensor,
    positions: usize,
}

impl<B: Backend> FeatureWindow<B> {
    /// Of `positions` positions for each of `slots`, `width` columns each.
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

    /// How many positions of a slot it holds.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// The row of [`Self::features`] for a slot's position.
    pub fn row(&self, slot: usize, position: usize) -> u32 {
        (slot * self.positions + position % self.positions) as u32
    }

    /// Copies the rows `from` of `features` to the rows `to`, one after the other.
    pub fn keep(&mut self, backend: &mut B, features: &B::Tensor, from: &[u32], to: &[u32]) {
        backend.copy_rows(features, from, &mut self.rows, to);
    }

    /// What is kept, `[slots · positions, features]`.
    pub fn features(&self) -> &B::Tensor {
        &self.rows
    }
}

/// The tensor of a window.
pub(crate) fn rows<D: Allocate>(
    device: &mut D,
    slots: usize,
    positions: usize,
    width: usize,
) -> Result<D::Tensor, BackendError> {
    device.activations(slots.saturating_mul(positions), width, Holds::Operand)
}
