//! The boundary between a layer's mixer and its MLP: the residual stream, and rows that go to
//! all DP ranks and back.

use lockstep_backend::{Backend, BackendError, Holds};

use super::allocate::Allocate;
use crate::split::crossing::Crossing;

/// The residual stream that an MLP reads and writes.
pub(crate) struct MlpOperands<'a, T> {
    /// The residual stream, `[n, hidden]`.
    pub residual: &'a mut T,
    /// Room for the MLP's sum, `[n, hidden]`.
    pub delta: &'a mut T,
    /// The normed residual stream, before the MLP and behind it, `[n, hidden]`.
    pub normed: &'a mut T,
    /// Places of the adapters of the rows that the MLP runs over, `[n, 1]` or `[a, 1]`; `None` if
    /// no row of the pass has an adapter.
    pub places: Option<&'a T>,
    pub boundary: Boundary<'a, T>,
}

/// Rows at the boundary between a layer's mixer and its MLP.
pub(crate) enum Boundary<'a, T> {
    /// Mixer and MLP run over the same rows.
    SameRows,
    /// The MLP runs over the rows of all DP ranks. The rows are gathered before the MLP, and
    /// each DP rank takes its own rows of the sum behind it.
    AllRows {
        crossing: &'a Crossing,
        rows: &'a mut AllRows<T>,
    },
}

/// Input and output of an MLP that runs over the rows of all DP ranks. `a` is their number.
pub(crate) struct AllRows<T> {
    /// Normed residuals of all DP ranks, `[a, hidden]`.
    pub gathered: T,
    /// This rank's part of the sum that is added to the residuals, `[a, hidden]`.
    pub product: T,
}

impl<T> AllRows<T> {
    /// Allocates buffers for passes of at most `rows` rows of all DP ranks.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        device: &mut impl Allocate<Tensor = T>,
        rows: usize,
        hidden: usize,
    ) -> Result<Self, BackendError> {
        Ok(Self {
            gathered: device.activations(rows, hidden, Holds::Operand)?,
            product: device.activations(rows, hidden, Holds::Sum)?,
        })
    }

    /// Sets the row count of both buffers.
    pub fn set_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        backend.set_rows(&mut self.gathered, rows);
        backend.set_rows(&mut self.product, rows);
    }
}

impl<'a, T> Boundary<'a, T> {
    /// Returns the boundary of a pass whose rows cross as `crossing` says, if they do.
    pub fn new(crossing: Option<&'a Crossing>, rows: &'a mut Option<AllRows<T>>) -> Self {
        match (crossing, rows) {
            (Some(crossing), Some(rows)) => Self::AllRows { crossing, rows },
            _ => Self::SameRows,
        }
    }
}
