//! [`Backend`] on CPU cores: shape checks around the kernels.

mod adapt;
mod exchange;
mod fused;
mod latent;
mod memory;
mod recurrent;

use std::ops::Range;

use lockstep_backend::{
    AttendLatent, AttentionShape, BackendError, Batch, BlockEnd, ColumnGroups, CountedKeys,
    DeltaOperands, ExpertSpace, Experts, GatedDelta, Groups, LatentSpace, Linear, LogitScaling,
    Mamba2, Mamba2Operands, Ops, Passes, RmsNorm, Rows, ShortConvolution, WholeNorms,
};
use lockstep_types::{Activation, Dtype};

use crate::attention::{Attention, AttentionTasks, CpuKvCache};
use crate::collectives::Collectives;
use crate::footprint::CpuAllocated;
use crate::formats::CpuMatrix;
use crate::gemm::Element;
use crate::inputs::CpuInputs;
use crate::isa::Isa;
use crate::memory::{Arena, Buffer};
use crate::options::{CpuError, CpuOptions};
use crate::pool::Pool;
use crate::recurrent::{CpuStates, Recurrent};
use crate::rope::CpuRope;
use crate::tensor::{CpuTensor, CpuVector};
use crate::{activation, norm, rope, rows};
use fused::{checked, multiply};

/// One rank on a set of CPU cores.
///
/// # Panics
/// Operations panic when tensors have shapes that don't fit together, when a
/// batch names a cache cell or page that does not exist, and with the panic of
/// a kernel thread.
pub struct CpuBackend {
    pool: Pool,
    isa: Isa,
    dtype: Dtype,
    collectives: Collectives,
    attention: Attention,
    /// Memory of weight matrices.
    arena: Arena,
    /// Packed inputs of the current matrix product.
    packed: Buffer<u32>,
    /// Routes of the current mixture of experts, and lists of other groups of rows.
    routing: Buffer<u32>,
    /// Results of adapters, before they are added.
    adapted: Buffer<f32>,
    /// Working memory of recurrent layers.
    recurrent: Recurrent,
    allocated: CpuAllocated,
    /// Number of passes that were staged.
    staged: u64,
    /// True if weights are loaded as the floats that they stand for.
    dequantizes: bool,
}

impl CpuBackend {
    /// Starts the threads and chooses the kernels.
    ///
    /// # Errors
    /// [`CpuError`] when the options ask for something this machine lacks.
    pub fn new(options: CpuOptions, groups: impl Into<Groups>) -> Result<Self, CpuError> {
        let groups = groups.into();
        let isa = options.validate()?;
        let CpuOptions {
            threads,
            dtype,
            pin,
            isa: _,
        } = options;
        Ok(Self {
            pool: Pool::new(threads, pin.as_deref(), groups.is_crowded())?,
            isa,
            dtype,
            collectives: Collectives::new(groups),
            attention: Attention::new(threads),
            arena: Arena::default(),
            packed: Buffer::empty(),
            routing: Buffer::empty(),
            adapted: Buffer::empty(),
            recurrent: Recurrent::new(),
            allocated: CpuAllocated::default(),
            staged: 0,
            dequantizes: false,
        })
    }

    /// Bytes allocated so far, including buffers that were given back since.
    pub fn allocated(&self) -> CpuAllocated {
        let products = self.packed.bytes() + self.routing.bytes() + self.adapted.bytes();
        let layers = self.attention.bytes() + self.recurrent.bytes();
        let scratch = products + layers + self.collectives.bytes();
        CpuAllocated {
            scratch: scratch as u64,
            ..self.allocated
        }
    }

    /// Describes the tasks of the last call of [`Ops::attention`]; they never show in
    /// its result.
    pub fn attention_tasks(&self) -> AttentionTasks {
        self.attention.tasks()
    }
}

impl Ops for CpuBackend {
    fn embed(
        &mut self,
        table: &CpuMatrix,
        first: u32,
        scale: f32,
        inputs: &CpuInputs,
        out: &mut CpuTensor,
    ) {
        rows::embed(&mut self.pool, table, first, scale, &inputs.tokens, out);
    }
    fn matmul(&mut self, x: &CpuTensor, w: Linear<'_, CpuMatrix, CpuVector>, out: &mut CpuTensor) {
        out.expect(x.rows(), w.weight.rows, "the matrix product's output");
        let (pool, packed) = (&mut self.pool, &mut self.packed);
        multiply(pool, self.isa, x, w, packed, out.values_mut());
    }
    fn rms_norm(&mut self, x: &CpuTensor, weight: &CpuVector, eps: f32, out: &mut CpuTensor) {
        x.expect(x.rows(), weight.0.len(), "the norm's input");
        out.expect(x.rows(), x.width(), "the norm's output");
        let (pool, x, out) = (&mut self.pool, x.values(), out.values_mut());
        norm::rms_norm(pool, self.isa, x, &weight.0, eps, out);
    }
    fn end_block(
        &mut self,
        residual: &mut CpuTensor,
        delta: Option<&CpuTensor>,
        end: BlockEnd<'_, CpuVector>,
        out: &mut CpuTensor,
    ) {
        let (rows, width) = (residual.rows(), residual.width());
        let mut norm = checked(width, rows, residual, end, out);
        let (pool, isa) = (&mut self.pool, self.isa);
        match delta {
            None => norm::end_block(pool, isa, &[], &mut norm),
            Some(delta) => {
                delta.expect(rows, width, "the residual's delta");
                norm::end_block(pool, isa, &[delta.values()], &mut norm);
            }
        }
    }
    fn head_norm(
        &mut self,
        qkv: &mut CpuTensor,
        shape: &AttentionShape,
        heads: Range<usize>,
        weight: &CpuVector,
        eps: f32,
    ) {
        let width = shape.qkv_width();
        qkv.expect(qkv.rows(), width, "qkv");
        assert!(
            weight.0.len() == shape.head_dim,
            "a head norm has one weight per column"
        );
        let columns = heads.start * shape.head_dim..heads.end * shape.head_dim;
        let (pool, x) = (&mut self.pool, qkv.values_mut());
        norm::head_norm(pool, self.isa, x, width, columns, &weight.0, eps);
    }
    fn square_sums(
        &mut self,
        qkv: &CpuTensor,
        shape: &AttentionShape,
        counted: CountedKeys,
        sums: &mut CpuTensor,
    ) {
        let width = shape.qkv_width();
        qkv.expect(sums.rows(), width, "qkv");
        sums.expect(sums.rows(), 2, "the sums of squares");
        let dim = shape.head_dim;
        let columns = [shape.heads * dim, shape.kv_heads * dim, dim];
        let (pool, x, sums) = (&mut self.pool, qkv.values(), sums.values_mut());
        norm::square_sums(pool, self.isa, x, width, columns, counted, sums);
    }
    fn whole_norm(
        &mut self,
        qkv: &mut CpuTensor,
        shape: &AttentionShape,
        sums: &CpuTensor,
        norms: &WholeNorms<'_, CpuVector>,
    ) {
        let (width, dim) = (shape.qkv_width(), shape.head_dim);
        qkv.expect(sums.rows(), width, "qkv");
        sums.expect(sums.rows(), 2, "the sums of squares");
        let weights = [norms.queries, norms.keys].map(|weight| weight.0.len());
        assert!(
            weights == [shape.heads * dim, shape.kv_heads * dim],
            "a norm has a weight for each column"
        );
        let (pool, x) = (&mut self.pool, qkv.values_mut());
        norm::whole_norm(pool, self.isa, x, width, sums.values(), norms);
    }
    fn rope(
        &mut self,
        qkv: &mut CpuTensor,
        shape: &AttentionShape,
        table: &CpuRope,
        inputs: &CpuInputs,
    ) {
        let positions = &inputs.positions;
        qkv.expect(positions.len(), shape.qkv_width(), "qkv");
        let (pool, qkv) = (&mut self.pool, qkv.values_mut());
        rope::rope(pool, self.isa, qkv, shape, table, positions);
    }
    fn attention(
        &mut self,
        cache: &mut CpuKvCache,
        layer: usize,
        qkv: &CpuTensor,
        shape: &AttentionShape,
        sinks: Option<&CpuVector>,
        inputs: &CpuInputs,
        out: &mut CpuTensor,
    ) {
        let tokens = inputs.tokens.len();
        qkv.expect(tokens, shape.qkv_width(), "qkv");
        out.expect(tokens, shape.out_width(), "the attention output");
        cache.expect(shape);
        inputs.expect(&cache.shape);
        let sinks = sinks.map(|sinks| sinks.0.as_slice());
        assert!(
            sinks.map(<[f32]>::len) == shape.sinks.then_some(shape.heads),
            "heads have sinks if their shape says so, one each"
        );
        let (pool, isa, element) = (&mut self.pool, self.isa, Element::of(self.dtype));
        let (qkv, out) = (qkv.values(), out.values_mut());
        self.attention
            .run(
                pool, isa, element, cache, layer, qkv, shape, sinks, inputs, out,
            )
            .expect("scratch for one task's queries can be mapped");
    }
    fn attend_latent(
        &mut self,
        cache: &mut CpuKvCache,
        layer: usize,
        query: &mut CpuTensor,
        cell: &mut CpuTensor,
        op: &AttendLatent<'_, CpuMatrix, CpuVector, CpuRope>,
        space: LatentSpace<'_, CpuTensor>,
        inputs: &CpuInputs,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        self.attend_to_latents(cache, layer, query, cell, op, space, inputs, out)
    }
    fn gate(&mut self, gate_up: &CpuTensor, activation: Activation, out: &mut CpuTensor) {
        let width = out.width();
        gate_up.expect(out.rows(), 2 * width, "gate and up");
        let (pool, gate_up, out) = (&mut self.pool, gate_up.values(), out.values_mut());
        activation::gate(pool, self.isa, activation, gate_up, width, out);
    }
    fn sigmoid_gate(&mut self, gate: &CpuTensor, out: &mut CpuTensor) -> Result<(), BackendError> {
        self.gate_output(gate, out);
        Ok(())
    }
    fn gated_delta(
        &mut self,
        states: &mut CpuStates,
        layer: usize,
        op: &GatedDelta<'_, CpuVector>,
        operands: DeltaOperands<'_, CpuTensor>,
        inputs: &CpuInputs,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        self.run_delta(states, layer, op, operands, inputs, out)
    }
    fn mamba2(
        &mut self,
        states: &mut CpuStates,
        layer: usize,
        op: &Mamba2<'_, CpuVector>,
        operands: Mamba2Operands<'_, CpuTensor>,
        inputs: &CpuInputs,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        self.run_mamba2(states, layer, op, operands, inputs, out)
    }
    fn group_square_sums(
        &mut self,
        x: &CpuTensor,
        groups: &ColumnGroups,
        sums: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        self.sum_groups(x, groups, sums);
        Ok(())
    }
    fn group_norm(
        &mut self,
        x: &CpuTensor,
        groups: &ColumnGroups,
        sums: &CpuTensor,
        norm: RmsNorm<'_, CpuVector>,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        self.norm_groups(x, groups, sums, norm, out);
        Ok(())
    }
    fn short_convolution(
        &mut self,
        states: &mut CpuStates,
        layer: usize,
        op: &ShortConvolution<'_, CpuVector>,
        projected: &CpuTensor,
        space: &mut CpuTensor,
        inputs: &CpuInputs,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        self.run_short(states, layer, op, projected, [space, out], inputs)
    }
    fn copy_states(
        &mut self,
        states: &mut CpuStates,
        moves: &[(u32, u32)],
    ) -> Result<(), BackendError> {
        states.copy(&mut self.pool, moves);
        Ok(())
    }
    fn activate(&mut self, x: &CpuTensor, activation: Activation, out: &mut CpuTensor) {
        x.expect(out.rows(), out.width(), "the activation's input");
        let (pool, width) = (&mut self.pool, out.width());
        activation::activate(
            pool,
            self.isa,
            activation,
            x.values(),
            width,
            out.values_mut(),
        );
    }
    fn scale_logits(&mut self, logits: &mut CpuTensor, scaling: LogitScaling) {
        let width = logits.width();
        activation::scale_logits(
            &mut self.pool,
            self.isa,
            scaling,
            width,
            logits.values_mut(),
        );
    }
    fn experts(
        &mut self,
        x: &CpuTensor,
        scores: &mut CpuTensor,
        w: Experts<'_, CpuMatrix, CpuVector>,
        space: ExpertSpace<'_, CpuTensor>,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        self.mix_experts(x, scores, w, space, out)
    }
    fn gather_rows(&mut self, x: &CpuTensor, rows: Rows<'_, CpuInputs>, out: &mut CpuTensor) {
        let rows = match rows {
            Rows::Wanted(inputs, range) => &inputs.wanted[range],
            Rows::List(rows) => rows,
            Rows::Range(rows) => return rows::gather_range(&mut self.pool, x, rows, out),
        };
        rows::gather(&mut self.pool, x, rows, out);
    }
    fn copy_rows(&mut self, x: &CpuTensor, from: &[u32], out: &mut CpuTensor, to: &[u32]) {
        rows::copy(&mut self.pool, x, from, out, to);
    }
    fn place_columns(&mut self, x: &CpuTensor, out: &mut CpuTensor, first: usize) {
        rows::place(&mut self.pool, x, out, first);
    }
    fn take_columns(&mut self, x: &CpuTensor, first: usize, out: &mut CpuTensor) {
        rows::take(&mut self.pool, x, first, out);
    }
    fn as_operand<'a>(&mut self, x: &'a CpuTensor, _: &'a mut CpuTensor) -> &'a CpuTensor {
        x
    }
    fn copy_cells(&mut self, cache: &mut CpuKvCache, moves: &[(u32, u32)]) {
        for (from, to) in moves {
            cache.copy_cell(*from, *to);
        }
    }
}

impl Passes for CpuBackend {
    type Passes = ();
    fn stage(&mut self, batch: &Batch<'_>, inputs: &mut CpuInputs) -> Result<(), BackendError> {
        self.staged += 1;
        inputs.stage(batch, self.staged);
        Ok(())
    }
}
