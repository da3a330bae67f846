//! Memory of one GPU: weights, activations, caches and staged batches.

use lockstep_backend::{
    BackendError, Holds, HostMatrix, InputLimits, KvShape, MatrixRole, Memory, RopeTable,
    StatesShape, WeightFormat,
};

use super::CudaBackend;
use crate::formats;
use crate::ops::{CudaStates, PagedCache, Rope};
use crate::passes::Inputs;
use crate::runtime::Buffer;
use crate::tensors::{CudaMatrix, CudaTensor};

impl Memory for CudaBackend {
    type Matrix = CudaMatrix;
    type Vector = Buffer<f32>;
    type Tensor = CudaTensor;
    type Rope = Rope;
    type KvCache = PagedCache;
    type States = CudaStates;
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
            queries: match table.queries.as_slice() {
                [] => None,
                factors => Some(self.load_vector(factors)?),
            },
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
    fn states(&mut self, shape: &StatesShape) -> Result<CudaStates, BackendError> {
        Ok(CudaStates::new(self.stream.context(), shape)?)
    }
    fn inputs(&mut self, limits: &InputLimits) -> Result<Inputs, BackendError> {
        self.make_inputs(limits)
    }
    fn matrix_bytes(&self, matrix: &CudaMatrix) -> usize {
        matrix.bytes()
    }
}
