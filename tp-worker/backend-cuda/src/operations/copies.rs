//! Rows and columns that move, and change their type.

use super::parameters::{Cast, CopyRows};
use super::{Operations, grid};
use crate::error::CudaError;
use crate::floats::{Element, Floats};
use crate::indices::{Indices, IndicesParameter};
use crate::memory::Buffer;
use crate::rows::Rows;
use crate::stream::Stream;

impl Operations {
    /// `out[i] = x[i]` in `out`'s type, rounded to the nearest; both `[rows, width]`.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn cast(
        &self,
        stream: &Stream,
        x: &Floats,
        width: usize,
        rows: Rows<'_>,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        let most = rows.most();
        x.expect(x.element(), most * width, "what is cast");
        out.expect(out.element(), most * width, "what it is cast to");
        let kernel = match (x.element(), out.element()) {
            (Element::F32, Element::Bf16) => &self.cast_to_bf16,
            (Element::Bf16, Element::F32) => &self.cast_to_f32,
            _ => return self.gather_rows(stream, x, width, None, rows, out),
        };
        let parameters = Cast {
            x: x.address(),
            out: out.address(),
            rows: rows.parameter(),
            width: width as u32,
            pad: 0,
        };
        // SAFETY: both have room for `most` rows, and the types that the kernel
        // casts between.
        unsafe { kernel.launch(stream, grid(most, width), &parameters) }
    }

    /// `out[i] = x[rows[i]]`, both of one type and `width`; without indices
    /// `out[i] = x[i]`.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn gather_rows(
        &self,
        stream: &Stream,
        x: &Floats,
        width: usize,
        indices: Option<Indices<'_>>,
        rows: Rows<'_>,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        let room = indices.map_or(usize::MAX, |indices| indices.room());
        assert!(rows.most() <= room, "every gathered row has an index");
        let from = indices.map_or(IndicesParameter::ALL, |indices| indices.parameter());
        let layout = Layout {
            from,
            to: IndicesParameter::ALL,
            width,
            out_width: width,
            first: 0,
        };
        // SAFETY: there are as many indices as rows.
        unsafe { self.copy(stream, x, &layout, rows, out) }
    }

    /// `out[to[i]] = x[from[i]]`, both of one type and `width`; other rows of
    /// `out` stay. No row is a target twice.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    #[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
    pub fn copy_rows(
        &self,
        stream: &Stream,
        x: &Floats,
        from: &Buffer<u32>,
        width: usize,
        rows: Rows<'_>,
        out: &mut Floats,
        to: &Buffer<u32>,
    ) -> Result<(), CudaError> {
        let enough = rows.most() <= from.len().min(to.len());
        assert!(enough, "every row copied has a source and a target");
        let layout = Layout {
            from: Indices::List(from).parameter(),
            to: Indices::List(to).parameter(),
            width,
            out_width: width,
            first: 0,
        };
        // SAFETY: there are as many indices as rows.
        unsafe { self.copy(stream, x, &layout, rows, out) }
    }

    /// `out[i, first..first + width] = x[i]`: `x` is `[rows, width]`, `out`
    /// `[rows, out_width]` of the same type.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    #[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
    pub fn place_columns(
        &self,
        stream: &Stream,
        x: &Floats,
        width: usize,
        rows: Rows<'_>,
        out: &mut Floats,
        out_width: usize,
        first: usize,
    ) -> Result<(), CudaError> {
        assert!(first + width <= out_width, "columns lie within the tensor");
        let layout = Layout {
            from: IndicesParameter::ALL,
            to: IndicesParameter::ALL,
            width,
            out_width,
            first,
        };
        // SAFETY: rows are taken in turn.
        unsafe { self.copy(stream, x, &layout, rows, out) }
    }

    /// # Safety
    /// Lists of indices are as long as there are rows.
    unsafe fn copy(
        &self,
        stream: &Stream,
        x: &Floats,
        layout: &Layout,
        rows: Rows<'_>,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        let element = x.element();
        out.expect(element, 0, "what rows are copied to");
        let (x_rows, out_rows) = (x.len() / layout.width, out.len() / layout.out_width);
        let bytes = [layout.width, layout.out_width, layout.first].map(|n| n * element.bytes());
        let fits = |unit: usize| bytes.iter().all(|bytes| bytes.is_multiple_of(unit));
        let mut kernels = self.copy_rows.iter();
        let (unit, kernel) = kernels
            .find(|(unit, _)| fits(*unit))
            .unwrap_or(&self.copy_rows[2]);
        let [width, out_width, first] = bytes.map(|bytes| (bytes / unit) as u32);
        let parameters = CopyRows {
            x: x.address(),
            out: out.address() + u64::from(first) * *unit as u64,
            from: layout.from,
            to: layout.to,
            rows: rows.parameter(),
            units: width,
            x_stride: width,
            out_stride: out_width,
            x_rows: x_rows as u32,
            out_rows: out_rows as u32,
            pad: 0,
        };
        let grid = grid(rows.most(), width as usize);
        // SAFETY: indices past the rows of `x` and `out` are left out.
        unsafe { kernel.launch(stream, grid, &parameters) }
    }
}

/// Which rows are copied, and to which columns.
struct Layout {
    from: IndicesParameter,
    to: IndicesParameter,
    width: usize,
    out_width: usize,
    first: usize,
}
