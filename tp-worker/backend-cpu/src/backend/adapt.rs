//! Adapters on CPU cores.

use lockstep_backend::{Adapt, AdaptedLinear, BackendError, HostMatrix, NO_ADAPTER};

use super::CpuBackend;
use crate::adapters::{self, Space};
use crate::formats::CpuMatrix;
use crate::inputs::CpuInputs;
use crate::tensor::CpuTensor;

impl Adapt for CpuBackend {
    fn serves_adapters() -> Result<(), &'static str> {
        Ok(())
    }
    fn replace_matrix(
        &mut self,
        matrix: &mut CpuMatrix,
        with: &HostMatrix<'_>,
    ) -> Result<(), BackendError> {
        matrix.replace(&mut self.pool, self.isa, with)
    }
    fn adapter_places(
        &mut self,
        inputs: &CpuInputs,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        out.expect(inputs.tokens.len(), 1, "the places of adapters");
        let out = out.values_mut();
        out.fill(NO_ADAPTER);
        for (row, place) in inputs.rows.iter().zip(&inputs.adapters) {
            if let Some(place) = place {
                out[row.start as usize..][..row.q_len as usize].fill(f32::from(*place));
            }
        }
        Ok(())
    }
    fn add_adapters(
        &mut self,
        x: &CpuTensor,
        adapters: &AdaptedLinear<CpuMatrix>,
        places: &CpuTensor,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        let AdaptedLinear { down, rank, parts } = adapters;
        let Some(first) = down.first() else {
            return Ok(());
        };
        let alike = |matrices: &[CpuMatrix], rows, cols| {
            let shape = |matrix: &CpuMatrix| (matrix.rows, matrix.cols) == (rows, cols);
            matrices.len() == down.len() && matrices.iter().all(shape)
        };
        assert!(
            alike(down, parts.len() * rank, first.cols),
            "adapters of a projection have one shape"
        );
        for part in parts {
            assert!(
                alike(&part.up, part.outputs.len(), *rank)
                    && part.scales.len() == down.len()
                    && part.outputs.end <= out.width(),
                "each adapter has a part of the projection's outputs"
            );
        }
        places.expect(out.rows(), 1, "the places of adapters");
        x.expect(out.rows(), first.cols, "the adapters' input");
        let most = places.values().iter().copied().fold(NO_ADAPTER, f32::max);
        assert!(
            most < down.len() as f32,
            "there is an adapter at each place"
        );
        let space = Space {
            packed: &mut self.packed,
            lists: &mut self.routing,
            values: &mut self.adapted,
        };
        let (pool, places) = (&mut self.pool, places.values());
        adapters::add(
            pool,
            self.isa,
            x.values(),
            adapters,
            places,
            space,
            out.values_mut(),
        )
    }
}
