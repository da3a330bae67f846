//! Activations and vectors.

use lockstep_backend::BackendError;

use crate::memory::Buffer;

/// Activations `[rows, width]`, row-major f32, with room for more rows.
pub struct CpuTensor {
    data: Buffer<f32>,
    rows: usize,
    capacity: usize,
    width: usize,
}

impl CpuTensor {
    pub(crate) fn new(capacity: usize, width: usize) -> Result<Self, BackendError> {
        const WHAT: &str = "activations";
        let len = capacity
            .checked_mul(width)
            .ok_or(BackendError::OutOfMemory {
                what: WHAT,
                bytes: usize::MAX,
            })?;
        Ok(Self {
            data: Buffer::zeroed(len, WHAT)?,
            rows: capacity,
            capacity,
            width,
        })
    }

    /// Current rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Values of the current rows.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.data[..self.rows * self.width]
    }

    /// Values of the current rows.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.data[..self.rows * self.width]
    }

    pub(crate) fn set_rows(&mut self, rows: usize) {
        assert!(
            rows <= self.capacity,
            "{rows} rows do not fit into {}",
            self.capacity
        );
        self.rows = rows;
    }

    /// Panics unless the tensor is `[rows, width]`. Models size their tensors, so a mismatch
    /// is a bug in a model.
    pub(crate) fn expect(&self, rows: usize, width: usize, what: &str) {
        assert!(
            (self.rows, self.width) == (rows, width),
            "{what} is {} x {}, expected {rows} x {width}",
            self.rows,
            self.width
        );
    }
}

/// A vector of f32.
pub struct CpuVector(pub(crate) Vec<f32>);
