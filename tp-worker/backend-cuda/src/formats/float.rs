//! Matrices of floats in the type of operands: uploaded from a checkpoint, or generated.

mod slabs;
mod uploads;

use std::sync::Arc;

use lockstep_backend::{HostMatrix, RandomMatrix};

use super::Device;
use crate::error::CudaError;
use crate::ops::Random;
use crate::runtime::Context;
use crate::tensors::{CudaMatrix, Element, Floats};
use slabs::Slabs;
use uploads::Uploads;

/// Working memory and kernels that bring floats to the device.
pub(super) struct FloatLoader {
    uploads: Uploads,
    slabs: Slabs,
    /// Generators for random weights: of operands, and of routers where those differ. `None` until
    /// some are requested.
    random: [Option<Random>; 2],
}

impl FloatLoader {
    /// Allocates the working memory.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Driver`].
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        Ok(Self {
            uploads: Uploads::new(context)?,
            slabs: Slabs::default(),
            random: [None, None],
        })
    }

    /// Brings a matrix to the device.
    ///
    /// # Errors
    /// [`CudaError`]: there is no room, rows are missing in a file, or the device fails.
    pub(super) fn load(
        &mut self,
        device: Device<'_>,
        matrix: &HostMatrix<'_>,
    ) -> Result<CudaMatrix, CudaError> {
        let floats = self.floats(device, matrix)?;
        Ok(CudaMatrix::new(floats, matrix.rows(), matrix.cols(), false))
    }

    /// Brings a router to the device, in 32-bit floats.
    ///
    /// # Errors
    /// The errors of [`Self::load`].
    pub(super) fn load_router(
        &mut self,
        device: Device<'_>,
        matrix: &HostMatrix<'_>,
    ) -> Result<CudaMatrix, CudaError> {
        let device = Device {
            operand: Element::F32,
            ..device
        };
        let floats = self.floats(device, matrix)?;
        Ok(CudaMatrix::new(floats, matrix.rows(), matrix.cols(), true))
    }

    fn floats(&mut self, device: Device<'_>, matrix: &HostMatrix<'_>) -> Result<Floats, CudaError> {
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let (context, len) = (device.stream.context(), rows.saturating_mul(cols));
        let mut floats = self.slabs.floats(context, device.operand, len)?;
        match matrix {
            HostMatrix::Floats(source) => {
                self.uploads.matrix(device.stream, source, &mut floats)?;
            }
            HostMatrix::Turned(_) | HostMatrix::Fp8(_) | HostMatrix::Mxfp4(_) => {
                return Err(super::unserved());
            }
            HostMatrix::Random(random) => self.generate(device, random, &mut floats)?,
        }
        Ok(floats)
    }

    /// Says that a model's matrices are loaded.
    pub(super) fn finish(&mut self) {
        self.slabs.close();
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
