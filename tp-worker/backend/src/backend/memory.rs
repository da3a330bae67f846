//! Memory of a device.

use crate::{
    BackendError, Holds, HostMatrix, InputLimits, KvShape, MatrixRole, RandomMatrix, RopeTable,
};

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
    /// A batch in the memory that operations read.
    type Inputs: Send;
    /// Describes the device for people: "cpu avx512-bf16, 2 threads".
    fn describe(&self) -> String;
    /// Brings a weight matrix to the device, in the packed form for matrices of this role.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn load_matrix(
        &mut self,
        matrix: &HostMatrix<'_>,
        role: MatrixRole,
    ) -> Result<Self::Matrix, BackendError>;
    /// Makes a weight matrix of random numbers, packed as [`Self::load_matrix`] would.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn random_matrix(
        &mut self,
        matrix: &RandomMatrix,
        role: MatrixRole,
    ) -> Result<Self::Matrix, BackendError> {
        self.load_matrix(&matrix.host(&matrix.numbers()?), role)
    }
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
    /// Allocates room for batches within `limits`, one at a time.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn inputs(&mut self, limits: &InputLimits) -> Result<Self::Inputs, BackendError>;
    /// Returns the bytes that a matrix takes on the device.
    fn matrix_bytes(&self, matrix: &Self::Matrix) -> usize;
    /// Names the packed form of matrices of `role`, version included; `None` if matrices cannot
    /// be saved. Matrices of equal name, shape and content have equal bytes.
    fn matrix_format(&self, _: MatrixRole) -> Option<String> {
        None
    }
    /// Returns the packed form, for [`Self::restore_matrix`]; empty if there is no format.
    fn matrix_data<'m>(&self, _: &'m Self::Matrix) -> &'m [u8] {
        &[]
    }
    /// Makes a matrix `[rows, cols]` from its packed form. `fill(offset, part)` writes bytes
    /// from `offset` on, into zeros. Several threads call it, once for every `unit` bytes; the
    /// last part may be shorter.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`]; [`BackendError::Unsupported`] without a format.
    fn restore_matrix(
        &mut self,
        rows: usize,
        cols: usize,
        role: MatrixRole,
        unit: usize,
        fill: &(dyn Fn(usize, &mut [u8]) + Sync),
    ) -> Result<Self::Matrix, BackendError> {
        let _ = (rows, cols, role, unit, fill);
        let remedy = "this backend's matrices cannot be restored; leave --weight-cache out";
        Err(BackendError::Unsupported(remedy.into()))
    }
}
