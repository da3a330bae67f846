//! Mixtures of experts by plain loops.

use lockstep_types::RouterWeights;

use super::{COLUMNS, Case, Expert, IN, OUT, gates};
use crate::support::rounded;

impl Case {
    /// Returns the experts of a row by ascending number, each with its weight.
    pub(super) fn chosen(&self, row: usize) -> Vec<(usize, f64)> {
        let scores = &self.scores[row * self.count()..(row + 1) * self.count()];
        let power = |score: &f32| f64::from(*score).exp();
        let total: f64 = scores.iter().map(power).sum();
        let weights = scores.iter().map(|score| match self.routing.weights {
            RouterWeights::Softmax => power(score) / total,
            RouterWeights::Sigmoid => power(score) / (1.0 + power(score)),
        });
        let mut all: Vec<_> = weights.enumerate().collect();
        let correction = |expert: usize| self.correction.as_ref().map_or(0.0, |own| own[expert]);
        let worth = |(expert, weight): &(usize, f64)| weight + f64::from(correction(*expert));
        all.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
        all.truncate(self.active);
        all.sort_by_key(|(expert, _)| *expert);
        let sum: f64 = all.iter().map(|(_, weight)| weight).sum();
        let divisor = if self.routing.renormalized { sum } else { 1.0 };
        let factor = f64::from(self.routing.factor) / divisor;
        let scale = |expert: usize| {
            self.scales
                .as_ref()
                .map_or(1.0, |own| f64::from(own[expert]))
        };
        let chosen = all
            .into_iter()
            .map(|(expert, weight)| (expert, weight * factor * scale(expert)));
        let shared = (self.count()..self.experts.len()).map(|expert| (expert, 1.0));
        chosen.chain(shared).collect()
    }

    /// Returns a row of the output by plain loops.
    pub(super) fn exact(&self, row: usize) -> Vec<f64> {
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            let terms = a.iter().zip(b);
            terms.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        let (x, mut sums) = (&self.x[row * IN..(row + 1) * IN], vec![0.0; OUT]);
        for (number, weight) in self.chosen(row) {
            let Expert { gate_up, down } = &self.experts[number];
            let bias = |of: usize, len: usize, at: usize| {
                let biases = self.biases.as_ref();
                biases.map_or(0.0, |biases| f64::from(biases[of][number * len + at]))
            };
            let before = self.before();
            let column = |at: usize| dot(x, &gate_up[at * IN..(at + 1) * IN]) + bias(0, before, at);
            let activated = |at: usize| {
                let (gate, up) = (column(at), column(before - COLUMNS + at));
                gates::let_through(self.gate, gate, up) as f32
            };
            let activated: Vec<f32> = (0..COLUMNS).map(activated).collect();
            let activated = rounded(self.element, &activated);
            for (at, sum) in sums.iter_mut().enumerate() {
                let product = dot(&activated, &down[at * COLUMNS..(at + 1) * COLUMNS]);
                *sum += weight * (product + bias(1, OUT, at));
            }
        }
        sums
    }
}
