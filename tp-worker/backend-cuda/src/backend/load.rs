//! Weights on their way to the device.

use lockstep_backend::{HostMatrix, WeightFormat};

use super::CudaBackend;
use crate::error::CudaError;
use crate::formats::Device;
use crate::ops::Product;
use crate::runtime::Buffer;
use crate::tensors::{CudaMatrix, MatrixForm};

impl CudaBackend {
    /// See [`lockstep_backend::Memory::load_matrix`].
    pub(super) fn load(
        &mut self,
        matrix: &HostMatrix<'_>,
        format: WeightFormat,
    ) -> Result<CudaMatrix, CudaError> {
        let device = Device {
            stream: &self.stream,
            compiler: &self.compiler,
            operand: self.operand,
        };
        let weights = self.loaders.load(device, matrix, format)?;
        if weights.form == MatrixForm::Floats {
            self.products.prepare(Product::of(&weights), 1)?;
        }
        Ok(weights)
    }

    /// See [`lockstep_backend::Memory::load_vector`].
    pub(super) fn upload_vector(&mut self, values: &[f32]) -> Result<Buffer<f32>, CudaError> {
        let mut vector = Buffer::new(self.stream.context(), values.len(), "a weight vector")?;
        self.stream.upload(values, &mut vector)?;
        Ok(vector)
    }
}
