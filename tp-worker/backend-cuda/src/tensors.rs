//! Arrays on the device: activations, weight matrices and the type of their values.

mod floats;
mod matrix;
mod rows;
mod sharing;
mod tensor;

pub use floats::{Element, Floats};
pub use matrix::CudaMatrix;
pub(crate) use matrix::MatrixForm;
pub use rows::Rows;
pub(crate) use rows::{RowsParameter, blocks};
pub(crate) use sharing::{left, share, shared_bytes, sharers, whole};
pub use tensor::CudaTensor;
