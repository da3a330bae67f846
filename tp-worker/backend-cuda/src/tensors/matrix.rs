//! Weight matrices, and the forms that they have on the device.

use std::sync::OnceLock;

use crate::error::CudaError;
use crate::runtime::{Buffer, Stream};
use crate::tensors::Floats;

/// Form of a weight matrix on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MatrixForm {
    /// Floats of the operands' type, row-major.
    Floats,
    /// 32-bit floats, which are multiplied without rounding, whatever the operands' type.
    Router,
    /// 4-bit floats with exponents, as `mxfp4.cuh` has them.
    Mxfp4,
}

/// A weight matrix `[rows, cols]`.
pub struct CudaMatrix {
    pub(crate) form: MatrixForm,
    memory: MatrixMemory,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// Addresses of the matrices, of all experts or heads, of which this is the first.
    list: OnceLock<Buffer<u64>>,
}

/// Memory of a matrix.
enum MatrixMemory {
    Floats(Floats),
    Packed(Buffer<u8>),
}

impl CudaMatrix {
    /// Makes a matrix of its values.
    pub(crate) fn new(floats: Floats, rows: usize, cols: usize, is_router: bool) -> Self {
        Self {
            form: match is_router {
                true => MatrixForm::Router,
                false => MatrixForm::Floats,
            },
            memory: MatrixMemory::Floats(floats),
            rows,
            cols,
            list: OnceLock::new(),
        }
    }

    /// Makes a matrix in [`MatrixForm::Mxfp4`].
    pub(crate) fn mxfp4(packed: Buffer<u8>, rows: usize, cols: usize) -> Self {
        Self {
            form: MatrixForm::Mxfp4,
            memory: MatrixMemory::Packed(packed),
            rows,
            cols,
            list: OnceLock::new(),
        }
    }

    /// Returns the matrix's floats.
    ///
    /// # Panics
    /// Panics if the matrix is packed: those of experts alone are, and experts read addresses.
    pub(crate) fn floats(&self) -> &Floats {
        match &self.memory {
            MatrixMemory::Floats(floats) => floats,
            MatrixMemory::Packed(_) => panic!("only matrices of experts are packed"),
        }
    }

    fn address(&self) -> u64 {
        match &self.memory {
            MatrixMemory::Floats(floats) => floats.address(),
            MatrixMemory::Packed(packed) => packed.address(),
        }
    }

    /// Address of a list, on the device, of the addresses of `matrices`. The first call brings the
    /// list there, for as long as the first matrix lives. So it must not come while a graph is
    /// recorded, and it does not, since every pass runs once before.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if there is no matrix, if shapes differ, or if the first one began another list.
    pub(crate) fn addresses(stream: &Stream, matrices: &[Self]) -> Result<u64, CudaError> {
        let first = &matrices[0];
        let list = match first.list.get() {
            Some(list) => list,
            None => {
                let shape = |one: &Self| (one.rows, one.cols, one.form);
                let alike = |one: &Self| shape(one) == shape(first);
                assert!(
                    matrices.iter().all(alike),
                    "matrices of a list have one shape and form"
                );
                let addresses: Vec<u64> = matrices.iter().map(Self::address).collect();
                let context = stream.context();
                let mut list = Buffer::new(context, addresses.len(), "addresses of matrices")?;
                stream.upload_to_stay(&addresses, &mut list)?;
                first.list.get_or_init(|| list)
            }
        };
        assert!(list.len() == matrices.len(), "a matrix begins one list");
        Ok(list.address())
    }

    /// Bytes on the device.
    pub(crate) fn bytes(&self) -> usize {
        match &self.memory {
            MatrixMemory::Floats(floats) => floats.len() * floats.element().bytes(),
            MatrixMemory::Packed(packed) => packed.len(),
        }
    }
}
