//! Exchanges between ranks on CPU cores.

use lockstep_backend::{Axis, BackendError, BlockEnd, Exchange, Owners, RowParallel, Scatter};
use lockstep_collective::Collective;

use super::CpuBackend;
use crate::formats::CpuMatrix;
use crate::tensor::{CpuTensor, CpuVector};

impl Exchange for CpuBackend {
    fn group(&self, axis: Axis) -> (usize, usize) {
        self.collectives.rank_and_size(axis)
    }
    fn all_reduce(&mut self, axis: Axis, x: &mut CpuTensor) -> Result<(), BackendError> {
        self.collectives.all_reduce(axis, x.values_mut())
    }
    fn matmul_end_block(
        &mut self,
        x: &CpuTensor,
        w: RowParallel<'_, CpuMatrix, CpuVector>,
        residual: &mut CpuTensor,
        delta: &mut CpuTensor,
        end: BlockEnd<'_, CpuVector>,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        self.fused_sum(x, w, residual, delta, end, out)
    }
    fn matmul_scatter_end_block(
        &mut self,
        x: &CpuTensor,
        w: RowParallel<'_, CpuMatrix, CpuVector>,
        scatter: Scatter<'_, CpuTensor>,
        residual: &mut CpuTensor,
        end: BlockEnd<'_, CpuVector>,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        self.fused_scatter(x, w, scatter, residual, end, out)
    }
    fn scatter_end_block(
        &mut self,
        axis: Axis,
        scatter: Scatter<'_, CpuTensor>,
        residual: &mut CpuTensor,
        end: BlockEnd<'_, CpuVector>,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        self.scatter_sum(axis, scatter, residual, end, out)
    }
    fn all_gather_rows(
        &mut self,
        axis: Axis,
        x: &CpuTensor,
        first: usize,
        counts: &[usize],
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        self.collectives.all_gather(axis, x, first, counts, out)
    }
    fn gather_to_host<'a>(
        &mut self,
        axis: Axis,
        x: &'a CpuTensor,
        owners: Owners<'_>,
        space: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], BackendError> {
        let (rank, size) = self.group(axis);
        assert!(owners.widths.len() == size, "one width per rank");
        assert!(
            owners.widths[rank] == x.width(),
            "rank {rank}'s width is its own"
        );
        self.collectives
            .gather(axis, &mut self.pool, x, owners, space)
    }
    fn control(&mut self, axis: Axis) -> &mut dyn Collective {
        self.collectives.of(axis)
    }
    fn words_ride_on_data(&self) -> bool {
        true
    }
}
