//! Memory of a device.

use crate::{
    BackendError, Holds, HostMatrix, InputLimits, KvShape, MatrixRole, RopeTable, StatesShape,
    WeightFormat,
};

/// Remedy of devices without recurrent layers.
pub(crate) const NO_STATES: &str = "this device runs no recurrent layers; give --device cpu";

/// Memory of a device: weights, activations, caches and staged batches, and packed weights on
/// disk.
pub trait Memory: Send + Sized {
    /// A weight matrix `[out, in]`, packed for this device.
    type Matrix: Send + Sync;
    /// A vector of f32 (norm weights, biases).
    type Vector: Send + Sync;
    /// Activations.
    type Tensor: Send;
    /// Rotary angles.
    type Rope: Send + Sync;
    /// Paged keys and values of the layers of a group.
    type KvCache: Send;
    /// States and records of recurrent layers.
    type States: Send;
    /// A batch in the memory that operations read.
    type Inputs: Send;
    /// Describes the device for people, with its kernels for projections in `weights`:
    /// "cpu avx512-bf16, 2 threads".
    fn describe(&self, weights: WeightFormat) -> String;
    /// Checks that devices of this kind hold matrices of `role` in `format`, and multiply with
    /// them.
    ///
    /// # Errors
    /// The reason why they don't, for people.
    fn serves_format(format: WeightFormat, role: MatrixRole) -> Result<(), &'static str>;
    /// Brings a weight matrix to the device, in `format`.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`]; [`BackendError::Unsupported`] for a format that is not
    /// served.
    fn load_matrix(
        &mut self,
        matrix: &HostMatrix<'_>,
        format: WeightFormat,
    ) -> Result<Self::Matrix, BackendError>;
    /// Uploads a vector.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn load_vector(&mut self, values: &[f32]) -> Result<Self::Vector, BackendError>;
    /// Uploads rotary angles.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn load_rope(&mut self, table: RopeTable) -> Result<Self::Rope, BackendError>;
    /// Allocates activations `[rows, width]`.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn tensor(
        &mut self,
        rows: usize,
        width: usize,
        holds: Holds,
    ) -> Result<Self::Tensor, BackendError>;
    /// Sets the current row count, at most the capacity.
    fn set_rows(&mut self, tensor: &mut Self::Tensor, rows: usize);
    /// Allocates a paged cache, of any content. Pages may be allocated as they are written.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn kv_cache(&mut self, shape: &KvShape) -> Result<Self::KvCache, BackendError>;
    /// Allocates states and records of recurrent layers, of any content. Memory may be taken as it
    /// is written.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`]; [`BackendError::Unsupported`] on devices that have no
    /// recurrent layers.
    fn states(&mut self, shape: &StatesShape) -> Result<Self::States, BackendError> {
        let _ = shape;
        Err(BackendError::Unsupported(NO_STATES.into()))
    }
    /// Returns the bits of a state in all layers that share `states`, for tests that compare them.
    /// Empty on devices that do not read states back.
    #[cfg(feature = "state-probe")]
    fn state_bits(&self, states: &Self::States, state: u32) -> Vec<u32> {
        let _ = (states, state);
        Vec::new()
    }
    /// Allocates room for batches within `limits`, one at a time.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn inputs(&mut self, limits: &InputLimits) -> Result<Self::Inputs, BackendError>;
    /// Returns the bytes that a matrix takes on the device.
    fn matrix_bytes(&self, matrix: &Self::Matrix) -> usize;
    /// Names the packed form of matrices in `format`, version included; `None` if matrices
    /// cannot be saved. Matrices of equal name, shape and content have equal bytes.
    fn packed_form(&self, format: WeightFormat) -> Option<String> {
        let _ = format;
        None
    }
    /// Returns the packed form, for [`Self::restore_matrix`]; empty if matrices cannot be saved.
    fn matrix_data<'m>(&self, _: &'m Self::Matrix) -> &'m [u8] {
        &[]
    }
    /// Makes a matrix `[rows, cols]` from its packed form. `fill(offset, part)` writes bytes
    /// from `offset` on, into zeros. Several threads call it, once for every `unit` bytes; the
    /// last part may be shorter.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`]; [`BackendError::Unsupported`] if matrices cannot be saved.
    fn restore_matrix(
        &mut self,
        rows: usize,
        cols: usize,
        format: WeightFormat,
        unit: usize,
        fill: &(dyn Fn(usize, &mut [u8]) + Sync),
    ) -> Result<Self::Matrix, BackendError> {
        let _ = (rows, cols, format, unit, fill);
        let remedy = "this backend's matrices cannot be restored; leave --weight-cache out";
        Err(BackendError::Unsupported(remedy.into()))
    }
}
