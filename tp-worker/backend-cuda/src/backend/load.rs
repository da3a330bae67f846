//! Weight matrices, uploaded or generated.

use lockstep_backend::{HostMatrix, RandomMatrix, WeightFormat};

use super::CudaBackend;
use crate::error::CudaError;
use crate::formats;
use crate::ops::{Product, Random};
use crate::runtime::Buffer;
use crate::tensors::{CudaMatrix, Floats};

impl CudaBackend {
    /// See [`lockstep_backend::Memory::load_matrix`].
    pub(super) fn load(
        &mut self,
        matrix: &HostMatrix<'_>,
        format: WeightFormat,
    ) -> Result<CudaMatrix, CudaError> {
        match format {
            WeightFormat::Float => self.load_floats(matrix),
            WeightFormat::Int8 | WeightFormat::Int4 => Err(formats::unserved()),
            WeightFormat::Float32 => Err(formats::no_experts()),
        }
    }

    /// Brings a matrix to the device as floats.
    fn load_floats(&mut self, matrix: &HostMatrix<'_>) -> Result<CudaMatrix, CudaError> {
        let mut weights = self.room(matrix.rows(), matrix.cols())?;
        match matrix {
            HostMatrix::Floats(floats) => {
                self.uploads
                    .matrix(&self.stream, floats, &mut weights.floats)?;
            }
            HostMatrix::Random(random) => self.make_random(random, &mut weights.floats)?,
        }
        self.products.prepare(Product::of(&weights), 1)?;
        Ok(weights)
    }

    /// See [`lockstep_backend::Memory::load_vector`].
    pub(super) fn upload_vector(&mut self, values: &[f32]) -> Result<Buffer<f32>, CudaError> {
        let mut vector = Buffer::new(self.stream.context(), values.len(), "a weight vector")?;
        self.stream.upload(values, &mut vector)?;
        Ok(vector)
    }

    /// Queues the generation of `matrix` in `out`.
    fn make_random(&mut self, matrix: &RandomMatrix, out: &mut Floats) -> Result<(), CudaError> {
        let random = match self.random.take() {
            Some(random) => random,
            None => Random::new(self.stream.context(), &self.compiler, self.operand)?,
        };
        let random = self.random.insert(random);
        random.fill(&self.stream, matrix, out)
    }

    /// A weight matrix with unspecified contents.
    fn room(&self, rows: usize, cols: usize) -> Result<CudaMatrix, CudaError> {
        let (context, len) = (self.stream.context(), rows.saturating_mul(cols));
        let floats = Floats::new(context, self.operand, len, "a weight matrix")?;
        Ok(CudaMatrix { floats, rows, cols })
    }
}
