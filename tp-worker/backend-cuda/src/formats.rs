//! Formats of weights on a GPU, one file each.

mod float;
pub(crate) mod mxfp4;
mod slabs;
mod uploads;

use std::sync::Arc;

use lockstep_backend::{HostMatrix, MatrixRole, WeightFormat};

use crate::error::CudaError;
use crate::runtime::{Compiler, Context, Stream};
use crate::tensors::{CudaMatrix, Element};
use float::FloatLoader;
use slabs::Slabs;
use uploads::Uploads;

/// The device that matrices are brought to.
#[derive(Clone, Copy)]
pub(crate) struct Device<'d> {
    /// Order of the device's work.
    pub stream: &'d Stream,
    /// Compiler of kernels that make weights.
    pub compiler: &'d Compiler,
    /// Type that matrices are multiplied in.
    pub operand: Element,
}

/// Loaders of all formats.
pub(crate) struct Loaders {
    transport: Transport,
    floats: FloatLoader,
}

/// The way of weights to the device, and their room there.
struct Transport {
    uploads: Uploads,
    slabs: Slabs,
}

impl Loaders {
    /// Allocates the loaders' working memory.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Driver`].
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        Ok(Self {
            transport: Transport {
                uploads: Uploads::new(context)?,
                slabs: Slabs::default(),
            },
            floats: FloatLoader::default(),
        })
    }

    /// Says that all matrices of a model are loaded.
    pub(crate) fn finish(&mut self) {
        self.transport.slabs.close();
    }

    /// See [`lockstep_backend::Memory::load_matrix`].
    pub(crate) fn load(
        &mut self,
        device: Device<'_>,
        matrix: &HostMatrix<'_>,
        format: WeightFormat,
    ) -> Result<CudaMatrix, CudaError> {
        let Self { transport, floats } = self;
        match format {
            WeightFormat::Float => floats.load(device, transport, matrix),
            WeightFormat::Float32 => floats.load_router(device, transport, matrix),
            WeightFormat::Mxfp4 => mxfp4::load(device, transport, matrix),
            WeightFormat::Int8
            | WeightFormat::Int4
            | WeightFormat::Fp8 { .. }
            | WeightFormat::Groups(_) => Err(unserved()),
        }
    }
}

/// See [`lockstep_backend::Memory::serves_format`].
pub(crate) fn serves(format: WeightFormat, role: MatrixRole) -> Result<(), &'static str> {
    match (format, role) {
        (WeightFormat::Float32, MatrixRole::Router) => Ok(()),
        (WeightFormat::Float32, _) | (_, MatrixRole::Router) => {
            Err("GPUs have 32-bit floats for routers, and for nothing else")
        }
        (WeightFormat::Float, _) | (WeightFormat::Mxfp4, MatrixRole::Projection) => Ok(()),
        (WeightFormat::Int8 | WeightFormat::Int4, _) => Err("GPUs have no quantized weights"),
        (WeightFormat::Fp8 { .. }, _) => Err("GPUs have no FP8 weights"),
        (WeightFormat::Groups(_), _) => Err("GPUs have no integers in groups"),
        (WeightFormat::Mxfp4, _) => Err("GPUs have MXFP4 for experts, and for nothing else"),
    }
}

/// The error for a matrix in a format that is not served.
fn unserved() -> CudaError {
    let why = "weights in 8 bits or 4-bit integers are not served on GPUs: leave --quantization out and use \
               an unquantized release of the model, or give --device cpu";
    CudaError::Unsupported(why.to_owned())
}
