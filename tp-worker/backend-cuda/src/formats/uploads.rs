//! Weights on their way to the device, through pinned memory.

use std::sync::Arc;

use half::{bf16, f16};
use lockstep_backend::{CheckpointDtype, HostFloats, HostForm};

use crate::error::CudaError;
use crate::ops::MOST_EXPERT_COLUMNS;
use crate::runtime::{Buffer, Context, Staged, Stream};
use crate::tensors::{Element, Floats};

/// Bytes that are copied at a time.
const PIECE: usize = 4 << 20;
const _: () = assert!(
    MOST_EXPERT_COLUMNS <= PIECE / 4,
    "a row of 32-bit floats, made by itself, fits in a piece"
);

/// Uploads matrices through two pieces of pinned memory: the host fills one while the other is
/// copied.
pub(super) struct Uploads {
    pieces: [Piece; 2],
    turn: usize,
}

struct Piece {
    bytes: Staged<u8>,
    /// Number of filled bytes.
    len: usize,
}

impl Uploads {
    /// Allocates the pinned memory.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Driver`].
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        let piece = || -> Result<Piece, CudaError> {
            Ok(Piece {
                bytes: Staged::new(context, PIECE, "weights on their way")?,
                len: 0,
            })
        };
        Ok(Self {
            pieces: [piece()?, piece()?],
            turn: 0,
        })
    }

    /// Queues copies of all rows of `matrix`, rounded to `to`'s type, one behind the other. The
    /// matrix is not needed after the call.
    ///
    /// # Errors
    /// [`CudaError::Driver`]; [`CudaError::Unsupported`] if rows lie outside of the matrix's
    /// file.
    ///
    /// # Panics
    /// Panics if `to` is not as large as the matrix.
    pub(super) fn floats(
        &mut self,
        stream: &Stream,
        matrix: &HostFloats<'_>,
        to: &mut Floats,
    ) -> Result<(), CudaError> {
        let (rows, element) = (matrix.rows(), to.element());
        assert!(rows * matrix.cols == to.len(), "a matrix has its room");
        // A load that ended early may have left bytes here.
        self.pieces[self.turn].len = 0;
        let (mut at, to) = (0, to.memory());
        for number in 0..rows {
            let mut rest = matrix.row(number).ok_or_else(|| missing(number))?;
            while !rest.is_empty() {
                let piece = &mut self.pieces[self.turn];
                rest = piece.fill(rest, matrix.dtype, element)?;
                if piece.len == PIECE {
                    at += self.send(stream, to, at)?;
                }
            }
        }
        self.send(stream, to, at)?;
        Ok(())
    }

    /// Queues copies of `rows` rows of `width` bytes each, which `fill` writes, to `to` from byte
    /// `at` on. Rows are zero before.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if `to` has no room for the rows, or a row has more than [`PIECE`] bytes, which one of
    /// at most [`MOST_EXPERT_COLUMNS`] columns has not.
    pub(super) fn rows(
        &mut self,
        stream: &Stream,
        to: &mut Buffer<u8>,
        at: usize,
        (rows, width): (usize, usize),
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<(), CudaError> {
        let each = PIECE / width.max(1);
        assert!(each > 0, "rows of {width} bytes fit in a piece");
        for first in (0..rows).step_by(each) {
            let piece = &mut self.pieces[self.turn];
            let taken = each.min(rows - first);
            let bytes = &mut piece.bytes.elements()?[..taken * width];
            bytes.fill(0);
            for (number, row) in (first..).zip(bytes.chunks_exact_mut(width.max(1))) {
                fill(number, row);
            }
            piece.len = bytes.len();
            self.send(stream, to, at + first * width)?;
        }
        Ok(())
    }

    /// Queues the copy of the filled bytes, and returns their number.
    fn send(
        &mut self,
        stream: &Stream,
        to: &mut Buffer<u8>,
        at: usize,
    ) -> Result<usize, CudaError> {
        let piece = &mut self.pieces[self.turn];
        let len = std::mem::take(&mut piece.len);
        if len > 0 {
            piece.bytes.send(stream, 0..len, to, at)?;
            self.turn = (self.turn + 1) % self.pieces.len();
        }
        Ok(len)
    }
}

/// The error for a row that its file does not hold.
pub(super) fn missing(row: usize) -> CudaError {
    CudaError::Unsupported(format!(
        "row {row} of a weight matrix lies outside of its file: copy or download the model again"
    ))
}

impl Piece {
    /// Takes as many elements of `from` as there is room for; returns the rest.
    fn fill<'a>(
        &mut self,
        from: &'a [u8],
        dtype: CheckpointDtype,
        element: Element,
    ) -> Result<&'a [u8], CudaError> {
        let to = &mut self.bytes.elements()?[self.len..];
        let count = (from.len() / dtype.bytes()).min(to.len() / element.bytes());
        let (taken, others) = from.split_at(count * dtype.bytes());
        let to = &mut to[..count * element.bytes()];
        match (dtype, element) {
            (CheckpointDtype::F32, Element::F32) | (CheckpointDtype::Bf16, Element::Bf16) => {
                to.copy_from_slice(taken);
            }
            (CheckpointDtype::F32, _) => {
                let values = taken.as_chunks::<4>().0.iter();
                write(values.map(|bytes| f32::from_le_bytes(*bytes)), element, to);
            }
            (CheckpointDtype::Bf16, _) => {
                let values = taken.as_chunks::<2>().0.iter();
                write(
                    values.map(|bytes| bf16::from_le_bytes(*bytes).to_f32()),
                    element,
                    to,
                );
            }
            (CheckpointDtype::F16, _) => {
                let values = taken.as_chunks::<2>().0.iter();
                write(
                    values.map(|bytes| f16::from_le_bytes(*bytes).to_f32()),
                    element,
                    to,
                );
            }
        }
        self.len += to.len();
        Ok(others)
    }
}

/// Writes values as `element`, in little-endian order as on every GPU.
pub(super) fn write(values: impl Iterator<Item = f32>, element: Element, to: &mut [u8]) {
    match element {
        Element::F32 => {
            let to = to.as_chunks_mut::<4>().0;
            to.iter_mut()
                .zip(values)
                .for_each(|(to, value)| *to = value.to_le_bytes());
        }
        Element::Bf16 => {
            let to = to.as_chunks_mut::<2>().0;
            to.iter_mut()
                .zip(values)
                .for_each(|(to, value)| *to = bf16::from_f32(value).to_le_bytes());
        }
    }
}
