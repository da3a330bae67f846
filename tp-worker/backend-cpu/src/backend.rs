//! [`Backend`] on CPU cores: shape checks around the kernels.

use std::ops::Range;

use lockstep_backend::{
    AttentionShape, Backend, BackendError, Batch, HostMatrix, KvShape, MatrixRole, RopeTable,
};
use lockstep_collective::Collective;

use crate::attention::{Attention, CpuKvCache};
use crate::gemm::{Element, Packed, describe_quantised, matmul};
use crate::isa::Isa;
use crate::memory::Buffer;
use crate::options::{Compute, CpuError, CpuOptions, WeightFormat};
use crate::pack::CpuMatrix;
use crate::partition::for_rows;
use crate::pool::Pool;
use crate::tensor::{CpuTensor, CpuVector};
use crate::{activation, norm, rope};

/// One rank on a set of CPU cores.
///
/// # Panics
/// Operations panic when tensors have shapes that don't fit together, when a
/// batch names a cache cell or page that does not exist, and with the panic of
/// a kernel thread.
pub struct CpuBackend {
    pool: Pool,
    isa: Isa,
    element: Element,
    weights: WeightFormat,
    collective: Box<dyn Collective>,
    attention: Attention,
    /// Packed inputs of the current matrix product.
    packed: Buffer<u32>,
    /// Rank 0: all ranks' columns, rank after rank.
    gathered: Vec<f32>,
    counts: Vec<usize>,
}

impl CpuBackend {
    /// Starts the threads and chooses the kernels.
    ///
    /// # Errors
    /// [`CpuError`] when the options ask for something this machine lacks.
    pub fn new(options: CpuOptions, collective: Box<dyn Collective>) -> Result<Self, CpuError> {
        let isa = options.validate()?;
        let CpuOptions {
            threads,
            dtype,
            weights,
            pin,
            isa: _,
        } = options;
        let element = match dtype {
            Compute::Bf16 => Element::Bf16,
            Compute::F32 => Element::F32,
        };
        Ok(Self {
            pool: Pool::new(threads, pin.as_deref(), collective.is_crowded())?,
            isa,
            element,
            weights,
            counts: vec![0; collective.size()],
            collective,
            attention: Attention::new(threads),
            packed: Buffer::empty(),
            gathered: Vec::new(),
        })
    }
}

fn collective_error(error: lockstep_collective::CollectiveError) -> BackendError {
    BackendError::Collective(Box::new(error))
}

impl Backend for CpuBackend {
    type Matrix = CpuMatrix;
    type Vector = CpuVector;
    type Tensor = CpuTensor;
    type KvCache = CpuKvCache;

    fn describe(&self) -> String {
        let dtype = match self.element {
            Element::Bf16 => "bf16",
            Element::F32 => "f32",
        };
        let (threads, quantised) = (self.pool.threads(), describe_quantised(self.isa));
        match self.weights {
            WeightFormat::Native => format!("cpu {}, {dtype}, {threads} threads", self.isa),
            WeightFormat::Int8 => {
                format!("cpu {quantised}, {dtype}, int8 weights, {threads} threads")
            }
        }
    }

    fn load_matrix(
        &mut self,
        matrix: &HostMatrix<'_>,
        _role: MatrixRole,
    ) -> Result<CpuMatrix, BackendError> {
        let element = match self.weights {
            WeightFormat::Native => Packed::Native(self.element),
            WeightFormat::Int8 => Packed::Int8,
        };
        CpuMatrix::pack(&mut self.pool, self.isa, element, matrix)
    }

    fn load_vector(&mut self, values: &[f32]) -> Result<CpuVector, BackendError> {
        Ok(CpuVector(values.to_vec()))
    }

    fn tensor(&mut self, rows: usize, width: usize) -> Result<CpuTensor, BackendError> {
        CpuTensor::new(rows, width)
    }

    fn set_rows(&mut self, tensor: &mut CpuTensor, rows: usize) {
        tensor.set_rows(rows);
    }

    fn kv_cache(&mut self, shape: &KvShape) -> Result<CpuKvCache, BackendError> {
        CpuKvCache::new(shape)
    }

    fn matrix_bytes(&self, matrix: &CpuMatrix) -> usize {
        matrix.bytes()
    }

    fn embed(&mut self, table: &CpuMatrix, first: u32, tokens: &[u32], out: &mut CpuTensor) {
        out.expect(tokens.len(), table.cols, "the embedding output");
        for_rows(
            &mut self.pool,
            out.values_mut(),
            table.cols,
            |rows, part| {
                for (row, &token) in part.chunks_exact_mut(table.cols).zip(&tokens[rows]) {
                    match token.checked_sub(first).map(|index| index as usize) {
                        Some(index) if index < table.rows => table.read_row(index, row),
                        _ => row.fill(0.0),
                    }
                }
            },
        );
    }

    fn matmul(
        &mut self,
        x: &CpuTensor,
        w: &CpuMatrix,
        bias: Option<&CpuVector>,
        out: &mut CpuTensor,
    ) {
        x.expect(x.rows(), w.cols, "the matrix product's input");
        out.expect(x.rows(), w.rows, "the matrix product's output");
        let bias = bias.map(|bias| bias.0.as_slice());
        assert!(
            bias.is_none_or(|bias| bias.len() == w.rows),
            "a bias has one value per output"
        );
        let packed = &mut self.packed;
        let done = matmul(
            &mut self.pool,
            self.isa,
            x.values(),
            w,
            bias,
            packed,
            out.values_mut(),
        );
        done.expect("scratch for one batch's activations can be mapped");
    }

    fn rms_norm(&mut self, x: &CpuTensor, weight: &CpuVector, eps: f32, out: &mut CpuTensor) {
        x.expect(x.rows(), weight.0.len(), "the norm's input");
        out.expect(x.rows(), x.width(), "the norm's output");
        norm::rms_norm(
            &mut self.pool,
            self.isa,
            x.values(),
            &weight.0,
            eps,
            out.values_mut(),
        );
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
        let (residual, out) = (residual.values_mut(), out.values_mut());
        let (delta, weight) = (delta.values(), weight.0.as_slice());
        norm::add_rms_norm(&mut self.pool, self.isa, residual, delta, weight, eps, out);
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
        table: &RopeTable,
        positions: &[u32],
    ) {
        qkv.expect(positions.len(), shape.qkv_width(), "qkv");
        rope::rope(
            &mut self.pool,
            self.isa,
            qkv.values_mut(),
            shape,
            table,
            positions,
        );
    }

    fn attention(
        &mut self,
        cache: &mut CpuKvCache,
        layer: usize,
        qkv: &CpuTensor,
        shape: &AttentionShape,
        batch: &Batch<'_>,
        out: &mut CpuTensor,
    ) {
        let tokens = batch.cells.len();
        qkv.expect(tokens, shape.qkv_width(), "qkv");
        out.expect(tokens, shape.out_width(), "the attention output");
        cache.expect(shape);
        let (pool, isa, element) = (&mut self.pool, self.isa, self.element);
        let (qkv, out) = (qkv.values(), out.values_mut());
        self.attention
            .run(pool, isa, element, cache, layer, qkv, shape, batch, out)
            .expect("scratch for one task's queries can be mapped");
    }

    fn silu_mul(&mut self, gate_up: &CpuTensor, out: &mut CpuTensor) {
        let width = out.width();
        gate_up.expect(out.rows(), 2 * width, "gate and up");
        activation::silu_mul(
            &mut self.pool,
            self.isa,
            gate_up.values(),
            width,
            out.values_mut(),
        );
    }

    fn gather_rows(&mut self, x: &CpuTensor, rows: &[u32], out: &mut CpuTensor) {
        let width = x.width();
        out.expect(rows.len(), width, "the gathered rows");
        let x = x.values();
        for_rows(&mut self.pool, out.values_mut(), width, |range, part| {
            for (out, &row) in part.chunks_exact_mut(width).zip(&rows[range]) {
                out.copy_from_slice(&x[row as usize * width..(row as usize + 1) * width]);
            }
        });
    }

    fn group(&self) -> (usize, usize) {
        (self.collective.rank(), self.collective.size())
    }

    fn all_reduce(&mut self, x: &mut CpuTensor) -> Result<(), BackendError> {
        self.collective
            .all_reduce_sum(x.values_mut())
            .map_err(collective_error)
    }

    fn gather_to_host(
        &mut self,
        x: &CpuTensor,
        widths: &[usize],
        out: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let (rank, size) = self.group();
        assert!(widths.len() == size, "one width per rank");
        assert!(widths[rank] == x.width(), "rank {rank}'s width is its own");
        let rows = x.rows();
        out.clear();
        if size == 1 {
            out.extend_from_slice(x.values());
            return Ok(());
        }
        self.counts.clear();
        self.counts.extend(widths.iter().map(|width| rows * width));
        if rank > 0 {
            let sent = self.collective.gather(x.values(), &self.counts, None);
            return sent.map_err(collective_error);
        }
        self.gathered.resize(self.counts.iter().sum(), 0.0);
        let gathered = Some(self.gathered.as_mut_slice());
        self.collective
            .gather(x.values(), &self.counts, gathered)
            .map_err(collective_error)?;
        for row in 0..rows {
            let mut block = 0;
            for &width in widths {
                let start = block + row * width;
                out.extend_from_slice(&self.gathered[start..start + width]);
                block += rows * width;
            }
        }
        Ok(())
    }

    fn broadcast_tokens(&mut self, tokens: &mut [u32]) -> Result<(), BackendError> {
        self.collective
            .broadcast(0, tokens)
            .map_err(collective_error)
    }
}
