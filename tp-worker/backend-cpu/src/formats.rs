//! Formats of weights, in the order in which kernels read them. Each format is a file that
//! says everything about it. Tiles of kernels are in [`crate::gemm`].

mod float;
mod fp8;
mod groups;
mod int4;
mod int8;
mod matrix;
mod mxfp4;
mod saved;
mod step;

use lockstep_backend::{HostMatrix, WeightFormat};
use lockstep_types::Dtype;

use crate::gemm::{InputGroups, Layout, Tiles, Widening};
use crate::isa::Isa;

#[cfg(test)]
pub(crate) use groups::{all as all_groups, layout as groups_layout};
pub use matrix::CpuMatrix;
pub(crate) use matrix::words;

/// Returns the packed form of matrices in `format`, for products that compute in `dtype`.
pub(crate) fn of(dtype: Dtype, format: WeightFormat) -> &'static dyn Format {
    match format {
        WeightFormat::Float => float::of(dtype),
        WeightFormat::Float32 => float::of(Dtype::Float32),
        WeightFormat::Int8 => &int8::Int8,
        WeightFormat::Int4 => &int4::Int4,
        WeightFormat::Fp8 { group } => fp8::of(dtype, group),
        WeightFormat::Mxfp4 => mxfp4::of(dtype),
        WeightFormat::Groups(format) => groups::of(format),
    }
}

/// Packed form of weight matrices: panels of 32 columns, which kernels read in steps. Products
/// ask once for each matrix; the loops over its elements are compiled for each format.
pub(crate) trait Format: Sync {
    /// Name in the keys of packed files.
    fn name(&self) -> &str;

    /// Name for people; `None` for values of the type that products compute in.
    fn title(&self) -> Option<&'static str>;

    /// Name of the instructions that multiply such matrices, for people.
    fn instructions(&self, isa: Isa) -> &'static str;

    /// Steps of a row of `k` values.
    fn steps(&self, k: usize) -> usize;

    /// 4-byte words of one step of a panel.
    fn step_words(&self) -> usize;

    /// Factors of a column in a step, where the product's tiles ask for their number.
    fn scales(&self) -> usize {
        1
    }

    /// Layout of a step, where the product's tiles ask for it.
    fn layout(&self) -> &Layout {
        &Layout::NONE
    }

    /// Packs panel `panel` of `matrix` into zeros.
    fn pack_panel(&self, isa: Isa, matrix: &HostMatrix<'_>, panel: usize, out: &mut [u32]);

    /// Copies column `lane` of `panel` to `out`.
    fn read_row(&self, panel: &[u32], lane: usize, out: &mut [f32]);

    /// The tiles that multiply `rows` rows by such a matrix on a machine.
    fn tiles(&self, isa: Isa, rows: usize) -> &'static Tiles;

    /// The way in which slices are widened for many rows; `None` if they never are.
    fn widening(&self, isa: Isa) -> Option<&Widening>;

    /// The panels and rows that share a pass over the weights.
    fn groups(&self) -> &'static InputGroups;

    /// Words as which a step counts where panels are cut into slices.
    fn slice_words(&self, isa: Isa, widened: bool) -> usize {
        match self.widening(isa).filter(|_| widened) {
            Some(widening) => widening.step_words,
            None => self.step_words(),
        }
    }
}
