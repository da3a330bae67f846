//! RMS norms over groups of columns, of which a rank may have a part. Kernels are compiled when a
//! model first asks for them.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use lockstep_backend::{ColumnGroups, RmsNorm};

use crate::error::CudaError;
use crate::kernels::{self, Source};
use crate::runtime::{Buffer, Compiler, Context, Defines, Kernel, Module, Stream};
use crate::tensors::{Element, Floats, Rows, RowsParameter, blocks};

/// Threads of a block.
const THREADS: u32 = 256;

/// Parameters of `groups.cu`, as all structures behind this one are. Addresses are the device's.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Groups {
    columns: u32,
    first: u32,
    count: u32,
    width: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct GroupSquares {
    x: u64,
    sums: u64,
    rows: RowsParameter,
    groups: Groups,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct GroupNorm {
    x: u64,
    sums: u64,
    weight: u64,
    out: u64,
    rows: RowsParameter,
    groups: Groups,
    eps: f32,
    pad: u32,
}

/// Norms over groups of columns.
///
/// # Panics
/// Operations panic where arrays are too short or of another type.
pub(crate) struct GroupOps {
    operand: Element,
    squares: Kernel<GroupSquares>,
    norm: Kernel<GroupNorm>,
}

impl GroupOps {
    /// Compiles and loads the kernels.
    ///
    /// # Errors
    /// The errors of [`Compiler::compile`] and [`Module::load`].
    pub fn new(
        context: &Arc<Context>,
        compiler: &Compiler,
        operand: Element,
    ) -> Result<Self, CudaError> {
        let (source, defines) = source(operand);
        let module = Module::load(context, &compiler.compile(source, &defines)?)?;
        Ok(Self {
            operand,
            squares: module.kernel("group_squares", THREADS, 0)?,
            norm: module.kernel("group_norm", THREADS, 0)?,
        })
    }

    /// Sums the squares of each group: see [`lockstep_backend::Ops::group_square_sums`].
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn squares(
        &self,
        stream: &Stream,
        (x, columns): (&Floats, usize),
        groups: &ColumnGroups,
        rows: Rows<'_>,
        sums: &mut Floats,
    ) -> Result<(), CudaError> {
        let most = rows.most();
        x.expect(Element::F32, most * columns, "columns of groups");
        sums.expect(Element::F32, most * groups.count, "sums of groups");
        let parameters = GroupSquares {
            x: x.address(),
            sums: sums.address(),
            rows: rows.parameter(),
            groups: groups_of(groups, columns),
        };
        let grid = [most as u32, groups.count as u32, 1];
        // SAFETY: both have room for `most` rows, and the sums are borrowed alone.
        unsafe { self.squares.launch(stream, grid, &parameters) }
    }

    /// Norms groups by their squares: see [`lockstep_backend::Ops::group_norm`].
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn norm(
        &self,
        stream: &Stream,
        [x, sums]: [&Floats; 2],
        groups: &ColumnGroups,
        norm: RmsNorm<'_, Buffer<f32>>,
        rows: Rows<'_>,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        let (most, columns) = (rows.most(), norm.weight.len());
        x.expect(Element::F32, most * columns, "columns of groups");
        sums.expect(Element::F32, most * groups.count, "sums of groups");
        out.expect(self.operand, most * columns, "the normed columns");
        let parameters = GroupNorm {
            x: x.address(),
            sums: sums.address(),
            weight: norm.weight.address(),
            out: out.address(),
            rows: rows.parameter(),
            groups: groups_of(groups, columns),
            eps: norm.eps,
            pad: 0,
        };
        let grid = [most as u32, blocks(columns, THREADS as usize), 1];
        // SAFETY: all have room for `most` rows, and the output is borrowed alone.
        unsafe { self.norm.launch(stream, grid, &parameters) }
    }
}

/// # Panics
/// Panics if the columns lie beyond the groups.
fn groups_of(groups: &ColumnGroups, columns: usize) -> Groups {
    let ColumnGroups {
        count,
        width,
        first,
    } = *groups;
    assert!(first + columns <= count * width, "columns lie in groups");
    Groups {
        columns: columns as u32,
        first: first as u32,
        count: count as u32,
        width: width as u32,
    }
}

/// Source to compile, with its macros.
pub(crate) fn source(operand: Element) -> (&'static Source, Defines) {
    let defines = vec![("OPERAND", operand.name().to_owned())];
    (&kernels::GROUPS, defines)
}
