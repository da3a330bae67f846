//! Copies of rows and columns, with conversion between types.

use super::parameters::CopyRows;
use super::{RowwiseOps, grid};
use crate::error::CudaError;
use crate::ops::{Indices, IndicesParameter};
use crate::runtime::{Kernel, Stream};
use crate::tensors::{Element, Floats, Rows};

impl RowwiseOps {
    /// `out[i] = x[i]`, both `[rows, width]`, converted to `out`'s type.
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
        self.gather_rows(stream, x, width, None, rows, out)
    }

    /// `out[i] = x[rows[i]]`, both of `width`, converted to `out`'s type; without
    /// indices `out[i] = x[i]`.
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
            ..Layout::whole(width)
        };
        // SAFETY: there are as many indices as rows.
        unsafe { self.copy(stream, x, &layout, rows, out) }
    }

    /// `out[i] = x[first + i]`, both of `width`, converted to `out`'s type.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn take_rows(
        &self,
        stream: &Stream,
        x: &Floats,
        width: usize,
        first: usize,
        rows: Rows<'_>,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        let end = first + rows.most();
        assert!(end * width <= x.len(), "rows lie within the tensor");
        let layout = Layout {
            x_row: first,
            ..Layout::whole(width)
        };
        // SAFETY: rows are taken in turn.
        unsafe { self.copy(stream, x, &layout, rows, out) }
    }

    /// `out[to[i]] = x[from[i]]`, both of `width`, converted to `out`'s type. Other rows of
    /// `out` stay. No row may be named twice in `to`.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    #[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
    pub fn copy_rows(
        &self,
        stream: &Stream,
        x: &Floats,
        from: Indices<'_>,
        width: usize,
        rows: Rows<'_>,
        out: &mut Floats,
        to: Indices<'_>,
    ) -> Result<(), CudaError> {
        let enough = rows.most() <= from.room().min(to.room());
        assert!(enough, "every row copied has a source and a target");
        let layout = Layout {
            from: from.parameter(),
            to: to.parameter(),
            ..Layout::whole(width)
        };
        // SAFETY: there are as many indices as rows.
        unsafe { self.copy(stream, x, &layout, rows, out) }
    }

    /// `out[i, first..first + width] = x[i]`, converted to `out`'s type. `x` is
    /// `[rows, width]`, `out` is `[rows, out_width]`.
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
            out_width,
            first,
            ..Layout::whole(width)
        };
        // SAFETY: rows are taken in turn.
        unsafe { self.copy(stream, x, &layout, rows, out) }
    }

    /// `out[i] = x[i, first..first + width]`, converted to `out`'s type. `x` is
    /// `[rows, x_width]`, `out` is `[rows, width]`.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    #[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
    pub fn take_columns(
        &self,
        stream: &Stream,
        x: &Floats,
        x_width: usize,
        first: usize,
        rows: Rows<'_>,
        out: &mut Floats,
        width: usize,
    ) -> Result<(), CudaError> {
        assert!(first + width <= x_width, "columns lie within the tensor");
        let layout = Layout {
            x_width,
            x_first: first,
            ..Layout::whole(width)
        };
        // SAFETY: rows are taken in turn.
        unsafe { self.copy(stream, x, &layout, rows, out) }
    }

    /// # Safety
    /// Lists of indices are as long as the number of rows.
    unsafe fn copy(
        &self,
        stream: &Stream,
        x: &Floats,
        layout: &Layout,
        rows: Rows<'_>,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        let Layout {
            from,
            to,
            width,
            x_width,
            x_row,
            x_first,
            out_width,
            first,
        } = *layout;
        if width == 0 {
            return Ok(());
        }
        let elements = [width, x_width, x_first, out_width, first];
        let (kernel, units) = self.copier(x.element(), out.element(), elements);
        let [width_units, x_units, _, out_units, first_units] = units.map(|units| units as u32);
        let parameters = CopyRows {
            x: x.address() + ((x_row * x_width + x_first) * x.element().bytes()) as u64,
            out: out.address(),
            from,
            to,
            rows: rows.parameter(),
            units: width_units,
            x_stride: x_units,
            out_stride: out_units,
            first: first_units,
            x_rows: (x.len() / x_width - x_row) as u32,
            out_rows: (out.len() / out_width) as u32,
        };
        let grid = grid(rows.most(), units[0]);
        // SAFETY: the kernel is the one for these types; indices past the rows of `x` and `out`
        // are skipped, and columns lie within those of both.
        unsafe { kernel.launch(stream, grid, &parameters) }
    }

    /// The kernel that copies rows from one type to another, and `elements` counted in its
    /// units. The unit is the largest that divides all numbers.
    fn copier(
        &self,
        from: Element,
        to: Element,
        elements: [usize; 5],
    ) -> (&Kernel<CopyRows>, [usize; 5]) {
        let bytes = elements.map(|elements| elements * from.bytes());
        let fits = |unit: usize| bytes.iter().all(|bytes| bytes.is_multiple_of(unit));
        match (from, to) {
            (Element::F32, Element::Bf16) => (&self.rows_to_bf16, elements),
            (Element::Bf16, Element::F32) => (&self.rows_to_f32, elements),
            _ if fits(16) => (&self.copy_rows_16, bytes.map(|bytes| bytes / 16)),
            _ if fits(4) => (&self.copy_rows_4, bytes.map(|bytes| bytes / 4)),
            _ => (&self.copy_rows_2, bytes.map(|bytes| bytes / 2)),
        }
    }
}

/// Rows that are copied, counted from `x_row` on: `width` columns from `x_first` on, to those from
/// `first` on.
struct Layout {
    from: IndicesParameter,
    to: IndicesParameter,
    width: usize,
    x_width: usize,
    x_row: usize,
    x_first: usize,
    out_width: usize,
    first: usize,
}

impl Layout {
    /// All rows in turn, with all of their `width` columns.
    fn whole(width: usize) -> Self {
        Self {
            from: IndicesParameter::ALL,
            to: IndicesParameter::ALL,
            width,
            x_width: width,
            x_row: 0,
            x_first: 0,
            out_width: width,
            first: 0,
        }
    }
}
