//! Memory of the CPU: weights, activations, caches and staged batches.

use lockstep_backend::{
    BackendError, Holds, HostMatrix, InputLimits, KvShape, MatrixRole, Memory, RopeTable,
    StatesShape, WeightFormat,
};
use lockstep_types::Dtype;

use super::CpuBackend;
use crate::attention::CpuKvCache;
use crate::formats::{self, CpuMatrix};
use crate::inputs::CpuInputs;
use crate::recurrent::CpuStates;
use crate::rope::CpuRope;
use crate::tensor::{CpuTensor, CpuVector};

impl CpuBackend {
    /// From now on loads weights that are integers as the 32-bit floats that these stand for,
    /// and multiplies them with inputs that are not rounded. So their own loss can be measured.
    /// Weights that were packed before, and are restored, stay what they are.
    pub fn dequantize_weights(&mut self) {
        self.dequantizes = true;
    }
}

impl Memory for CpuBackend {
    type Matrix = CpuMatrix;
    type Vector = CpuVector;
    type Tensor = CpuTensor;
    type Rope = CpuRope;
    type KvCache = CpuKvCache;
    type States = CpuStates;
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
        let (pool, arena) = (&mut self.pool, &mut self.arena);
        let mut packed = CpuMatrix::pack(pool, arena, self.isa, format, matrix)?;
        if self.dequantizes {
            packed = packed.dequantized(pool, arena, self.isa)?;
        }
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
    fn states(&mut self, shape: &StatesShape) -> Result<CpuStates, BackendError> {
        let states = CpuStates::new(shape)?;
        self.allocated.states += states.bytes() as u64;
        Ok(states)
    }
    #[cfg(feature = "state-probe")]
    fn state_bits(&self, states: &CpuStates, state: u32) -> Vec<u32> {
        states.bits(state)
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
        let (pool, arena) = (&mut self.pool, &mut self.arena);
        let packed = CpuMatrix::restore(pool, arena, format, [rows, cols], unit, fill)?;
        self.allocated.matrices += packed.bytes() as u64;
        Ok(packed)
    }
}
