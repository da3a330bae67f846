//! Arrays on the device: activations, weight matrices and the type of their values.

mod floats;
mod rows;
mod tensor;
mod weights;

pub use floats::{Element, Floats};
pub use rows::Rows;
pub(crate) use rows::{RowsParameter, blocks};
pub use tensor::{CudaMatrix, CudaTensor};
pub(crate) use weights::Uploads;
