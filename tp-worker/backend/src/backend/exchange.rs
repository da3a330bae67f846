//! Exchange between ranks.

use lockstep_collective::{Collective, Owners};

use crate::{Axis, BackendError, BlockEnd, ExchangeNotes, Ops, RowParallel, Scatter, composed};

/// Exchange of data and of words between ranks.
pub trait Exchange: Ops {
    /// [`Ops::end_block`] with `delta = Σ over ranks of (x · wᵀ + bias)`, added in rank order. A
    /// row-parallel projection ends so, with the one all-reduce that it needs. The bits are
    /// those of the operations one by one. `delta`, of the residual's shape, is space; its
    /// content afterwards is unspecified.
    ///
    /// # Errors
    /// [`BackendError::Collective`] if a peer is gone or out of step.
    fn matmul_end_block(
        &mut self,
        x: &Self::Tensor,
        w: RowParallel<'_, Self::Matrix, Self::Vector>,
        residual: &mut Self::Tensor,
        delta: &mut Self::Tensor,
        end: BlockEnd<'_, Self::Vector>,
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError> {
        composed::matmul_end_block(self, x, w, residual, delta, end, out)
    }
    /// [`Self::matmul_end_block`] in which every rank takes only rows of its own of the sum,
    /// with the same bits. `residual` and `out` have as many rows as the rank takes.
    ///
    /// # Errors
    /// [`BackendError::Collective`] if a peer is gone or out of step.
    fn matmul_scatter_end_block(
        &mut self,
        x: &Self::Tensor,
        w: RowParallel<'_, Self::Matrix, Self::Vector>,
        scatter: Scatter<'_, Self::Tensor>,
        residual: &mut Self::Tensor,
        end: BlockEnd<'_, Self::Vector>,
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError> {
        self.matmul(x, w.part, scatter.product);
        self.scatter_end_block(w.axis, scatter, residual, end, out)
    }
    /// The end of [`Self::matmul_scatter_end_block`], with a product that is there: every rank
    /// ends the block with its rows of `Σ over ranks of product`.
    ///
    /// # Errors
    /// [`BackendError::Collective`] if a peer is gone or out of step.
    fn scatter_end_block(
        &mut self,
        axis: Axis,
        scatter: Scatter<'_, Self::Tensor>,
        residual: &mut Self::Tensor,
        end: BlockEnd<'_, Self::Vector>,
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError>;
    /// Returns this rank's number in the group of `axis`, and the group's size.
    fn group(&self, axis: Axis) -> (usize, usize);
    /// Returns true if this rank is the first of the group.
    fn leads(&self, axis: Axis) -> bool {
        self.group(axis).0 == 0
    }
    /// Sums over the ranks of `axis`, in rank order.
    ///
    /// # Errors
    /// [`BackendError::Collective`] if a peer is gone or out of step.
    fn all_reduce(&mut self, axis: Axis, x: &mut Self::Tensor) -> Result<(), BackendError>;
    /// Sets `out` to rows of all ranks of `axis`, in rank order. Rank `r` brings `counts[r]`
    /// rows of its `x`; this rank brings its rows from `first` on. `counts` is equal on all
    /// ranks, and `out` has `counts.sum()` rows.
    ///
    /// # Errors
    /// [`BackendError::Collective`] if a peer is gone or out of step.
    fn all_gather_rows(
        &mut self,
        axis: Axis,
        x: &Self::Tensor,
        first: usize,
        counts: &[usize],
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError>;
    /// Returns the operations that exchange notes, if notes travel with passes.
    fn notes(&mut self) -> Option<&mut dyn ExchangeNotes> {
        None
    }
    /// Waits for the device, and brings rows of `x` `[n, width]` of every rank of `axis` to the
    /// hosts of their owners. Returns `[own rows, Σ widths]`, columns in rank order; nothing on
    /// a rank that owns no rows. The result lies in `space`, which grows as needed, or in `x`
    /// itself if the host can read it.
    ///
    /// # Errors
    /// [`BackendError::Collective`] if a peer is gone or out of step.
    fn gather_to_host<'a>(
        &mut self,
        axis: Axis,
        x: &'a Self::Tensor,
        owners: Owners<'_>,
        space: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], BackendError>;
    /// Returns the collectives of the hosts of `axis`, in which ranks exchange words.
    fn control(&mut self, axis: Axis) -> &mut dyn Collective;
    /// Returns true if data takes the same group, along with attached words. Otherwise ranks
    /// that differ may wait for ever, so ranks agree by words before a pass.
    fn words_ride_on_data(&self) -> bool {
        false
    }
}
