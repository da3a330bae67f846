//! Recurrent layers and output gates: shape checks around their kernels.

use lockstep_backend::{BackendError, DeltaOperands, GatedDelta};

use super::CpuBackend;
use crate::activation;
use crate::delta::{CpuStates, Operands};
use crate::inputs::CpuInputs;
use crate::tensor::{CpuTensor, CpuVector};

impl CpuBackend {
    /// See [`lockstep_backend::Ops::sigmoid_gate`].
    pub(super) fn gate_output(&mut self, gate: &CpuTensor, out: &mut CpuTensor) {
        let (columns, width) = (gate.width(), out.width());
        let whole = if columns == 1 { 1 } else { width };
        gate.expect(out.rows(), whole, "the output gate");
        let (pool, isa, gate) = (&mut self.pool, self.isa, gate.values());
        activation::sigmoid_gate(pool, isa, gate, columns, width, out.values_mut());
    }

    /// See [`lockstep_backend::Ops::gated_delta`].
    pub(super) fn recur(
        &mut self,
        states: &mut CpuStates,
        layer: usize,
        op: &GatedDelta<'_, CpuVector>,
        operands: DeltaOperands<'_, CpuTensor>,
        inputs: &CpuInputs,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        let DeltaOperands {
            projected,
            gates,
            space,
        } = operands;
        let (tokens, shape) = (inputs.tokens.len(), &op.shape);
        let (channels, values) = (shape.channels(), shape.value_width());
        projected.expect(tokens, channels + values, "the projections of a layer");
        gates.expect(tokens, 2 * shape.value_heads, "strengths and decays");
        space.expect(tokens, channels, "space for convolutions");
        out.expect(tokens, values, "the output of heads");
        let weights = [op.convolution, op.a_log, op.dt_bias, op.norm];
        let heads = shape.value_heads;
        assert!(
            weights.map(|weights| weights.0.len())
                == [shape.taps * channels, heads, heads, shape.value_dim],
            "weights of a recurrent layer have its sizes"
        );
        let operands = Operands {
            projected: projected.values(),
            gates: gates.values_mut(),
            space: space.values_mut(),
            out: out.values_mut(),
        };
        let (pool, isa) = (&mut self.pool, self.isa);
        self.delta
            .run(pool, isa, states, layer, op, operands, inputs)
    }
}
