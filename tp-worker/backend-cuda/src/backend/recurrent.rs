//! Recurrent layers and output gates: shape checks around their kernels.

use std::sync::Arc;

use lockstep_backend::{DeltaOperands, DeltaShape, GatedDelta};

use super::CudaBackend;
use crate::error::CudaError;
use crate::ops::{CudaStates, DeltaOps, DeltaTensors};
use crate::passes::Inputs;
use crate::runtime::Buffer;
use crate::tensors::{CudaTensor, Rows};

impl CudaBackend {
    /// Returns the kernels for recurrent layers of `shape`. The first call compiles them.
    fn delta_ops(&mut self, shape: &DeltaShape) -> Result<Arc<DeltaOps>, CudaError> {
        if let Some(made) = self.deltas.iter().find(|made| made.shape() == shape) {
            return Ok(made.clone());
        }
        let (context, compiler) = (self.stream.context(), &self.compiler);
        let made = Arc::new(DeltaOps::new(context, compiler, shape, self.operand)?);
        self.deltas.push(made.clone());
        Ok(made)
    }

    /// See [`lockstep_backend::Ops::gated_delta`].
    pub(super) fn recur(
        &mut self,
        states: &mut CudaStates,
        layer: usize,
        op: &GatedDelta<'_, Buffer<f32>>,
        operands: DeltaOperands<'_, CudaTensor>,
        inputs: &Inputs,
        out: &mut CudaTensor,
    ) -> Result<(), CudaError> {
        let DeltaOperands {
            projected,
            gates,
            space,
        } = operands;
        let (tokens, shape) = (inputs.tokens().most(), &op.shape);
        let (channels, values) = (shape.channels(), shape.value_width());
        projected.expect(tokens, channels + values, "the projections of a layer");
        gates.expect(tokens, 2 * shape.value_heads, "strengths and decays");
        space.expect(tokens, channels, "space for convolutions");
        out.expect(tokens, values, "the output of heads");
        let kernels = self.delta_ops(shape)?;
        // Rows behind the batch's own tokens mean nothing to the rest of the layer.
        self.attended = Some(inputs.tokens().parameter());
        let tensors = DeltaTensors {
            projected: &projected.floats,
            gates: &mut gates.floats,
            space: &mut space.floats,
            out: &mut out.floats,
        };
        kernels.run(&self.stream, (states, layer), op, &tensors, inputs)
    }

    /// See [`lockstep_backend::Ops::copy_states`].
    pub(super) fn move_states(
        &mut self,
        states: &mut CudaStates,
        moves: &[(u32, u32)],
    ) -> Result<(), CudaError> {
        if moves.is_empty() {
            return Ok(());
        }
        let kernels = self.delta_ops(states.heads())?;
        let list = self.lists.bring(&self.stream, 2 * moves.len(), |words| {
            let pairs = words.as_chunks_mut::<2>().0.iter_mut();
            let all = pairs.zip(moves);
            all.for_each(|(pair, (from, to))| *pair = [*from, *to]);
        })?;
        kernels.copy_states(&self.stream, states, list, Rows::fixed(moves.len()))
    }
}
