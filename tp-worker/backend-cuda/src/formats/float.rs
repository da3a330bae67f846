//! Matrices of floats in the type of operands: uploaded from a checkpoint, widened from its codes,
//! or generated.

use lockstep_backend::{HostMatrix, RandomMatrix};

use super::uploads::{missing, write};
use super::{Device, Transport};
use crate::error::CudaError;
use crate::ops::Random;
use crate::tensors::{CudaMatrix, Element, Floats};

/// Kernels that make floats on the device.
#[derive(Default)]
pub(super) struct FloatLoader {
    /// Generators for random weights: of operands, and of routers where those differ. `None` until
    /// some are requested.
    random: [Option<Random>; 2],
}

impl FloatLoader {
    /// Brings a matrix to the device.
    ///
    /// # Errors
    /// [`CudaError`]: there is no room, rows are missing in a file, or the device fails.
    pub(super) fn load(
        &mut self,
        device: Device<'_>,
        transport: &mut Transport,
        matrix: &HostMatrix<'_>,
    ) -> Result<CudaMatrix, CudaError> {
        let floats = self.floats(device, transport, matrix)?;
        Ok(CudaMatrix::new(floats, matrix.rows(), matrix.cols(), false))
    }

    /// Brings a router to the device, in 32-bit floats.
    ///
    /// # Errors
    /// The errors of [`Self::load`].
    pub(super) fn load_router(
        &mut self,
        device: Device<'_>,
        transport: &mut Transport,
        matrix: &HostMatrix<'_>,
    ) -> Result<CudaMatrix, CudaError> {
        let device = Device {
            operand: Element::F32,
            ..device
        };
        let floats = self.floats(device, transport, matrix)?;
        Ok(CudaMatrix::new(floats, matrix.rows(), matrix.cols(), true))
    }

    fn floats(
        &mut self,
        device: Device<'_>,
        Transport { uploads, slabs }: &mut Transport,
        matrix: &HostMatrix<'_>,
    ) -> Result<Floats, CudaError> {
        let Device {
            stream, operand, ..
        } = device;
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let len = rows.saturating_mul(cols);
        let bytes = len.saturating_mul(operand.bytes());
        let memory = slabs.room(stream.context(), bytes)?;
        let mut floats = Floats::in_bytes(memory, operand, len);
        match matrix {
            HostMatrix::Floats(source) => uploads.floats(stream, source, &mut floats)?,
            HostMatrix::Turned(_)
            | HostMatrix::Fp8(_)
            | HostMatrix::TurnedFp8(_)
            | HostMatrix::Mxfp4(_)
            | HostMatrix::Integers(_)
            | HostMatrix::Gguf(_)
            | HostMatrix::Joined(_) => {
                if let Some(row) = matrix.missing_row() {
                    return Err(missing(row));
                }
                let (form, mut values) = (matrix.form(), vec![0.0; cols]);
                let shape = (rows, cols * operand.bytes());
                uploads.rows(stream, floats.memory(), 0, shape, |row, bytes| {
                    form.read(row, 0, &mut values);
                    write(values.iter().copied(), operand, bytes);
                })?;
            }
            HostMatrix::Random(random) => self.generate(device, random, &mut floats)?,
        }
        Ok(floats)
    }

    /// Queues the generation of `matrix` in `out`.
    fn generate(
        &mut self,
        device: Device<'_>,
        matrix: &RandomMatrix,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        let Device {
            stream,
            compiler,
            operand,
        } = device;
        let kept = &mut self.random[usize::from(operand == Element::F32)];
        let random = match kept.take() {
            Some(random) => random,
            None => Random::new(stream.context(), compiler, operand)?,
        };
        kept.insert(random).fill(stream, matrix, out)
    }
}
