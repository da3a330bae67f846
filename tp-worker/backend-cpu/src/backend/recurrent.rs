//! Recurrent layers and output gates: shape checks around their kernels.

use lockstep_backend::{
    BackendError, ColumnGroups, DeltaOperands, GatedDelta, Mamba2, Mamba2Operands, RmsNorm,
    ShortConvolution,
};

use super::CpuBackend;
use crate::activation;
use crate::inputs::CpuInputs;
use crate::recurrent::{Call, CpuStates, Operands, group_norm, group_square_sums};
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
    pub(super) fn run_delta(
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
        let call = Call {
            pool: &mut self.pool,
            isa: self.isa,
            states,
            layer,
            inputs,
        };
        self.recurrent.delta(call, op, operands)
    }

    /// See [`lockstep_backend::Ops::mamba2`].
    pub(super) fn run_mamba2(
        &mut self,
        states: &mut CpuStates,
        layer: usize,
        op: &Mamba2<'_, CpuVector>,
        operands: Mamba2Operands<'_, CpuTensor>,
        inputs: &CpuInputs,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        let Mamba2Operands {
            projected,
            steps,
            space,
        } = operands;
        let (tokens, shape) = (inputs.tokens.len(), &op.shape);
        let (channels, values) = (shape.channels(), shape.value_width());
        let heads = shape.value_heads;
        projected.expect(tokens, channels + values, "the projections of a layer");
        steps.expect(tokens, heads, "steps");
        space.expect(tokens, channels, "space for convolutions");
        out.expect(tokens, values, "the output of heads");
        let weights = [op.convolution, op.a_log, op.dt_bias, op.skip];
        let biased = op
            .convolution_bias
            .is_none_or(|bias| bias.0.len() == channels);
        assert!(
            biased
                && weights.map(|own| own.0.len()) == [shape.taps * channels, heads, heads, heads],
            "weights of a recurrent layer have its sizes"
        );
        let operands = Operands {
            projected: projected.values(),
            gates: steps.values_mut(),
            space: space.values_mut(),
            out: out.values_mut(),
        };
        let call = Call {
            pool: &mut self.pool,
            isa: self.isa,
            states,
            layer,
            inputs,
        };
        self.recurrent.mamba2(call, op, operands)
    }

    /// See [`lockstep_backend::Ops::short_convolution`].
    pub(super) fn run_short(
        &mut self,
        states: &mut CpuStates,
        layer: usize,
        op: &ShortConvolution<'_, CpuVector>,
        projected: &CpuTensor,
        [space, out]: [&mut CpuTensor; 2],
        inputs: &CpuInputs,
    ) -> Result<(), BackendError> {
        let (tokens, channels) = (inputs.tokens.len(), op.shape.channels);
        projected.expect(tokens, 3 * channels, "the projections of a layer");
        space.expect(tokens, channels, "space for columns");
        out.expect(tokens, channels, "the output of channels");
        let biased = op.bias.is_none_or(|bias| bias.0.len() == channels);
        assert!(
            biased && op.convolution.0.len() == op.shape.taps * channels,
            "weights of a recurrent layer have its sizes"
        );
        let call = Call {
            pool: &mut self.pool,
            isa: self.isa,
            states,
            layer,
            inputs,
        };
        let (space, out) = (space.values_mut(), out.values_mut());
        self.recurrent
            .short(call, op, projected.values(), space, out)
    }

    /// See [`lockstep_backend::Ops::group_square_sums`].
    pub(super) fn sum_groups(
        &mut self,
        x: &CpuTensor,
        groups: &ColumnGroups,
        sums: &mut CpuTensor,
    ) {
        let width = x.width();
        sums.expect(x.rows(), groups.count, "sums of groups");
        let last = groups.count * groups.width;
        assert!(groups.first + width <= last, "columns lie in groups");
        let (pool, isa) = (&mut self.pool, self.isa);
        group_square_sums(pool, isa, x.values(), width, groups, sums.values_mut());
    }

    /// See [`lockstep_backend::Ops::group_norm`].
    pub(super) fn norm_groups(
        &mut self,
        x: &CpuTensor,
        groups: &ColumnGroups,
        sums: &CpuTensor,
        norm: RmsNorm<'_, CpuVector>,
        out: &mut CpuTensor,
    ) {
        let width = x.width();
        out.expect(x.rows(), width, "the normed columns");
        sums.expect(x.rows(), groups.count, "sums of groups");
        assert!(norm.weight.0.len() == width, "each column has a weight");
        let (pool, isa) = (&mut self.pool, self.isa);
        let read = [x.values(), sums.values()];
        group_norm(pool, isa, read, groups, norm, out.values_mut());
    }
}
