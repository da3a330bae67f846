//! [`Backend`] on CPU cores: shape checks around the kernels.

mod fused;

use std::ops::Range;

use lockstep_backend::{
    AttentionShape, Axis, BackendError, Batch, Exchange, ExpertSpace, Experts, Groups, Holds,
    HostMatrix, InputLimits, KvShape, Linear, MatrixRole, Memory, Ops, Owners, Passes, RmsNorm,
    RopeTable, RowParallel, Rows, Scatter, WeightFormat,
};
use lockstep_collective::Collective;
use lockstep_types::Dtype;

use crate::attention::{Attention, AttentionTasks, CpuKvCache};
use crate::collectives::Collectives;
use crate::footprint::CpuAllocated;
use crate::formats::{self, CpuMatrix};
use crate::gemm::Element;
use crate::inputs::CpuInputs;
use crate::isa::Isa;
use crate::memory::Buffer;
use crate::norm::AddNorm;
use crate::options::{CpuError, CpuOptions};
use crate::pool::Pool;
use crate::rope::CpuRope;
use crate::tensor::{CpuTensor, CpuVector};
use crate::{activation, norm, rope, rows};
use fused::multiply;

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
    /// Packed inputs of the current matrix product.
    packed: Buffer<u32>,
    /// Routes of the current mixture of experts.
    routing: Buffer<u32>,
    allocated: CpuAllocated,
    /// Number of passes that were staged.
    staged: u64,
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
            packed: Buffer::empty(),
            routing: Buffer::empty(),
            allocated: CpuAllocated::default(),
            staged: 0,
        })
    }

    /// Bytes allocated so far, including buffers that were given back since.
    pub fn allocated(&self) -> CpuAllocated {
        let products = self.packed.bytes() + self.routing.bytes();
        let scratch = products + self.attention.bytes() + self.collectives.bytes();
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

impl Memory for CpuBackend {
    type Matrix = CpuMatrix;
    type Vector = CpuVector;
    type Tensor = CpuTensor;
    type Rope = CpuRope;
    type KvCache = CpuKvCache;
    type Inputs = CpuInputs;
    fn describe(&self, weights: WeightFormat) -> String {
        let dtype = match self.dtype {
            Dtype::Bfloat16 => "bf16",
            Dtype::Float32 => "f32",
        };
        let (format, threads) = (formats::of(self.dtype, weights), self.pool.threads());
        let instructions = format.instructions(self.isa);
        match format.title() {
            None => format!("cpu {instructions}, {dtype}, {threads} threads"),
            Some(title) => {
                format!("cpu {instructions}, {dtype}, {title} weights, {threads} threads")
            }
        }
    }
    fn serves_format(_: WeightFormat, _: MatrixRole) -> Result<(), &'static str> {
        Ok(())
    }
    fn load_matrix(
        &mut self,
        matrix: &HostMatrix<'_>,
        format: WeightFormat,
    ) -> Result<CpuMatrix, BackendError> {
        let format = formats::of(self.dtype, format);
        let packed = CpuMatrix::pack(&mut self.pool, self.isa, format, matrix)?;
        self.allocated.matrices += packed.bytes() as u64;
        Ok(packed)
    }
    fn load_vector(&mut self, values: &[f32]) -> Result<CpuVector, BackendError> {
        self.allocated.vectors += size_of_val(values) as u64;
        Ok(CpuVector(values.to_vec()))
    }
    fn load_rope(&mut self, table: RopeTable) -> Result<CpuRope, BackendError> {
        let rope = CpuRope::new(table);
        self.allocated.vectors += rope.bytes() as u64;
        Ok(rope)
    }
    fn tensor(&mut self, rows: usize, width: usize, _: Holds) -> Result<CpuTensor, BackendError> {
        let tensor = CpuTensor::new(rows, width)?;
        self.allocated.activations += size_of_val(tensor.values()) as u64;
        Ok(tensor)
    }
    fn set_rows(&mut self, tensor: &mut CpuTensor, rows: usize) {
        tensor.set_rows(rows);
    }
    fn kv_cache(&mut self, shape: &KvShape) -> Result<CpuKvCache, BackendError> {
        let cache = CpuKvCache::new(shape)?;
        self.allocated.kv += cache.allocated() as u64;
        Ok(cache)
    }
    fn inputs(&mut self, limits: &InputLimits) -> Result<CpuInputs, BackendError> {
        let inputs = CpuInputs::new(limits)?;
        self.allocated.activations += CpuInputs::bytes(limits);
        Ok(inputs)
    }
    fn matrix_bytes(&self, matrix: &CpuMatrix) -> usize {
        matrix.bytes()
    }
    fn packed_form(&self, format: WeightFormat) -> Option<String> {
        Some(CpuMatrix::form(formats::of(self.dtype, format)))
    }
    fn matrix_data<'m>(&self, matrix: &'m CpuMatrix) -> &'m [u8] {
        matrix.data()
    }
    fn restore_matrix(
        &mut self,
        rows: usize,
        cols: usize,
        format: WeightFormat,
        unit: usize,
        fill: &(dyn Fn(usize, &mut [u8]) + Sync),
    ) -> Result<CpuMatrix, BackendError> {
        let format = formats::of(self.dtype, format);
        let packed = CpuMatrix::restore(&mut self.pool, format, [rows, cols], unit, fill)?;
        self.allocated.matrices += packed.bytes() as u64;
        Ok(packed)
    }
}

impl Ops for CpuBackend {
    fn embed(&mut self, table: &CpuMatrix, first: u32, inputs: &CpuInputs, out: &mut CpuTensor) {
        rows::embed(&mut self.pool, table, first, &inputs.tokens, out);
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
    fn add_rms_norm(
        &mut self,
        residual: &mut CpuTensor,
        delta: &CpuTensor,
        weight: &CpuVector,
        eps: f32,
        out: &mut CpuTensor,
    ) {
        let rows = residual.rows();
        residual.expect(rows, weight.0.len(), "the residual");
        delta.expect(rows, weight.0.len(), "the residual's delta");
        out.expect(rows, weight.0.len(), "the norm's output");
        let mut norm = AddNorm {
            residual: residual.values_mut(),
            weight: &weight.0,
            eps,
            out: out.values_mut(),
        };
        norm::add_parts_rms_norm(&mut self.pool, self.isa, &[delta.values()], &mut norm);
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
        inputs: &CpuInputs,
        out: &mut CpuTensor,
    ) {
        let tokens = inputs.tokens.len();
        qkv.expect(tokens, shape.qkv_width(), "qkv");
        out.expect(tokens, shape.out_width(), "the attention output");
        cache.expect(shape);
        inputs.expect(&cache.shape);
        let (pool, isa, element) = (&mut self.pool, self.isa, Element::of(self.dtype));
        let (qkv, out) = (qkv.values(), out.values_mut());
        self.attention
            .run(pool, isa, element, cache, layer, qkv, shape, inputs, out)
            .expect("scratch for one task's queries can be mapped");
    }
    fn silu_mul(&mut self, gate_up: &CpuTensor, out: &mut CpuTensor) {
        let width = out.width();
        gate_up.expect(out.rows(), 2 * width, "gate and up");
        let (pool, gate_up) = (&mut self.pool, gate_up.values());
        activation::silu_mul(pool, self.isa, gate_up, width, out.values_mut());
    }
    fn experts(
        &mut self,
        x: &CpuTensor,
        scores: &mut CpuTensor,
        w: Experts<'_, CpuMatrix>,
        space: ExpertSpace<'_, CpuTensor>,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        self.mix_experts(x, scores, w, space, out)
    }
    fn gather_rows(&mut self, x: &CpuTensor, rows: Rows<'_, CpuInputs>, out: &mut CpuTensor) {
        let rows = match rows {
            Rows::Wanted(inputs, range) => &inputs.wanted[range],
            Rows::List(rows) => rows,
        };
        rows::gather(&mut self.pool, x, rows, out);
    }
    fn copy_rows(&mut self, x: &CpuTensor, from: &[u32], out: &mut CpuTensor, to: &[u32]) {
        rows::copy(&mut self.pool, x, from, out, to);
    }
    fn place_columns(&mut self, x: &CpuTensor, out: &mut CpuTensor, first: usize) {
        rows::place(&mut self.pool, x, out, first);
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

impl Exchange for CpuBackend {
    fn group(&self, axis: Axis) -> (usize, usize) {
        self.collectives.rank_and_size(axis)
    }
    fn all_reduce(&mut self, axis: Axis, x: &mut CpuTensor) -> Result<(), BackendError> {
        self.collectives.all_reduce(axis, x.values_mut())
    }
    fn matmul_add_rms_norm(
        &mut self,
        x: &CpuTensor,
        w: RowParallel<'_, CpuMatrix, CpuVector>,
        residual: &mut CpuTensor,
        delta: &mut CpuTensor,
        norm: RmsNorm<'_, CpuVector>,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        self.fused_sum(x, w, residual, delta, norm, out)
    }
    fn matmul_scatter_add_rms_norm(
        &mut self,
        x: &CpuTensor,
        w: RowParallel<'_, CpuMatrix, CpuVector>,
        scatter: Scatter<'_, CpuTensor>,
        residual: &mut CpuTensor,
        norm: RmsNorm<'_, CpuVector>,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        self.fused_scatter(x, w, scatter, residual, norm, out)
    }
    fn scatter_add_rms_norm(
        &mut self,
        axis: Axis,
        scatter: Scatter<'_, CpuTensor>,
        residual: &mut CpuTensor,
        norm: RmsNorm<'_, CpuVector>,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        self.scatter_sum(axis, scatter, residual, norm, out)
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
