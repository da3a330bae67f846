//! Activations and weight matrices.

use std::sync::{Arc, OnceLock};

use crate::error::CudaError;
use crate::runtime::{Buffer, Context, Stream};
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

/// A weight matrix `[rows, cols]`, row-major, in the operands' type, or of a router in 32-bit
/// floats.
pub struct CudaMatrix {
    pub(crate) floats: Floats,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// True for a matrix that is multiplied without rounding, whatever the operands' type.
    pub(crate) is_router: bool,
    /// Addresses of the matrices of all experts of which this is the first.
    list: OnceLock<Buffer<u64>>,
}

impl CudaMatrix {
    /// Makes a matrix of its values.
    pub(crate) fn new(floats: Floats, rows: usize, cols: usize, is_router: bool) -> Self {
        Self {
            floats,
            rows,
            cols,
            is_router,
            list: OnceLock::new(),
        }
    }

    /// Address of a list, on the device, of the addresses of `experts`. The first call brings the
    /// list there, for as long as the first matrix lives. So it must not come while a graph is
    /// recorded, and it does not, since every pass runs once before.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if there is no matrix, if shapes differ, or if the first one began another list.
    pub(crate) fn addresses(stream: &Stream, experts: &[Self]) -> Result<u64, CudaError> {
        let first = &experts[0];
        let list = match first.list.get() {
            Some(list) => list,
            None => {
                let alike = |one: &Self| (one.rows, one.cols) == (first.rows, first.cols);
                assert!(experts.iter().all(alike), "experts have one shape");
                let addresses: Vec<u64> = experts.iter().map(|one| one.floats.address()).collect();
                let context = stream.context();
                let mut list = Buffer::new(context, addresses.len(), "addresses of experts")?;
                stream.upload_to_stay(&addresses, &mut list)?;
                first.list.get_or_init(|| list)
            }
        };
        assert!(list.len() == experts.len(), "experts have one list");
        Ok(list.address())
    }

    /// Bytes on the device.
    pub(crate) fn bytes(&self) -> usize {
        self.floats.len() * self.floats.element().bytes()
    }
}
