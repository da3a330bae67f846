//! The tensors of a latent attention, as files have them, in the order in which they are computed
//! with.

use std::ops::Range;

use lockstep_backend::MatrixRole;
use lockstep_types::LatentAttentionSpec;

use crate::blocks::{
    LayerPlace, Linear,
    parts::{Listed, MatrixPart, TensorRows, VectorPart},
};

/// Lists of the tensors of one layer.
pub(super) struct Parts<'a> {
    place: &'a LayerPlace<'a>,
    spec: &'a LatentAttentionSpec,
    /// Heads of this rank.
    pub heads: Range<usize>,
}

impl<'a> Parts<'a> {
    pub fn new(place: &'a LayerPlace<'a>, spec: &'a LatentAttentionSpec) -> Self {
        Self {
            place,
            spec,
            heads: place.shard.query_heads(spec.heads),
        }
    }

    /// Projection to the latent of queries, whole on every rank, and its norm.
    pub fn query_down(&self) -> Option<(Linear<Listed>, VectorPart)> {
        let width = self.spec.query_latent?;
        let name = self.place.name(&self.spec.names.query_down);
        let down = Linear::whole(&name, width, self.place.inputs, self.spec.bias);
        Some((down, self.norm(&self.spec.names.query_norm, width)))
    }

    /// Projection to queries of this rank's heads. Rows that are not rotated come first.
    pub fn query(&self) -> Linear<Listed> {
        let LatentAttentionSpec { names, nope, .. } = self.spec;
        let (name, inputs) = match self.spec.query_latent {
            None => (&names.query, self.place.inputs),
            Some(width) => (&names.query_up, width),
        };
        let name = format!("{}.weight", self.place.name(name));
        let each = self.spec.query();
        let (rows, firsts) = (self.spec.heads * each, self.heads.clone());
        let firsts = firsts.map(|head| head * each);
        let kept = firsts.clone().map(|first| first..first + nope).collect();
        let turned = firsts.flat_map(|first| self.halves(first + nope));
        let tensors = vec![
            TensorRows::of(name.clone(), rows, kept),
            self.in_steps(name, rows, turned.collect()),
        ];
        Linear {
            weight: projection(tensors, inputs),
            bias: None,
            adapted: None,
        }
    }

    /// Projection to the latent of keys and values and the shared key, whole on every rank.
    pub fn cell(&self) -> Linear<Listed> {
        let LatentAttentionSpec {
            names,
            latent,
            rotated,
            ..
        } = self.spec;
        let rows = latent + rotated;
        let tensors = |kind: &str| {
            let name = format!("{}.{kind}", self.place.name(&names.cell));
            let kept = TensorRows::of(name.clone(), rows, vec![0..*latent; 1]);
            let turned = self.halves(*latent).into_iter().collect();
            vec![kept, self.in_steps(name, rows, turned)]
        };
        Linear {
            weight: projection(tensors("weight"), self.place.inputs),
            bias: self.spec.bias.then(|| VectorPart {
                tensors: tensors("bias"),
                plus_one: false,
                stack: 1,
                ones: 0,
                over: 1.0,
            }),
            adapted: None,
        }
    }

    /// Key matrix of a head, whose rows are inputs here.
    pub fn key(&self, head: usize) -> MatrixPart {
        let first = head * self.of_head();
        let latent = self.spec.latent;
        let rows = TensorRows {
            turned: Some(latent),
            ..TensorRows::of(self.heads_name(), latent, vec![0..latent; 1])
        };
        let inputs = self.spec.heads * self.of_head();
        MatrixPart::stacked(rows, inputs, first..first + self.spec.nope)
    }

    /// Value matrix of a head.
    pub fn value(&self, head: usize) -> MatrixPart {
        let first = head * self.of_head() + self.spec.nope;
        let rows = self.spec.heads * self.of_head();
        let taken = first..first + self.spec.value;
        let rows = TensorRows::of(self.heads_name(), rows, vec![taken]);
        MatrixPart::stacked(rows, self.spec.latent, 0..self.spec.latent)
    }

    /// Projection back to the residual stream.
    pub fn output(&self) -> Linear<Listed> {
        let value = self.spec.value;
        let leads = self.place.shard.topology.attention.leads();
        Linear::of_inputs(
            &self.place.name(&self.spec.names.output),
            self.place.model.hidden_size,
            self.spec.heads * value,
            self.heads.start * value..self.heads.end * value,
            self.spec.bias && leads,
        )
    }

    /// Norm of a latent of `width` columns.
    pub fn norm(&self, name: &str, width: usize) -> VectorPart {
        let whole = vec![0..width; 1];
        VectorPart::norm(&self.place.name(name), self.place.model.norm, width, whole)
    }

    /// Name of the tensor of all heads' matrices.
    fn heads_name(&self) -> String {
        format!("{}.weight", self.place.name(&self.spec.names.heads))
    }

    /// Rows of a head among the matrices of all heads.
    fn of_head(&self) -> usize {
        self.spec.nope + self.spec.value
    }

    /// Ranges of the rotated rows from `first` on, of which two halves are rotated together: each
    /// second row, or each row of a half.
    fn halves(&self, first: usize) -> [Range<usize>; 2] {
        let (end, half) = (first + self.spec.rotated, first + self.spec.rotated / 2);
        match self.spec.interleaved {
            true => [first..end, first + 1..end],
            false => [first..half, half..end],
        }
    }

    /// Lists rows of such ranges.
    fn in_steps(&self, name: String, rows: usize, taken: Vec<Range<usize>>) -> TensorRows {
        TensorRows {
            step: if self.spec.interleaved { 2 } else { 1 },
            ..TensorRows::of(name, rows, taken)
        }
    }
}

/// A projection of rows of `tensors` over all `inputs`.
fn projection(tensors: Vec<TensorRows>, inputs: usize) -> MatrixPart {
    MatrixPart {
        tensors,
        width: inputs,
        columns: 0..inputs,
        role: MatrixRole::Projection,
    }
}
