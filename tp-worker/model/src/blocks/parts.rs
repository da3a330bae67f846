//! The tensors of a block, each listed once.
//!
//! A block is a struct of matrices and vectors in some [`Form`]: listed from the model's
//! sizes alone ([`Listed`]), found in a checkpoint ([`crate::checkpoint::found::Found`]),
//! or on a device (every [`Backend`] is a form). Each block lists its tensors once. The list
//! decides which tensors are read and packed, and how many bytes a device is charged for.

use std::{convert::Infallible, fmt, ops::Range};

use lockstep_backend::{Backend, MatrixRole, MatrixShape, WeightFormat};
use lockstep_types::{ModelConfig, ModuleForm, Mxfp4Checkpoint, NormKind};

/// Types of a block's tensors at one stage between model and device.
pub(crate) trait Form {
    /// Type of a matrix.
    type Matrix;
    /// Type of a vector.
    type Vector;
}

/// Tensors on a device.
impl<B: Backend> Form for B {
    type Matrix = B::Matrix;
    type Vector = B::Vector;
}

/// Tensors described by name, shape and this rank's part, before any file or device is used.
#[derive(Debug)]
pub(crate) enum Listed {}

impl Form for Listed {
    type Matrix = MatrixPart;
    type Vector = VectorPart;
}

/// One rank's part of a matrix `[out, in]`: some rows and columns of one tensor, or of
/// several, one below the other.
///
/// Example: a model has 8 heads of width 64 and 4 heads of keys and values. Rank 1 of 2 takes
/// the rows 256..512 of `q_proj`, and the rows 128..256 of `k_proj` and of `v_proj`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MatrixPart {
    /// The tensors, from top to bottom.
    pub tensors: Vec<TensorRows>,
    /// Number of columns of each tensor in the checkpoint.
    pub width: usize,
    /// The columns that this rank takes.
    pub columns: Range<usize>,
    /// Use of the matrix: a projection, or a table of tokens.
    pub role: MatrixRole,
}

/// One rank's part of a vector: elements of one tensor, or of several, one after the other.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct VectorPart {
    /// The tensors, from first to last.
    pub tensors: Vec<TensorRows>,
    /// True if the vector is read as one plus what is stored.
    pub plus_one: bool,
    /// Number of vectors of equal length that lie in each tensor, one behind the other.
    pub stack: usize,
    /// Number of ones behind the elements of tensors.
    pub ones: usize,
    /// Divisor of all elements.
    pub over: f32,
}

/// The rows of one tensor that a rank takes.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct TensorRows {
    /// Name of the tensor in the checkpoint.
    pub name: String,
    /// Number of rows of the whole tensor.
    pub rows: usize,
    /// Ranges of rows that the rank takes, in order. A row may be taken more than once.
    pub taken: Vec<Range<usize>>,
    /// Distance from one row that is taken of a range to the next; 1 takes each row.
    pub step: usize,
    /// Outputs of each matrix of a stack whose floats lie turned around: a row for each input of
    /// a matrix, and in it a value for each output. `None` for rows of outputs.
    pub turned: Option<usize>,
}

/// Names what is unusual only if it is: the keys of packed files are made of this.
impl fmt::Debug for TensorRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            rows,
            taken,
            step,
            turned,
        } = self;
        let mut shown = f.debug_struct("TensorRows");
        shown.field("name", name).field("rows", rows);
        shown.field("taken", taken);
        if *step != 1 {
            shown.field("step", step);
        }
        if let Some(outputs) = turned {
            shown.field("turned", outputs);
        }
        shown.finish()
    }
}

impl TensorRows {
    /// Lists each row of the ranges `taken` of the tensor `name`, which has `rows` rows.
    pub fn of(name: String, rows: usize, taken: Vec<Range<usize>>) -> Self {
        Self {
            name,
            rows,
            taken,
            step: 1,
            turned: None,
        }
    }

    /// Returns the number of rows that the rank takes.
    pub fn taken_rows(&self) -> usize {
        let ranges = self.taken.iter();
        ranges.map(|range| range.len().div_ceil(self.step)).sum()
    }
}

impl MatrixPart {
    /// Lists all rows of the table of tokens `name`, `[rows, width]`.
    pub fn table(name: &str, rows: usize, width: usize) -> Self {
        Self::table_rows(name, rows, width, 0..rows)
    }

    /// Lists the rows `taken` of the table of tokens `name`, `[rows, width]`.
    pub fn table_rows(name: &str, rows: usize, width: usize, taken: Range<usize>) -> Self {
        Self {
            tensors: vec![TensorRows::of(name.to_owned(), rows, vec![taken])],
            width,
            columns: 0..width,
            role: MatrixRole::Vocabulary,
        }
    }

    /// Lists all rows of the router `name` of a mixture of `count` experts, `[count, width]`.
    /// The name is without `.weight`.
    pub fn router(name: &str, count: usize, width: usize) -> Self {
        Self {
            role: MatrixRole::Router,
            ..Self::table(&format!("{name}.weight"), count, width)
        }
    }

    /// Lists rows of a tensor `[rows, width]` of projections, and of these the columns `columns`.
    /// The tensor may have more than two dimensions: the first ones count rows.
    pub fn stacked(tensor: TensorRows, width: usize, columns: Range<usize>) -> Self {
        Self {
            tensors: vec![tensor],
            width,
            columns,
            role: MatrixRole::Projection,
        }
    }

    /// Returns the number of elements on this rank.
    pub fn elements(&self) -> usize {
        taken(&self.tensors) * self.columns.len()
    }

    /// Returns the format of the matrix on a device, as a part of `model`. What the checkpoint
    /// holds rounded stays what it is, unless its scales change after too few inputs, or other
    /// rows of the matrix are of another form: then all are 32-bit floats, which change no value.
    /// Integers of several layouts have one that holds all of them.
    pub fn format(&self, model: &ModelConfig) -> WeightFormat {
        let floats = WeightFormat::of(model.quantization, self.role);
        if floats != WeightFormat::Float {
            return floats;
        }
        if self.is_mxfp4(model) {
            return WeightFormat::Mxfp4;
        }
        let stored = |tensor: &TensorRows| {
            let form = model.checkpoint.form(&model.names, &tensor.name, self.role);
            match (form, tensor.turned) {
                // Devices have no kernels for 8-bit floats that lie turned around.
                (ModuleForm::Fp8, Some(_)) => WeightFormat::Float,
                (ModuleForm::Integers(_) | ModuleForm::Blocks(_), Some(_)) => {
                    WeightFormat::Dequantized
                }
                _ => {
                    let format = model.stored_format(form, self.columns.start);
                    format.unwrap_or(WeightFormat::Dequantized)
                }
            }
        };
        let both = |one, other| match (one, other) {
            (one, other) if one == other => one,
            (WeightFormat::Groups(one), WeightFormat::Groups(other)) => {
                WeightFormat::Groups(one.with(other))
            }
            _ => WeightFormat::Dequantized,
        };
        let formats = self.tensors.iter().map(stored);
        formats.reduce(both).unwrap_or(floats)
    }

    /// Returns true if the matrix is MXFP4 in the checkpoint of `model`, and the rank's columns
    /// begin with a group that has an exponent.
    fn is_mxfp4(&self, model: &ModelConfig) -> bool {
        let Some(mxfp4) = model.checkpoint.mxfp4() else {
            return false;
        };
        let stored = |tensor: &TensorRows| {
            let below = model.names.below(&tensor.name);
            let listed = |below: &str| mxfp4.floats.iter().any(|floats| floats == below);
            tensor.turned.is_some() && below.is_some_and(|below| !listed(below))
        };
        self.columns.start.is_multiple_of(Mxfp4Checkpoint::GROUP) && self.tensors.iter().all(stored)
    }

    /// Returns the shape of the matrix on this rank, as a part of `model`.
    pub fn shape(&self, model: &ModelConfig) -> MatrixShape {
        MatrixShape {
            rows: taken(&self.tensors),
            cols: self.columns.len(),
            role: self.role,
            format: self.format(model),
        }
    }
}

impl VectorPart {
    /// Lists all `len` elements of the vector `name`.
    pub fn whole(name: String, len: usize) -> Self {
        Self::part(name, len, 0..len)
    }

    /// Lists the elements `taken` of the `len` elements of the vector `name`.
    pub fn part(name: String, len: usize, taken: Range<usize>) -> Self {
        Self {
            tensors: vec![TensorRows::of(name, len, vec![taken])],
            plus_one: false,
            stack: 1,
            ones: 0,
            over: 1.0,
        }
    }

    /// Lists `len` ones, the weights of a norm that has none.
    pub fn ones(len: usize) -> Self {
        Self {
            tensors: Vec::new(),
            plus_one: false,
            stack: 1,
            ones: len,
            over: 1.0,
        }
    }

    /// Lists the elements `taken` of the `len` weights of the norm `name`, without `.weight`, in
    /// a model whose norms are of `kind`.
    pub fn norm(name: &str, kind: NormKind, len: usize, taken: Vec<Range<usize>>) -> Self {
        Self {
            tensors: vec![TensorRows::of(format!("{name}.weight"), len, taken)],
            plus_one: kind == NormKind::RmsUnitOffset,
            stack: 1,
            ones: 0,
            over: 1.0,
        }
    }

    /// Number of elements on this rank.
    pub fn len(&self) -> usize {
        taken(&self.tensors) + self.ones
    }
}

fn taken(tensors: &[TensorRows]) -> usize {
    tensors.iter().map(TensorRows::taken_rows).sum()
}

/// Converts single tensors from the form `F` to another form.
pub(crate) trait Convert<F: Form> {
    /// Form of the result.
    type To: Form;
    /// Reason why a tensor can't be converted.
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

/// A block, a layer or a model with tensors in the form `F`.
pub(crate) trait Tensors<F: Form> {
    /// This block, layer or model with tensors in the form `T`.
    type In<T: Form>;

    /// Converts all tensors, in the order of packed files.
    ///
    /// # Errors
    /// The error of the first tensor that can't be converted.
    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<Self::In<C::To>, C::Error>;

    /// Calls `matrix` and `vector` on all tensors, in the order of [`Self::convert`].
    fn each(&self, matrix: impl FnMut(&F::Matrix), vector: impl FnMut(&F::Vector)) {
        let Ok(_) = self.convert(&mut Shown { matrix, vector });
    }
}

/// Counts of a listed block, layer or model.
pub(crate) trait Listing: Tensors<Listed> {
    /// Returns the number of elements of all matrices.
    fn elements(&self) -> usize {
        let mut elements = 0;
        self.each(|matrix| elements += matrix.elements(), |_| {});
        elements
    }
}

impl<T: Tensors<Listed>> Listing for T {}

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

/// Conversion that only shows tensors to two closures.
struct Shown<M, V> {
    matrix: M,
    vector: V,
}

/// Form of tensors that were only shown: nothing is left of them.
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
