//! Mixtures of experts.

use std::ops::Range;

use lockstep_backend::{ExpertSpace, Experts, Holds, Linear, Memory as _, Ops as _, WeightFormat};
use lockstep_backend_cpu::{CpuBackend, CpuMatrix, CpuTensor, Isa};
use lockstep_types::{Activation, Dtype, ExpertGate, RouterWeights, Routing};

use crate::groups::{Q4_K, Q6_K};
use crate::machine::{Values, backend, bits, matrix_in, tensor, variants};

/// Inputs, columns of an expert, and outputs. None of them fills a panel or a group of integers.
const IN: usize = 150;
const COLUMNS: usize = 37;
const OUT: usize = 45;

/// Experts, and number of them that a row goes through.
const SIZES: [(usize, usize); 4] = [(8, 2), (9, 3), (12, 1), (3, 3)];

struct Case {
    /// Experts that a row chooses, and those behind them that each row goes through.
    active: usize,
    shared: usize,
    routing: Routing,
    correction: Option<Vec<f32>>,
    /// Factors of the weights of the experts that are chosen from.
    scales: Option<Vec<f32>>,
    x: Vec<f32>,
    scores: Vec<f32>,
    gate: ExpertGate,
    gate_up: Vec<CpuMatrix>,
    down: Vec<CpuMatrix>,
    /// Biases of gates and ups, and of the projections behind them, of all experts; of none where
    /// they are empty.
    biases: [Vec<f32>; 2],
}

impl Case {
    /// Makes `rows` rows. Every third row prefers the first experts, so that some experts have
    /// many rows and others none. Experts have `formats` in turn.
    fn new(
        backend: &mut CpuBackend,
        formats: &[WeightFormat],
        rows: usize,
        (count, active): (usize, usize),
    ) -> Self {
        let shared = rows % 2;
        let mut values = Values::new((rows * 1000 + count * 10 + active) as u64);
        let mut scores = values.floats(rows * count);
        for row in scores.chunks_mut(count).step_by(3) {
            row[0] += 3.0;
            row[active - 1] += 2.0;
        }
        let correction = (active == 3).then(|| values.floats(count));
        let scales = (active != 2).then(|| values.floats(count));
        let mut matrices = |rows: usize, cols: usize| -> Vec<_> {
            let all = formats.iter().cycle().take(count + shared);
            all.map(|format| matrix_in(backend, *format, &values.floats(rows * cols), cols))
                .collect()
        };
        let gate = match count % 4 {
            0 => ExpertGate::Clamped {
                limit: 0.75,
                alpha: 1.5,
            },
            1 => ExpertGate::Ungated(Activation::ReluSquared),
            3 => ExpertGate::GeluTanh,
            _ => ExpertGate::Silu,
        };
        let before = gate.projections() * COLUMNS;
        let (gate_up, down) = (matrices(before, IN), matrices(OUT, COLUMNS));
        let biased = if count.is_multiple_of(4) {
            count + shared
        } else {
            0
        };
        Self {
            active,
            shared,
            routing: Routing {
                weights: match active % 2 {
                    0 => RouterWeights::Softmax,
                    _ => RouterWeights::Sigmoid,
                },
                renormalized: count % 2 == 1,
                factor: [1.0, 1.75][active % 2],
                corrected: active == 3,
                groups: None,
            },
            correction,
            scales,
            gate,
            gate_up,
            down,
            biases: [before, OUT].map(|rows| values.floats(biased * rows)),
            x: values.floats(rows * IN),
            scores,
        }
    }

    /// Experts that are chosen from.
    fn count(&self) -> usize {
        self.gate_up.len() - self.shared
    }

    /// Runs the operation over some of the rows.
    fn run(&self, backend: &mut CpuBackend, rows: Range<usize>) -> Vec<f32> {
        let all = [&self.gate_up[..], &self.down[..]];
        self.run_part(backend, rows, (0, self.shared), all, &self.biases)
    }

    /// Runs the operation with some of the experts that are chosen from, beginning with the number
    /// `first`, and without the shared ones.
    fn run_here(
        &self,
        backend: &mut CpuBackend,
        rows: Range<usize>,
        here: Range<usize>,
    ) -> Vec<f32> {
        let matrices = [&self.gate_up, &self.down].map(|all| &all[here.clone()]);
        let biases = self.biases.each_ref().map(|biases| {
            let each = biases.len() / self.gate_up.len();
            biases[here.start * each..here.end * each].to_vec()
        });
        self.run_part(backend, rows, (here.start, 0), matrices, &biases)
    }

    fn run_part(
        &self,
        backend: &mut CpuBackend,
        rows: Range<usize>,
        (first, shared): (usize, usize),
        [gates, downs]: [&[CpuMatrix]; 2],
        biases: &[Vec<f32>; 2],
    ) -> Vec<f32> {
        let count = self.count();
        let x = tensor(backend, &self.x[rows.start * IN..rows.end * IN], IN);
        let scores = &self.scores[rows.start * count..rows.end * count];
        let mut scores = tensor(backend, scores, count);
        let choices = rows.len() * (self.active + shared);
        let correction = self.correction.as_ref();
        let correction = correction.map(|values| backend.load_vector(values).unwrap());
        let scales = self.scales.as_ref();
        let scales = scales.map(|values| backend.load_vector(values).unwrap());
        let loaded = |biases: &Vec<f32>| {
            let some = !biases.is_empty();
            some.then(|| backend.load_vector(biases).unwrap())
        };
        let [gate_up_bias, down_bias] = biases.each_ref().map(loaded);
        let mut space = |rows, width| {
            let mut space = backend.tensor(rows, width, Holds::Sum).unwrap();
            space.values_mut().fill(f32::NAN);
            space
        };
        let mut out = space(rows.len(), OUT);
        let mut gate_up = space(choices, self.gate.projections() * COLUMNS);
        let mut activated = space(choices, COLUMNS);
        let mut products = space(choices, OUT);
        let space = ExpertSpace {
            gate_up: &mut gate_up,
            activated: &mut activated,
            products: &mut products,
        };
        let experts = Experts {
            scored: self.count(),
            first,
            active: self.active,
            shared,
            routing: self.routing,
            correction: correction.as_ref(),
            scales: scales.as_ref(),
            gate_up: gates,
            gate_up_bias: gate_up_bias.as_ref(),
            gate: self.gate,
            down: downs,
            down_bias: down_bias.as_ref(),
        };
        backend
            .experts(&x, &mut scores, experts, space, &mut out)
            .unwrap();
        out.values().to_vec()
    }

    /// Returns the experts of a row by ascending number, each with its weight.
    fn chosen(&self, row: usize) -> Vec<(usize, f64)> {
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
        let chosen = all
            .into_iter()
            .map(|(expert, weight)| (expert, weight * factor * self.scale(expert)));
        let shared = (self.count()..self.gate_up.len()).map(|expert| (expert, 1.0));
        chosen.chain(shared).collect()
    }

    /// Returns the factor of an expert's weight.
    fn scale(&self, expert: usize) -> f64 {
        let scales = self.scales.as_ref();
        scales.map_or(1.0, |scales| f64::from(scales[expert]))
    }

    fn gated(&self, gate: f32, up: f32) -> f32 {
        match self.gate {
            ExpertGate::GeluTanh => {
                let inner = (2.0 / std::f32::consts::PI).sqrt() * (gate + 0.044_715 * gate.powi(3));
                0.5 * gate * (1.0 + inner.tanh()) * up
            }
            ExpertGate::Silu => gate / (1.0 + (-gate).exp()) * up,
            ExpertGate::Clamped { limit, alpha } => {
                let gate = gate.min(limit);
                gate / (1.0 + (-alpha * gate).exp()) * (up.clamp(-limit, limit) + 1.0)
            }
            ExpertGate::Ungated(_) => up.max(0.0).powi(2),
        }
    }

    /// Returns a row of the output, from products and activations of one row and expert at a
    /// time; and the size of its terms.
    fn plain(&self, backend: &mut CpuBackend, row: usize) -> Vec<(f64, f64)> {
        let x = tensor(backend, &self.x[row * IN..(row + 1) * IN], IN);
        let mut sums = vec![(0.0, 0.0); OUT];
        for (expert, weight) in self.chosen(row) {
            let mut product = |x: &CpuTensor, matrix: &CpuMatrix, width| {
                let mut out = backend.tensor(1, width, Holds::Sum).unwrap();
                backend.matmul(x, Linear::unbiased(matrix), &mut out);
                out
            };
            let gate_up = product(&x, &self.gate_up[expert], self.gate.projections() * COLUMNS);
            let [of_gate_up, of_down] = self.biases.each_ref().map(|biases| {
                let rows = biases.len() / self.gate_up.len();
                &biases[expert * rows..(expert + 1) * rows]
            });
            let mut biased = gate_up.values().to_vec();
            let biases = biased.iter_mut().zip(of_gate_up);
            biases.for_each(|(value, bias)| *value += bias);
            let (gate, up) = (&biased[..COLUMNS], &biased[biased.len() - COLUMNS..]);
            let gated = |(gate, up): (&f32, &f32)| self.gated(*gate, *up);
            let activated: Vec<f32> = gate.iter().zip(up).map(gated).collect();
            let activated = tensor(backend, &activated, COLUMNS);
            let mut out = backend.tensor(1, OUT, Holds::Sum).unwrap();
            backend.matmul(&activated, Linear::unbiased(&self.down[expert]), &mut out);
            for (at, ((sum, size), value)) in sums.iter_mut().zip(out.values()).enumerate() {
                let value = value + of_down.get(at).unwrap_or(&0.0);
                *sum += weight * f64::from(value);
                *size += weight.abs() * f64::from(value.abs());
            }
        }
        sums
    }
}

/// Formats that all experts have, and formats that experts of one checkpoint may have in turn.
const FORMATS: [&[WeightFormat]; 5] = [
    &[WeightFormat::Float],
    &[WeightFormat::Int8],
    &[WeightFormat::Int4],
    &[
        WeightFormat::Float,
        WeightFormat::Fp8 { group: 64 },
        WeightFormat::Float32,
    ],
    &[
        WeightFormat::Groups(Q4_K),
        WeightFormat::Groups(Q6_K),
        WeightFormat::Float,
    ],
];

/// Rows of which each goes through its own experts, alone and together: 70 rows fill several
/// blocks of an expert's rows.
#[test]
fn experts_are_those_of_single_products() {
    for (isa, dtype) in variants() {
        for formats in FORMATS {
            for (rows, sizes) in [1, 5, 70, 33].into_iter().zip(SIZES) {
                let mut backend = backend(isa, dtype, 2);
                let case = Case::new(&mut backend, formats, rows, sizes);
                let found = case.run(&mut backend, 0..rows);
                for (row, found) in found.chunks(OUT).enumerate() {
                    for (value, (sum, size)) in found.iter().zip(case.plain(&mut backend, row)) {
                        // The kernels' exponential is within two units of the last place. Where
                        // that turns the rounding of an activation, a bf16 or an integer is off
                        // by one.
                        let limit = 2e-2 * size + 1e-5;
                        let error = (f64::from(*value) - sum).abs();
                        assert!(
                            error <= limit,
                            "{isa} {dtype:?} {formats:?} {sizes:?}: {error}"
                        );
                    }
                }
                if dtype == Dtype::Float32 && formats == FORMATS[0] {
                    close(&case, &mut backend, &found);
                }
            }
        }
    }
}

/// Compares with single products where nothing is rounded.
fn close(case: &Case, backend: &mut CpuBackend, found: &[f32]) {
    for (row, found) in found.chunks(OUT).enumerate() {
        for (value, (sum, size)) in found.iter().zip(case.plain(backend, row)) {
            let error = (f64::from(*value) - sum).abs();
            assert!(error <= 1e-5 * (size + 1.0), "row {row}: {error}");
        }
    }
}

/// A row's bits depend neither on other rows, nor on threads, nor on the rows that came before.
#[test]
fn a_row_does_not_depend_on_its_company() {
    for (isa, dtype) in variants() {
        for formats in FORMATS {
            let (rows, sizes) = (41, (9, 3));
            let mut one = backend(isa, dtype, 1);
            let case = Case::new(&mut one, formats, rows, sizes);
            let together = case.run(&mut one, 0..rows);
            let mut three = backend(isa, dtype, 3);
            assert_eq!(bits(&case.run(&mut three, 0..rows)), bits(&together));
            for range in [0..1, 1..2, 5..17, 40..41] {
                let own = &together[range.start * OUT..range.end * OUT];
                let alone = case.run(&mut three, range.clone());
                assert_eq!(
                    bits(&alone),
                    bits(own),
                    "{isa} {dtype:?} {formats:?} {range:?}"
                );
            }
        }
    }
}

/// All experts score alike: the lowest are chosen, on every instruction set.
#[test]
fn of_equal_experts_the_lowest_are_chosen() {
    for isa in Isa::available() {
        let mut backend = backend(isa, Dtype::Float32, 2);
        let mut case = Case::new(&mut backend, &[WeightFormat::Float], 6, (12, 2));
        case.scores.fill(0.25);
        let tied = case.run(&mut backend, 0..6);
        for scores in case.scores.chunks_mut(12) {
            scores[..2].fill(9.0);
        }
        case.routing.renormalized = true;
        let lowest = case.run(&mut backend, 0..6);
        // A weight is 1/12 where all experts share it, and 1/2 where two of them do.
        for (tied, lowest) in tied.iter().zip(&lowest) {
            assert!(
                (6.0 * tied - lowest).abs() <= 1e-5 * (1.0 + lowest.abs()),
                "{isa}"
            );
        }
    }
}

/// Experts in three places, one of which has a single one: each place adds what its own experts make
/// of a row, and zero if the row chose none of them. No place changes bits of another row.
#[test]
fn experts_elsewhere_add_nothing() {
    for (isa, dtype) in variants() {
        let mut backend = backend(isa, dtype, 2);
        // Rows are even in number, so that there are no shared experts.
        for (rows, (count, active)) in [(6, (8, 2)), (40, (9, 3)), (2, (12, 1))] {
            let case = Case::new(&mut backend, &[WeightFormat::Float], rows, (count, active));
            let whole = case.run(&mut backend, 0..rows);
            let places = [0..3, 3..4, 4..count];
            let found = places
                .clone()
                .map(|here| case.run_here(&mut backend, 0..rows, here));
            for row in 0..rows {
                let chosen = case.chosen(row);
                for (here, found) in places.iter().zip(&found) {
                    let own = &found[row * OUT..(row + 1) * OUT];
                    if chosen.iter().all(|(expert, _)| !here.contains(expert)) {
                        assert!(
                            own.iter().all(|value| value.to_bits() == 0),
                            "{isa} {dtype:?}"
                        );
                    }
                    let alone = case.run_here(&mut backend, row..row + 1, here.clone());
                    assert_eq!(bits(&alone), bits(own), "{isa} {dtype:?}, row {row}");
                }
            }
            for (at, whole) in whole.iter().enumerate() {
                let sum: f32 = found.iter().map(|part| part[at]).sum();
                let size: f32 = found.iter().map(|part| part[at].abs()).sum();
                assert!(
                    (sum - whole).abs() <= 1e-6 * (1.0 + size),
                    "{isa} {dtype:?}"
                );
            }
        }
    }
}

#[test]
fn no_rows_are_fine() {
    let mut backend = backend(Isa::detect(), Dtype::Bfloat16, 2);
    let case = Case::new(&mut backend, &[WeightFormat::Float], 2, (8, 2));
    assert!(case.run(&mut backend, 1..1).is_empty());
}
