//! Mixtures of experts of the naive backend.

use lockstep_backend::{ExpertSpace, Experts};

use super::arithmetic::{chosen, dot, gated};
use super::{OPERAND, SUM, Tensor};

/// See [`lockstep_backend::Ops::experts`].
pub fn run(
    x: &Tensor,
    scores: &Tensor,
    w: Experts<'_, Tensor, Vec<f32>>,
    space: ExpertSpace<'_, Tensor>,
    out: &mut Tensor,
) {
    let choices = x.rows * w.taken();
    let held = w.held();
    assert_eq!((x.rows, w.scored), (scores.rows, scores.width));
    for sums in [scores, &*space.gate_up, &*space.products, &*out] {
        sums.holds(SUM);
    }
    x.holds(OPERAND);
    space.activated.holds(OPERAND);
    for space in [space.gate_up, space.activated, space.products] {
        assert_eq!(space.rows, choices);
    }
    for row in 0..x.rows {
        out.row_mut(row).fill(0.0);
        let correction = w.correction.map(Vec::as_slice);
        let chosen = chosen(scores.row(row), w.active, w.routing, correction);
        let scale = |expert: usize| w.scales.map_or(1.0, |scales| scales[expert]);
        let scaled = chosen.into_iter();
        let scaled = scaled.map(|(expert, weight)| (expert, weight * scale(expert)));
        let here = scaled.filter_map(|(expert, weight)| {
            let expert = expert.checked_sub(w.first)?;
            (expert < held).then_some((expert, weight))
        });
        let shared = (held..w.gate_up.len()).map(|expert| (expert, 1.0));
        for (expert, weight) in here.chain(shared) {
            let (gate_up, down) = (&w.gate_up[expert], &w.down[expert]);
            let m = down.width;
            let bias = |biases: Option<&Vec<f32>>, matrix: &Tensor, row| {
                biases.map_or(0.0, |biases| biases[expert * matrix.rows + row])
            };
            let product = |column| {
                let product = dot(x.row(row), gate_up.row(column));
                product + bias(w.gate_up_bias, gate_up, column)
            };
            let ups = (w.gate.projections() - 1) * m;
            let columns = (0..m).map(|i| gated(w.gate, product(i), product(ups + i)));
            let columns: Vec<f32> = columns.collect();
            for (i, sum) in out.row_mut(row).iter_mut().enumerate() {
                let product = dot(&columns, down.row(i));
                *sum += weight * (product + bias(w.down_bias, down, i));
            }
        }
    }
}
