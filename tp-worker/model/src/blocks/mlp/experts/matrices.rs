//! The tensors of experts in the forms that files have.

use std::ops::Range;

use lockstep_types::{ExpertTensors, GatedMlpNames};

use crate::blocks::{
    LayerPlace, Linear,
    linear::Fused,
    parts::{MatrixPart, TensorRows, VectorPart},
};

/// Sizes of the matrices of one expert.
pub(super) struct Matrices {
    pub hidden: usize,
    /// Columns between the projections, of all ranks and of this one.
    pub width: usize,
    pub columns: Range<usize>,
    /// True if experts have gates.
    pub gated: bool,
}

impl Matrices {
    /// Lists the tensors of one of `parts` experts whose matrices lie together, in the tensors of
    /// one gated MLP with the names `names`.
    pub fn part_of(
        &self,
        parts: usize,
        part: usize,
        names: &GatedMlpNames,
        named: impl Fn(&str) -> String,
    ) -> (MatrixPart, MatrixPart) {
        let first = part * self.width;
        let columns = first + self.columns.start..first + self.columns.end;
        let before = [&names.gate, &names.up];
        let before = &before[usize::from(!self.gated)..];
        let gate_up = before.iter().map(|name| Fused {
            name: named(name),
            rows: parts * self.width,
            taken: vec![columns.clone()],
        });
        let gate_up: Vec<_> = gate_up.collect();
        let width = parts * self.width;
        let down = Linear::of_inputs(&named(&names.down), self.hidden, width, columns, false);
        (
            Linear::of_outputs(&gate_up, self.hidden, false).weight,
            down.weight,
        )
    }

    /// Lists the matrices of expert `expert` of `count` in the layer at `place`, in the form that
    /// files have.
    pub fn of_expert(
        &self,
        count: usize,
        expert: usize,
        place: &LayerPlace<'_>,
        tensors: &ExpertTensors,
    ) -> (MatrixPart, MatrixPart) {
        let named = |names: [&String; 2]| names.map(|name| place.name(name));
        match tensors {
            ExpertTensors::Single {
                prefix,
                expert: own,
            } => {
                let named = |name: &str| place.name(&format!("{prefix}.{expert}.{name}"));
                self.part_of(1, 0, own, named)
            }
            ExpertTensors::Stacked { gate_up, down } => {
                self.stacked(count, expert, named([gate_up, down]))
            }
            ExpertTensors::Interleaved { gate_up, down, .. } => {
                self.interleaved(count, expert, named([gate_up, down]))
            }
        }
    }

    /// Lists the matrices of expert `expert` of `count` whose tensors are stacked, gates and ups
    /// first.
    fn stacked(
        &self,
        count: usize,
        expert: usize,
        [gate_up, down]: [String; 2],
    ) -> (MatrixPart, MatrixPart) {
        let (first, columns) = (expert * 2 * self.width, &self.columns);
        let rows = |first: usize| first + columns.start..first + columns.end;
        let taken = vec![rows(first), rows(first + self.width)];
        let gate_up = TensorRows::of(gate_up, count * 2 * self.width, taken);
        let down = self.down(count, expert, down);
        (
            MatrixPart::stacked(gate_up, self.hidden, 0..self.hidden),
            MatrixPart::stacked(down, self.width, columns.clone()),
        )
    }

    /// Lists the matrices of expert `expert` of `count` whose tensors are stacked, rows of gate
    /// and up in turn. Here gates come first.
    fn interleaved(
        &self,
        count: usize,
        expert: usize,
        [gate_up, down]: [String; 2],
    ) -> (MatrixPart, MatrixPart) {
        let gate_up = TensorRows {
            step: 2,
            turned: Some(2 * self.width),
            ..TensorRows::of(
                gate_up,
                count * 2 * self.width,
                self.gate_and_up(expert).to_vec(),
            )
        };
        let down = TensorRows {
            turned: Some(self.hidden),
            ..self.down(count, expert, down)
        };
        (
            MatrixPart::stacked(gate_up, self.hidden, 0..self.hidden),
            MatrixPart::stacked(down, self.width, self.columns.clone()),
        )
    }

    /// Lists the biases of the experts `held` of `count` in the layer at `place`: of gates and ups,
    /// and of the projections behind them if this rank is the first of those that split these
    /// experts. Interleaved experts alone have some.
    pub fn biases(
        &self,
        count: usize,
        held: Range<usize>,
        place: &LayerPlace<'_>,
        tensors: &ExpertTensors,
    ) -> [Option<VectorPart>; 2] {
        let ExpertTensors::Interleaved {
            gate_up,
            down,
            bias: true,
        } = tensors
        else {
            return [None, None];
        };
        let [gate_up, down] = [gate_up, down].map(|name| place.name(&format!("{name}_bias")));
        let taken = held.clone().flat_map(|expert| self.gate_and_up(expert));
        let gate_up = TensorRows {
            step: 2,
            ..TensorRows::of(gate_up, count * 2 * self.width, taken.collect())
        };
        let gate_up = VectorPart {
            tensors: vec![gate_up],
            plus_one: false,
            stack: count,
            ones: 0,
            over: 1.0,
        };
        let leads = place.shard.topology.within_experts().leads();
        let taken = held.start * self.hidden..held.end * self.hidden;
        let down = leads.then(|| VectorPart {
            stack: count,
            ..VectorPart::part(down, count * self.hidden, taken)
        });
        [Some(gate_up), down]
    }

    /// Returns the rows of an expert's gate and of its up, of which every second one is taken.
    fn gate_and_up(&self, expert: usize) -> [Range<usize>; 2] {
        let first = expert * 2 * self.width;
        let (start, end) = (first + 2 * self.columns.start, first + 2 * self.columns.end);
        [start..end, (start + 1).min(end)..end]
    }

    /// Lists the rows of an expert in a stack of projections to the residual stream.
    fn down(&self, count: usize, expert: usize, name: String) -> TensorRows {
        let taken = expert * self.hidden..(expert + 1) * self.hidden;
        TensorRows::of(name, count * self.hidden, vec![taken])
    }
}
