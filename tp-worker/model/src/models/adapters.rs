//! Projections of a model that adapters may add to.

use std::ops::Range;

use lockstep_backend::{AdaptedShape, MatrixRole, MatrixShape, WeightFormat};
use lockstep_types::AdapterLimits;

use super::decoder::Decoder;
use crate::blocks::{
    Layer,
    parts::{Listed, MatrixPart},
};

/// One rank's part of a projection that adapters may add to. Its tensors are its parts, as in
/// [`lockstep_backend::AdaptedLinear`]: each is a module of its own for adapters.
#[derive(Debug, Clone)]
pub(crate) struct Adaptable(pub MatrixPart);

impl Adaptable {
    /// Lists the projections of a listed model, in the order of
    /// [`crate::blocks::Linear::adapted`].
    pub fn of(listed: &mut Decoder<Listed>) -> Vec<Self> {
        let linears = listed.layers.iter_mut().flat_map(Layer::adaptable);
        linears.map(|linear| Self(linear.weight.clone())).collect()
    }

    /// Returns the outputs of each part.
    pub fn outputs(&self) -> Vec<Range<usize>> {
        let mut end = 0;
        let tensors = self.0.tensors.iter();
        let outputs = tensors.map(|tensor| {
            let first = end;
            end += tensor.taken_rows();
            first..end
        });
        outputs.collect()
    }

    /// Returns the shape of the matrix before the rank, for all parts.
    pub fn down(&self, rank: usize) -> MatrixShape {
        shape(self.0.tensors.len() * rank, self.0.columns.len())
    }

    /// Returns the shape of the matrix behind the rank, for a part of so many outputs.
    pub fn up(outputs: usize, rank: usize) -> MatrixShape {
        shape(outputs, rank)
    }

    /// Returns the sizes of adapters within `limits`.
    pub fn shape(&self, limits: AdapterLimits) -> AdaptedShape {
        let widest = self.outputs().iter().map(Range::len).max();
        AdaptedShape {
            places: limits.places.into(),
            rank: limits.rank,
            down: self.down(limits.rank),
            up: Self::up(widest.unwrap_or(0), limits.rank),
        }
    }
}

/// Adapters are held in the type that products compute in, whatever form the model's matrices have.
fn shape(rows: usize, cols: usize) -> MatrixShape {
    MatrixShape {
        rows,
        cols,
        role: MatrixRole::Projection,
        format: WeightFormat::Float,
    }
}
