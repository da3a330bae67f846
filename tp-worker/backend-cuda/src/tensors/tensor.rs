//! Activations.

use std::sync::Arc;

use crate::error::CudaError;
use crate::runtime::Context;
use crate::tensors::{Element, Floats};

/// Activations `[rows, width]`, row-major, with room for more rows.
pub struct CudaTensor {
    pub(crate) floats: Floats,
    rows: usize,
    capacity: usize,
    width: usize,
}

impl CudaTensor {
    /// Allocates room for `capacity` rows. Their contents are unspecified.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub(crate) fn new(
        context: &Arc<Context>,
        element: Element,
        capacity: usize,
        width: usize,
    ) -> Result<Self, CudaError> {
        let len = capacity.saturating_mul(width);
        Ok(Self {
            floats: Floats::new(context, element, len, "activations")?,
            rows: capacity,
            capacity,
            width,
        })
    }

    /// Number of current rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Type of the values.
    pub fn element(&self) -> Element {
        self.floats.element()
    }

    /// Number of rows that there is room for.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// # Panics
    /// Panics if there is no room for as many rows.
    pub(crate) fn set_rows(&mut self, rows: usize) {
        assert!(
            rows <= self.capacity,
            "{rows} rows do not fit into {}",
            self.capacity
        );
        self.rows = rows;
    }

    /// # Panics
    /// Unless the tensor is `[rows, width]`. Models size their tensors, so another size is a
    /// bug in a model.
    pub(crate) fn expect(&self, rows: usize, width: usize, what: &str) {
        assert!(
            (self.rows, self.width) == (rows, width),
            "{what} is {} x {}, expected {rows} x {width}",
            self.rows,
            self.width
        );
    }
}
