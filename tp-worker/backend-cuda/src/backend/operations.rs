//! The [`Backend`] implementation for [`CudaBackend`].

use std::ops::Range;

use lockstep_backend::{
    Attend, AttentionShape, Axis, BackendError, Batch, DeviceDrafter, DeviceSampler, Exchange,
    ExchangeNotes, Holds, HostMatrix, InputLimits, KvShape, Linear, MatrixRole, Memory, Ops,
    Owners, PassKey, Passes, RmsNorm, RopeTable, RowParallel, Rows as Gathered, Scatter,
    WeightFormat,
};
use lockstep_collective::Collective;
use lockstep_types::Dtype;

use super::attend::Heads;
use super::{CudaBackend, CudaPasses};
use crate::formats;
use crate::ops::{HeadNorms, PagedCache, Rope};
use crate::passes::Inputs;
use crate::runtime::Buffer;
use crate::tensors::{CudaMatrix, CudaTensor};

impl Memory for CudaBackend {
    type Matrix = CudaMatrix;
    type Vector = Buffer<f32>;
    type Tensor = CudaTensor;
    type Rope = Rope;
    type KvCache = PagedCache;
    type Inputs = Inputs;
    fn describe(&self, _: WeightFormat) -> String {
        self.about()
    }
    fn serves_format(format: WeightFormat, role: MatrixRole) -> Result<(), &'static str> {
        formats::serves(format, role)
    }
    fn load_matrix(
        &mut self,
        matrix: &HostMatrix<'_>,
        format: WeightFormat,
    ) -> Result<CudaMatrix, BackendError> {
        Ok(self.load(matrix, format)?)
    }
    fn load_vector(&mut self, values: &[f32]) -> Result<Buffer<f32>, BackendError> {
        Ok(self.upload_vector(values)?)
    }
    fn load_rope(&mut self, table: RopeTable) -> Result<Rope, BackendError> {
        Ok(Rope {
            half: table.half,
            cos: self.load_vector(&table.cos)?,
            sin: self.load_vector(&table.sin)?,
        })
    }
    fn tensor(
        &mut self,
        rows: usize,
        width: usize,
        holds: Holds,
    ) -> Result<CudaTensor, BackendError> {
        let (element, context) = (self.operand.holding(holds), self.stream.context());
        if holds == Holds::Logits {
            let elements = rows.saturating_mul(width);
            self.exchange.reserve_logits(context, elements)?;
        }
        Ok(CudaTensor::new(context, element, rows, width)?)
    }
    fn set_rows(&mut self, tensor: &mut CudaTensor, rows: usize) {
        tensor.set_rows(rows);
    }
    fn kv_cache(&mut self, shape: &KvShape) -> Result<PagedCache, BackendError> {
        Ok(PagedCache::new(self.stream.context(), shape)?)
    }
    fn inputs(&mut self, limits: &InputLimits) -> Result<Inputs, BackendError> {
        self.make_inputs(limits)
    }
    fn matrix_bytes(&self, matrix: &CudaMatrix) -> usize {
        matrix.bytes()
    }
}

impl Ops for CudaBackend {
    fn operand(&self) -> Dtype {
        self.operand.dtype()
    }
    fn as_operand<'a>(&mut self, x: &'a CudaTensor, space: &'a mut CudaTensor) -> &'a CudaTensor {
        if x.element() == self.operand {
            return x;
        }
        let (rows, width) = (x.rows(), x.width());
        space.expect(rows, width, "an operand");
        let rows = self.chains.rows(rows);
        let to = &mut space.floats;
        let done = self
            .operations
            .cast(&self.stream, &x.floats, width, rows, to);
        self.keep(done);
        space
    }
    fn embed(&mut self, table: &CudaMatrix, first: u32, inputs: &Inputs, out: &mut CudaTensor) {
        let width = table.cols;
        out.expect(inputs.tokens().most(), width, "the embedding's output");
        let (table, out) = (&table.floats, &mut out.floats);
        let done = self
            .operations
            .embed(&self.stream, table, width, first, inputs, out);
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
    fn add_rms_norm(
        &mut self,
        residual: &mut CudaTensor,
        delta: &CudaTensor,
        weight: &Buffer<f32>,
        eps: f32,
        out: &mut CudaTensor,
    ) {
        let rows = residual.rows();
        residual.expect(rows, weight.len(), "the residual");
        delta.expect(rows, weight.len(), "the residual's delta");
        out.expect(rows, weight.len(), "the norm's output");
        let (residual, delta, out) = (&mut residual.floats, &delta.floats, &mut out.floats);
        let rows = self.chains.rows(rows);
        let stream = &self.stream;
        let done = self
            .operations
            .add_rms_norm(stream, residual, delta, weight, eps, rows, out);
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
        let queries = heads == (0..shape.heads);
        assert!(queries || heads == keys, "heads of a kind are normed");
        let norms = HeadNorms {
            queries: queries.then_some(weight),
            keys: (!queries).then_some(weight),
            eps,
        };
        let done = self.norm_heads(shape, qkv, norms);
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
        inputs: &Inputs,
        out: &mut CudaTensor,
    ) {
        let heads = Heads::Stored(qkv);
        let done = self.attend_heads(shape, heads, inputs, cache, layer, out);
        self.keep(done);
    }
    fn attend(
        &mut self,
        cache: &mut PagedCache,
        layer: usize,
        qkv: &mut CudaTensor,
        op: &Attend<'_, Buffer<f32>, Rope>,
        inputs: &Inputs,
        out: &mut CudaTensor,
    ) {
        let heads = Heads::All(qkv, norms_of(op), op.rope);
        let done = self.attend_heads(op.shape, heads, inputs, cache, layer, out);
        self.keep(done);
    }
    fn matmul_attend(
        &mut self,
        x: &CudaTensor,
        w: Linear<'_, CudaMatrix, Buffer<f32>>,
        cache: &mut PagedCache,
        layer: usize,
        qkv: &mut CudaTensor,
        op: &Attend<'_, Buffer<f32>, Rope>,
        inputs: &Inputs,
        out: &mut CudaTensor,
    ) {
        let heads = Heads::Projected(x, w, qkv, norms_of(op), op.rope);
        let done = self.attend_heads(op.shape, heads, inputs, cache, layer, out);
        self.keep(done);
    }
    fn silu_mul(&mut self, gate_up: &CudaTensor, out: &mut CudaTensor) {
        let (rows, width) = (out.rows(), out.width());
        gate_up.expect(rows, 2 * width, "gate and up");
        let (gate_up, rows, out) = (&gate_up.floats, self.chains.rows(rows), &mut out.floats);
        let done = self
            .operations
            .silu_mul(&self.stream, gate_up, width, rows, out);
        self.keep(done);
    }
    fn gated_matmul(
        &mut self,
        x: &CudaTensor,
        w: Linear<'_, CudaMatrix, Buffer<f32>>,
        gate_up: &mut CudaTensor,
        out: &mut CudaTensor,
    ) {
        let done = self.multiply_gated(x, w, gate_up, out);
        self.keep(done);
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
        let (rows, width, out_width) = (x.rows(), x.width(), out.width());
        out.expect(rows, out_width, "what columns are placed in");
        let (x, rows, out) = (&x.floats, self.chains.rows(rows), &mut out.floats);
        let stream = &self.stream;
        let done = self
            .operations
            .place_columns(stream, x, width, rows, out, out_width, first);
        self.keep(done);
    }
    fn copy_cells(&mut self, cache: &mut PagedCache, moves: &[(u32, u32)]) {
        let done = self.move_cells(cache, moves);
        self.keep(done);
    }
}

impl Passes for CudaBackend {
    type Passes = CudaPasses;
    fn stage(&mut self, batch: &Batch<'_>, inputs: &mut Inputs) -> Result<(), BackendError> {
        self.failures()?;
        Ok(inputs.stage(&self.stream, batch)?)
    }
    fn holding(&self, most: PassKey, dp_ranks: usize, inputs: &Inputs) -> Option<PassKey> {
        self.smallest(most, dp_ranks, inputs.limits())
    }
    fn pad(&mut self, key: PassKey, inputs: &mut Inputs) -> PassKey {
        let Some(size) = self.smallest(key, 1, inputs.limits()) else {
            return key;
        };
        inputs.pad(size);
        size
    }
    fn forget_passes(&mut self) {
        self.rooms += 1;
    }
    fn keeps(&self, passes: &CudaPasses) -> bool {
        passes.name(self.rooms)
    }
    fn repeated(&self, inputs: &Inputs) -> Vec<PassKey> {
        self.sizes(inputs.limits()).rev().collect()
    }
    fn pass(
        &mut self,
        passes: &mut CudaPasses,
        key: PassKey,
        work: &mut dyn FnMut(&mut Self) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        self.run_pass(passes, key, work)
    }
    fn sampler(&mut self) -> Option<&mut dyn DeviceSampler<CudaTensor, Inputs, PagedCache>> {
        self.may_choose().then_some(self)
    }
    fn drafter(&mut self) -> Option<&mut dyn DeviceDrafter<CudaTensor, Inputs, Buffer<f32>>> {
        Some(self)
    }
    fn arrive(&mut self) -> Result<(), BackendError> {
        self.failures()?;
        Ok(self.exchange.arrive(&self.stream)?)
    }
}

impl Exchange for CudaBackend {
    fn matmul_add_rms_norm(
        &mut self,
        x: &CudaTensor,
        w: RowParallel<'_, CudaMatrix, Buffer<f32>>,
        residual: &mut CudaTensor,
        delta: &mut CudaTensor,
        norm: RmsNorm<'_, Buffer<f32>>,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        if self.group(w.axis).1 == 1 {
            let done = self.multiply_add_norm(x, w.part, residual, delta, norm, out);
            self.keep(done);
            return Ok(());
        }
        self.matmul(x, w.part, delta);
        self.all_reduce(w.axis, delta)?;
        self.add_rms_norm(residual, delta, norm.weight, norm.eps, out);
        Ok(())
    }
    fn group(&self, axis: Axis) -> (usize, usize) {
        self.exchange.rank_and_size(axis)
    }
    fn all_reduce(&mut self, axis: Axis, x: &mut CudaTensor) -> Result<(), BackendError> {
        self.sum(axis, x)
    }
    fn scatter_add_rms_norm(
        &mut self,
        axis: Axis,
        scatter: Scatter<'_, CudaTensor>,
        residual: &mut CudaTensor,
        norm: RmsNorm<'_, Buffer<f32>>,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        self.scatter_sum(axis, scatter, residual, norm, out)
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

/// Norms of heads before attention.
fn norms_of<'a>(op: &Attend<'a, Buffer<f32>, Rope>) -> HeadNorms<'a> {
    HeadNorms {
        queries: op.q_norm,
        keys: op.k_norm,
        eps: op.eps,
    }
}
