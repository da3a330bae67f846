//! Recurrent layers and norms over groups of columns: shape checks around their kernels.

use std::sync::Arc;

use lockstep_backend::{
    ColumnGroups, DeltaOperands, GatedDelta, Mamba2, Mamba2Operands, RmsNorm, ShortConvolution,
};

use super::CudaBackend;
use crate::error::CudaError;
use crate::ops::{CudaStates, GroupOps, HeadOps, HeadTensors, HeadWeights, ShortOps, StateCopies};
use crate::passes::Inputs;
use crate::runtime::Buffer;
use crate::tensors::{CudaTensor, Rows};

/// Kernels of recurrent layers, each compiled when it is first asked for.
#[derive(Default)]
pub(super) struct RecurrentKernels {
    /// For each rule and shape of heads.
    heads: Vec<Arc<HeadOps>>,
    /// For each number of taps.
    shorts: Vec<Arc<ShortOps>>,
    groups: Option<Arc<GroupOps>>,
    copies: Option<Arc<StateCopies>>,
}

/// States of recurrent layers of one rule, and the number of a layer among these.
type Layer<'a> = (&'a mut CudaStates, usize);

impl CudaBackend {
    /// Returns the kernels for matrices of heads by the rule of `weights`.
    fn head_ops(&mut self, weights: &HeadWeights<'_>) -> Result<Arc<HeadOps>, CudaError> {
        let (rule, shape) = weights.rule();
        let mut made = self.recurrent.heads.iter();
        if let Some(made) = made.find(|made| made.serve(rule, shape)) {
            return Ok(made.clone());
        }
        let (context, compiler) = (self.stream.context(), &self.compiler);
        let made = HeadOps::new(context, compiler, (rule, shape), self.operand)?;
        let made = Arc::new(made);
        self.recurrent.heads.push(made.clone());
        Ok(made)
    }

    /// Returns the kernels for short convolutions of `taps` taps.
    fn short_ops(&mut self, taps: usize) -> Result<Arc<ShortOps>, CudaError> {
        let mut made = self.recurrent.shorts.iter();
        if let Some(made) = made.find(|made| made.taps() == taps) {
            return Ok(made.clone());
        }
        let (context, compiler) = (self.stream.context(), &self.compiler);
        let made = Arc::new(ShortOps::new(context, compiler, taps, self.operand)?);
        self.recurrent.shorts.push(made.clone());
        Ok(made)
    }

    /// Returns the kernels of norms over groups.
    fn group_ops(&mut self) -> Result<Arc<GroupOps>, CudaError> {
        if let Some(made) = &self.recurrent.groups {
            return Ok(made.clone());
        }
        let (context, compiler) = (self.stream.context(), &self.compiler);
        let made = Arc::new(GroupOps::new(context, compiler, self.operand)?);
        Ok(self.recurrent.groups.insert(made).clone())
    }

    /// Returns the kernels that copy states.
    fn state_copies(&mut self) -> Result<Arc<StateCopies>, CudaError> {
        if let Some(made) = &self.recurrent.copies {
            return Ok(made.clone());
        }
        let made = Arc::new(StateCopies::new(self.stream.context(), &self.compiler)?);
        Ok(self.recurrent.copies.insert(made).clone())
    }

    /// See [`lockstep_backend::Ops::gated_delta`].
    pub(super) fn run_delta(
        &mut self,
        layer: Layer<'_>,
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
        let heads = op.shape.value_heads;
        gates.expect(inputs.tokens().most(), 2 * heads, "strengths and decays");
        let weights = HeadWeights::Delta(op);
        self.run_heads(layer, weights, projected, [gates, space, out], inputs)
    }

    /// See [`lockstep_backend::Ops::mamba2`].
    pub(super) fn run_mamba2(
        &mut self,
        layer: Layer<'_>,
        op: &Mamba2<'_, Buffer<f32>>,
        operands: Mamba2Operands<'_, CudaTensor>,
        inputs: &Inputs,
        out: &mut CudaTensor,
    ) -> Result<(), CudaError> {
        let Mamba2Operands {
            projected,
            steps,
            space,
        } = operands;
        let heads = op.shape.value_heads;
        steps.expect(inputs.tokens().most(), heads, "steps");
        let weights = HeadWeights::Mamba2(op);
        self.run_heads(layer, weights, projected, [steps, space, out], inputs)
    }

    /// Runs a layer with matrices of heads.
    fn run_heads(
        &mut self,
        layer: Layer<'_>,
        weights: HeadWeights<'_>,
        projected: &CudaTensor,
        [gates, space, out]: [&mut CudaTensor; 3],
        inputs: &Inputs,
    ) -> Result<(), CudaError> {
        let (tokens, (_, shape)) = (inputs.tokens().most(), weights.rule());
        let (channels, values) = (shape.channels(), shape.value_width());
        projected.expect(tokens, channels + values, "the projections of a layer");
        space.expect(tokens, channels, "space for convolutions");
        out.expect(tokens, values, "the output of heads");
        let kernels = self.head_ops(&weights)?;
        self.note_tokens(inputs);
        let tensors = HeadTensors {
            projected: &projected.floats,
            gates: &mut gates.floats,
            space: &mut space.floats,
            out: &mut out.floats,
        };
        kernels.run(&self.stream, layer, weights, &tensors, inputs)
    }

    /// See [`lockstep_backend::Ops::short_convolution`].
    pub(super) fn run_short(
        &mut self,
        layer: Layer<'_>,
        op: &ShortConvolution<'_, Buffer<f32>>,
        projected: &CudaTensor,
        inputs: &Inputs,
        out: &mut CudaTensor,
    ) -> Result<(), CudaError> {
        let (tokens, channels) = (inputs.tokens().most(), op.shape.channels);
        projected.expect(tokens, 3 * channels, "the projections of a layer");
        out.expect(tokens, channels, "the output of channels");
        let kernels = self.short_ops(op.shape.taps)?;
        self.note_tokens(inputs);
        let (projected, out) = (&projected.floats, &mut out.floats);
        kernels.run(&self.stream, layer, op, projected, out, inputs)
    }

    /// Notes the batch's own tokens: rows behind them mean nothing to the rest of the layer.
    fn note_tokens(&mut self, inputs: &Inputs) {
        self.attended = Some(inputs.tokens().parameter());
    }

    /// See [`lockstep_backend::Ops::group_square_sums`].
    pub(super) fn sum_groups(
        &mut self,
        x: &CudaTensor,
        groups: &ColumnGroups,
        sums: &mut CudaTensor,
    ) -> Result<(), CudaError> {
        let (kernels, rows) = (self.group_ops()?, x.rows());
        sums.expect(rows, groups.count, "sums of groups");
        let x = (&x.floats, x.width());
        let (rows, sums) = (self.chains.rows(rows), &mut sums.floats);
        kernels.squares(&self.stream, x, groups, rows, sums)
    }

    /// See [`lockstep_backend::Ops::group_norm`].
    pub(super) fn norm_groups(
        &mut self,
        [x, sums]: [&CudaTensor; 2],
        groups: &ColumnGroups,
        norm: RmsNorm<'_, Buffer<f32>>,
        out: &mut CudaTensor,
    ) -> Result<(), CudaError> {
        let (kernels, rows, columns) = (self.group_ops()?, x.rows(), norm.weight.len());
        x.expect(rows, columns, "columns of groups");
        sums.expect(rows, groups.count, "sums of groups");
        out.expect(rows, columns, "the normed columns");
        let both = [&x.floats, &sums.floats];
        let (rows, out) = (self.chains.rows(rows), &mut out.floats);
        kernels.norm(&self.stream, both, groups, norm, rows, out)
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
        let kernels = self.state_copies()?;
        let list = self.lists.bring(&self.stream, 2 * moves.len(), |words| {
            let pairs = words.as_chunks_mut::<2>().0.iter_mut();
            let all = pairs.zip(moves);
            all.for_each(|(pair, (from, to))| *pair = [*from, *to]);
        })?;
        kernels.run(&self.stream, states, list, Rows::fixed(moves.len()))
    }
}
