//! Formats of weights on a GPU, one file each.

mod float;

use lockstep_backend::{MatrixRole, WeightFormat};

use crate::error::CudaError;

pub(crate) use float::Uploads;

const NO_EXPERTS: &str = "mixtures of experts run on processors alone";

/// See [`lockstep_backend::Memory::serves_format`].
pub(crate) fn serves(format: WeightFormat, role: MatrixRole) -> Result<(), &'static str> {
    match (format, role) {
        (WeightFormat::Float32, _) | (_, MatrixRole::Router) => Err(NO_EXPERTS),
        (WeightFormat::Float, _) => Ok(()),
        (WeightFormat::Int8 | WeightFormat::Int4, _) => Err("GPUs have no quantized weights"),
    }
}

/// The error for the router of a mixture of experts.
pub(crate) fn no_experts() -> CudaError {
    CudaError::Unsupported(format!("{NO_EXPERTS}: give --device cpu"))
}

/// The error for a matrix in a format that is not served.
pub(crate) fn unserved() -> CudaError {
    let why = "weights in 8 or 4 bits are not served on GPUs: leave --quantization out, or give \
               --device cpu";
    CudaError::Unsupported(why.to_owned())
}
