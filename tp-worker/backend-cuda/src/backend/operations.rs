//! Operations of a transformer for [`CudaBackend`], and its exchange with other ranks.

use std::ops::Range;

use lockstep_backend::{
    Adapt, Attend, AttentionShape, Axis, BackendError, BlockEnd, ColumnGroups, CountedKeys,
    DeltaOperands, Exchange, ExchangeNotes, ExpertSpace, Experts, GatedDelta, LatentSpace, Linear,
    LogitScaling, Mamba2, Mamba2Operands, Ops, Owners, RmsNorm, RowParallel, Rows as Gathered,
    Scatter, ShortConvolution, WholeNorms,
};
use lockstep_collective::Collective;
use lockstep_types::{Activation, Dtype};

use super::CudaBackend;
use super::attend::{Heads, beside_of, norms_of};
use crate::ops::{Beside, CudaStates, HeadNorms, LatentOp, PagedCache, Rope};
use crate::passes::Inputs;
use crate::runtime::Buffer;
use crate::tensors::{CudaMatrix, CudaTensor};

impl Ops for CudaBackend {
    fn operand(&self) -> Dtype {
        self.operand.dtype()
    }
    fn as_operand<'a>(&mut self, x: &'a CudaTensor, space: &'a mut CudaTensor) -> &'a CudaTensor {
        if x.element() == self.operand {
            return x;
        }
        let done = self.cast(x, space);
        self.keep(done);
        space
    }
    fn embed(
        &mut self,
        table: &CudaMatrix,
        first: u32,
        scale: f32,
        inputs: &Inputs,
        out: &mut CudaTensor,
    ) {
        let width = table.cols;
        out.expect(inputs.tokens().most(), width, "the embedding's output");
        let (table, out) = (table.floats(), &mut out.floats);
        let rows = (first, scale);
        let done = self
            .operations
            .embed(&self.stream, table, width, rows, inputs, out);
        self.keep(done);
    }
    fn matmul(
        &mut self,
        x: &CudaTensor,
        w: Linear<'_, CudaMatrix, Buffer<f32>>,
        out: &mut CudaTensor,
    ) {
        let done = self.multiply(x, w, out);
        self.keep(done);
    }
    fn rms_norm(&mut self, x: &CudaTensor, weight: &Buffer<f32>, eps: f32, out: &mut CudaTensor) {
        let rows = x.rows();
        x.expect(rows, weight.len(), "the norm's input");
        out.expect(rows, weight.len(), "the norm's output");
        let (x, rows, out) = (&x.floats, self.chains.rows(rows), &mut out.floats);
        let done = self
            .operations
            .rms_norm(&self.stream, x, weight, eps, rows, out);
        self.keep(done);
    }
    fn end_block(
        &mut self,
        residual: &mut CudaTensor,
        delta: Option<&CudaTensor>,
        end: BlockEnd<'_, Buffer<f32>>,
        out: &mut CudaTensor,
    ) {
        let done = self.run_end(residual, delta, end, out);
        self.keep(done);
    }
    fn join_norms(
        &mut self,
        x: &mut CudaTensor,
        y: &CudaTensor,
        norms: [RmsNorm<'_, Buffer<f32>>; 2],
        width: usize,
        _: &mut CudaTensor,
    ) {
        let done = self.run_join(x, y, norms, width);
        self.keep(done);
    }
    fn head_norm(
        &mut self,
        qkv: &mut CudaTensor,
        shape: &AttentionShape,
        heads: Range<usize>,
        weight: &Buffer<f32>,
        eps: f32,
    ) {
        let keys = shape.heads..shape.heads + shape.kv_heads;
        let values = keys.end..keys.end + shape.kv_heads;
        let kinds = [0..shape.heads, keys, values];
        assert!(kinds.contains(&heads), "heads of a kind are normed");
        let [queries, keys, values] = kinds.map(|kind| (kind == heads).then_some(weight));
        let norms = HeadNorms {
            queries,
            keys,
            values,
            eps,
        };
        let done = self.norm_heads(shape, qkv, norms);
        self.keep(done);
    }
    fn square_sums(
        &mut self,
        qkv: &CudaTensor,
        shape: &AttentionShape,
        counted: CountedKeys,
        sums: &mut CudaTensor,
    ) {
        let done = self.sum_squares(qkv, shape, counted, sums);
        self.keep(done);
    }
    fn whole_norm(
        &mut self,
        qkv: &mut CudaTensor,
        shape: &AttentionShape,
        sums: &CudaTensor,
        norms: &WholeNorms<'_, Buffer<f32>>,
    ) {
        let done = self.norm_whole(qkv, shape, sums, norms);
        self.keep(done);
    }
    fn rope(
        &mut self,
        qkv: &mut CudaTensor,
        shape: &AttentionShape,
        table: &Rope,
        inputs: &Inputs,
    ) {
        let done = self.rotate(shape, qkv, table, inputs);
        self.keep(done);
    }
    fn attention(
        &mut self,
        cache: &mut PagedCache,
        layer: usize,
        qkv: &CudaTensor,
        shape: &AttentionShape,
        sinks: Option<&Buffer<f32>>,
        inputs: &Inputs,
        out: &mut CudaTensor,
    ) {
        let heads = Heads::Stored(qkv);
        let beside = Beside { sinks, next: None };
        let done = self.attend_heads(shape, heads, inputs, cache, layer, (out, beside));
        self.keep(done);
    }
    fn attend(
        &mut self,
        cache: &mut PagedCache,
        layer: usize,
        qkv: &mut CudaTensor,
        op: &Attend<'_, CudaMatrix, Buffer<f32>, Rope>,
        inputs: &Inputs,
        out: &mut CudaTensor,
    ) {
        let heads = Heads::All(qkv, norms_of(op), op.rope);
        let done = self.attend_heads(op.shape, heads, inputs, cache, layer, (out, beside_of(op)));
        self.keep(done);
    }
    fn matmul_attend(
        &mut self,
        x: &CudaTensor,
        w: Linear<'_, CudaMatrix, Buffer<f32>>,
        cache: &mut PagedCache,
        layer: usize,
        qkv: &mut CudaTensor,
        op: &Attend<'_, CudaMatrix, Buffer<f32>, Rope>,
        inputs: &Inputs,
        out: &mut CudaTensor,
    ) {
        let heads = Heads::Projected(x, w, qkv, norms_of(op), op.rope);
        let done = self.attend_heads(op.shape, heads, inputs, cache, layer, (out, beside_of(op)));
        self.keep(done);
    }
    fn attend_latent(
        &mut self,
        cache: &mut PagedCache,
        layer: usize,
        query: &mut CudaTensor,
        cell: &mut CudaTensor,
        op: &LatentOp<'_>,
        space: LatentSpace<'_, CudaTensor>,
        inputs: &Inputs,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        Ok(self.attend_to_latents(cache, layer, query, cell, op, space, inputs, out)?)
    }
    fn gate(&mut self, gate_up: &CudaTensor, activation: Activation, out: &mut CudaTensor) {
        let (rows, width) = (out.rows(), out.width());
        gate_up.expect(rows, 2 * width, "gate and up");
        let (gate_up, rows, out) = (&gate_up.floats, self.chains.rows(rows), &mut out.floats);
        let done = self
            .operations
            .gate(&self.stream, gate_up, activation, width, rows, out);
        self.keep(done);
    }
    fn gated_matmul(
        &mut self,
        x: &CudaTensor,
        w: Linear<'_, CudaMatrix, Buffer<f32>>,
        activation: Activation,
        gate_up: &mut CudaTensor,
        out: &mut CudaTensor,
    ) {
        let done = self.multiply_gated(x, w, activation, gate_up, out);
        self.keep(done);
    }
    fn sigmoid_gate(&mut self, x: &CudaTensor, out: &mut CudaTensor) -> Result<(), BackendError> {
        Ok(self.run_sigmoid_gate(x, out)?)
    }
    fn gated_delta(
        &mut self,
        states: &mut CudaStates,
        layer: usize,
        op: &GatedDelta<'_, Buffer<f32>>,
        operands: DeltaOperands<'_, CudaTensor>,
        inputs: &Inputs,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        Ok(self.run_delta((states, layer), op, operands, inputs, out)?)
    }
    fn mamba2(
        &mut self,
        states: &mut CudaStates,
        layer: usize,
        op: &Mamba2<'_, Buffer<f32>>,
        operands: Mamba2Operands<'_, CudaTensor>,
        inputs: &Inputs,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        Ok(self.run_mamba2((states, layer), op, operands, inputs, out)?)
    }
    fn short_convolution(
        &mut self,
        states: &mut CudaStates,
        layer: usize,
        op: &ShortConvolution<'_, Buffer<f32>>,
        projected: &CudaTensor,
        _: &mut CudaTensor,
        inputs: &Inputs,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        Ok(self.run_short((states, layer), op, projected, inputs, out)?)
    }
    fn group_square_sums(
        &mut self,
        x: &CudaTensor,
        groups: &ColumnGroups,
        sums: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        Ok(self.sum_groups(x, groups, sums)?)
    }
    fn group_norm(
        &mut self,
        x: &CudaTensor,
        groups: &ColumnGroups,
        sums: &CudaTensor,
        norm: RmsNorm<'_, Buffer<f32>>,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        Ok(self.norm_groups([x, sums], groups, norm, out)?)
    }
    fn copy_states(
        &mut self,
        states: &mut CudaStates,
        moves: &[(u32, u32)],
    ) -> Result<(), BackendError> {
        Ok(self.move_states(states, moves)?)
    }
    fn activate(&mut self, x: &CudaTensor, activation: Activation, out: &mut CudaTensor) {
        let done = self.run_activation(x, activation, out);
        self.keep(done);
    }
    fn scale_logits(&mut self, logits: &mut CudaTensor, scaling: LogitScaling) {
        let done = self.run_scaling(logits, scaling);
        self.keep(done);
    }
    fn experts(
        &mut self,
        x: &CudaTensor,
        scores: &mut CudaTensor,
        w: Experts<'_, CudaMatrix, Buffer<f32>>,
        space: ExpertSpace<'_, CudaTensor>,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        Ok(self.run_experts(x, scores, w, space, out)?)
    }
    fn gather_rows(&mut self, x: &CudaTensor, rows: Gathered<'_, Inputs>, out: &mut CudaTensor) {
        let done = self.gather(x, rows, out);
        self.keep(done);
    }
    fn copy_rows(&mut self, x: &CudaTensor, from: &[u32], out: &mut CudaTensor, to: &[u32]) {
        let done = self.copy(x, from, out, to);
        self.keep(done);
    }
    fn place_columns(&mut self, x: &CudaTensor, out: &mut CudaTensor, first: usize) {
        let done = self.place(x, out, first);
        self.keep(done);
    }
    fn take_columns(&mut self, x: &CudaTensor, first: usize, out: &mut CudaTensor) {
        let done = self.take(x, first, out);
        self.keep(done);
    }
    fn copy_cells(&mut self, cache: &mut PagedCache, moves: &[(u32, u32)]) {
        let done = self.move_cells(cache, moves);
        self.keep(done);
    }
}

/// There are no kernels for adapters.
impl Adapt for CudaBackend {}

impl Exchange for CudaBackend {
    fn matmul_end_block(
        &mut self,
        x: &CudaTensor,
        w: RowParallel<'_, CudaMatrix, Buffer<f32>>,
        residual: &mut CudaTensor,
        delta: &mut CudaTensor,
        end: BlockEnd<'_, Buffer<f32>>,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        if self.group(w.axis).1 == 1 {
            let done = self.multiply_end_block(x, w.part, residual, delta, end, out);
            self.keep(done);
            return Ok(());
        }
        self.matmul(x, w.part, delta);
        self.all_reduce(w.axis, delta)?;
        self.end_block(residual, Some(delta), end, out);
        Ok(())
    }
    fn group(&self, axis: Axis) -> (usize, usize) {
        self.exchange.rank_and_size(axis)
    }
    fn all_reduce(&mut self, axis: Axis, x: &mut CudaTensor) -> Result<(), BackendError> {
        self.sum(axis, x)
    }
    fn scatter_end_block(
        &mut self,
        axis: Axis,
        scatter: Scatter<'_, CudaTensor>,
        residual: &mut CudaTensor,
        end: BlockEnd<'_, Buffer<f32>>,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        self.scatter_sum(axis, scatter, residual, end, out)
    }
    fn all_gather_rows(
        &mut self,
        axis: Axis,
        x: &CudaTensor,
        first: usize,
        counts: &[usize],
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        self.gather_all(axis, x, first, counts, out)
    }
    fn notes(&mut self) -> Option<&mut dyn ExchangeNotes> {
        self.exchange.on_stream().then_some(self)
    }
    fn gather_to_host<'a>(
        &mut self,
        axis: Axis,
        x: &'a CudaTensor,
        owners: Owners<'_>,
        space: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], BackendError> {
        self.download(axis, x, owners, space)
    }
    fn control(&mut self, axis: Axis) -> &mut dyn Collective {
        self.exchange.of(axis)
    }
    /// True if data passes through the host: it then takes the hosts' group, in the host's
    /// order of operations.
    fn words_ride_on_data(&self) -> bool {
        !self.exchange.on_stream()
    }
}
