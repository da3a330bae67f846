//! The tensors of a block, each said once.
//!
//! A block is a struct of matrices and vectors in some [`Form`]: listed from the model's
//! sizes alone ([`Listed`]), found in a checkpoint ([`crate::checkpoint::weights::Found`]), or on a
//! device (every [`Backend`] is a form). It lists them once, and from the list follow what
//! is read and packed, what a device is charged for, and how many parameters there are.

use std::{convert::Infallible, ops::Range};

use lockstep_backend::{Backend, MatrixRole, MatrixShape};

/// What the tensors of a block are, at one stage between model and device.
pub(crate) trait Form {
    /// A matrix.
    type Matrix;
    /// A vector.
    type Vector;
}

/// Tensors on a device.
impl<B: Backend> Form for B {
    type Matrix = B::Matrix;
    type Vector = B::Vector;
}

/// Tensors by name, shape and this rank's part. No file and no device is there yet.
#[derive(Debug)]
pub(crate) enum Listed {}

impl Form for Listed {
    type Matrix = MatrixPart;
    type Vector = VectorPart;
}

/// One rank's part of a matrix `[out, in]`: some rows and columns of one tensor, or of several,
/// one below the other.
///
/// Example: queries, keys and values of rank 1 of 2, with 8 heads of 64 over 4 of keys and
/// values, are the rows 256..512 of `q_proj` and the rows 128..256 of `k_proj` and of `v_proj`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MatrixPart {
    /// From top to bottom.
    pub tensors: Vec<TensorRows>,
    /// Columns of each tensor in the checkpoint.
    pub width: usize,
    /// The columns that this rank takes.
    pub columns: Range<usize>,
    /// What it is read for.
    pub role: MatrixRole,
}

/// One rank's part of a vector: elements of one tensor, or of several, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VectorPart {
    /// From first to last.
    pub tensors: Vec<TensorRows>,
}

/// The rows of one tensor that a rank takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TensorRows {
    /// Its name in the checkpoint.
    pub name: String,
    /// All of its rows there.
    pub rows: usize,
    /// Those that are taken, in order. A row may be taken more than once.
    pub taken: Vec<Range<usize>>,
}

impl MatrixPart {
    /// All of the table of tokens `name`, `[rows, width]`.
    pub fn table(name: &str, rows: usize, width: usize) -> Self {
        Self::table_rows(name, rows, width, 0..rows)
    }

    /// The rows `taken` of the table of tokens `name`, `[rows, width]`.
    pub fn table_rows(name: &str, rows: usize, width: usize, taken: Range<usize>) -> Self {
        Self {
            tensors: vec![TensorRows {
                name: name.to_owned(),
                rows,
                taken: vec![taken],
            }],
            width,
            columns: 0..width,
            role: MatrixRole::Vocabulary,
        }
    }

    /// Its shape on this rank.
    pub fn shape(&self) -> MatrixShape {
        MatrixShape {
            rows: taken(&self.tensors),
            cols: self.columns.len(),
            role: self.role,
        }
    }
}

impl VectorPart {
    /// All `len` elements of the vector `name`.
    pub fn whole(name: String, len: usize) -> Self {
        Self {
            tensors: vec![TensorRows {
                name,
                rows: len,
                taken: vec![Range { start: 0, end: len }],
            }],
        }
    }

    /// Elements on this rank.
    pub fn len(&self) -> usize {
        taken(&self.tensors)
    }
}

fn taken(tensors: &[TensorRows]) -> usize {
    let ranges = tensors.iter().flat_map(|tensor| &tensor.taken);
    ranges.map(Range::len).sum()
}

/// The way of single tensors from the form `F` to another.
pub(crate) trait Convert<F: Form> {
    /// The other form.
    type To: Form;
    /// Why it can't be had.
    type Error;

    /// Converts a matrix.
    fn matrix(&mut self, part: &F::Matrix) -> Result<<Self::To as Form>::Matrix, Self::Error>;

    /// Converts a vector.
    fn vector(&mut self, part: &F::Vector) -> Result<<Self::To as Form>::Vector, Self::Error>;

    /// Converts a matrix that not all models have.
    fn optional_matrix(
        &mut self,
        part: Option<&F::Matrix>,
    ) -> Result<Option<<Self::To as Form>::Matrix>, Self::Error> {
        part.map(|part| self.matrix(part)).transpose()
    }

    /// Converts a vector that not all models have.
    fn optional(
        &mut self,
        part: Option<&F::Vector>,
    ) -> Result<Option<<Self::To as Form>::Vector>, Self::Error> {
        part.map(|part| self.vector(part)).transpose()
    }
}

/// What has tensors in the form `F`: a block, a layer or a model.
pub(crate) trait Tensors<F: Form> {
    /// The same with tensors in the form `T`.
    type In<T: Form>;

    /// Converts all tensors, in the order that packed files have.
    ///
    /// # Errors
    /// What the first tensor says that can't be converted.
    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<Self::In<C::To>, C::Error>;

    /// Shows all tensors, in the same order.
    fn each(&self, matrix: impl FnMut(&F::Matrix), vector: impl FnMut(&F::Vector)) {
        let Ok(_) = self.convert(&mut Shown { matrix, vector });
    }
}

impl<F: Form, T: Tensors<F>> Tensors<F> for Option<T> {
    type In<G: Form> = Option<T::In<G>>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<Self::In<C::To>, C::Error> {
        self.as_ref().map(|part| part.convert(to)).transpose()
    }
}

impl<F: Form, T: Tensors<F>> Tensors<F> for Vec<T> {
    type In<G: Form> = Vec<T::In<G>>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<Self::In<C::To>, C::Error> {
        self.iter().map(|each| each.convert(to)).collect()
    }
}

/// Shows tensors to two closures.
struct Shown<M, V> {
    matrix: M,
    vector: V,
}

/// What is left of tensors that were only shown.
enum Nothing {}

impl Form for Nothing {
    type Matrix = ();
    type Vector = ();
}

impl<F: Form, M: FnMut(&F::Matrix), V: FnMut(&F::Vector)> Convert<F> for Shown<M, V> {
    type To = Nothing;
    type Error = Infallible;

    fn matrix(&mut self, part: &F::Matrix) -> Result<(), Infallible> {
        (self.matrix)(part);
        Ok(())
    }

    fn vector(&mut self, part: &F::Vector) -> Result<(), Infallible> {
        (self.vector)(part);
        Ok(())
    }
}
