//! Formats of weights on a GPU, one file each.

mod float;

use lockstep_backend::{MatrixRole, WeightFormat};

use crate::error::CudaError;

pub(crate) use float::Uploads;

/// See [`lockstep_backend::Memory::serves_format`].
pub(crate) fn serves(format: WeightFormat, _: MatrixRole) -> Result<(), &'static str> {
    match format {
        WeightFormat::Float => Ok(()),
        WeightFormat::Int8 | WeightFormat::Int4 => Err("GPUs have no quantized weights"),
    }
}

/// The error for a matrix in a format that is not served.
pub(crate) fn unserved() -> CudaError {
    let why = "weights in 8 or 4 bits are not served on GPUs: leave --quantization out, or give \
               --device cpu";
    CudaError::Unsupported(why.to_owned())
}
