//! Mixtures of experts: rows are routed, and each expert multiplies the rows that chose it.

mod route;

use lockstep_backend::{BackendError, Experts, MatrixShape};

use crate::activation;
use crate::formats::{CpuMatrix, Format};
use crate::gemm::{Groups, Inputs, Scratch, grouped_matmul, grouped_words};
use crate::isa::Isa;
use crate::memory::Buffer;
use crate::multiversion::multiversion;
use crate::partition::for_rows;
use crate::pool::Pool;
use crate::tensor::CpuVector;
use route::{ELSEWHERE, Routing, Rule};

/// Activations of an operation. A row has as many choices as it goes through experts; choices of
/// the same expert lie together.
pub(crate) struct Activations<'a> {
    /// Scores of each row, `[rows, experts]`, which are overwritten.
    pub scores: &'a mut [f32],
    /// Gate and up projections, `[choices, 2·m]`, or `[choices, m]` without gates.
    pub gate_up: &'a mut [f32],
    /// Product of the activated gate and up, `[choices, m]`.
    pub activated: &'a mut [f32],
    /// Results of the experts, `[choices, out]`.
    pub products: &'a mut [f32],
}

/// Working memory of an operation.
pub(crate) struct Space<'a> {
    /// Packed inputs of products.
    pub packed: &'a mut Buffer<u32>,
    /// Experts of each row, and rows of each expert.
    pub routing: &'a mut Buffer<u32>,
}

/// See [`lockstep_backend::Ops::experts`].
pub(crate) fn run(
    pool: &mut Pool,
    isa: Isa,
    x: &[f32],
    w: Experts<'_, CpuMatrix, CpuVector>,
    activations: Activations<'_>,
    space: Space<'_>,
    out: &mut [f32],
) -> Result<(), BackendError> {
    let Activations {
        scores,
        gate_up,
        activated,
        products,
    } = activations;
    let Space { packed, routing } = space;
    let (count, taken) = (w.gate_up.len(), w.taken());
    let rows = scores.len() / w.scored.max(1);
    if rows == 0 {
        return Ok(());
    }
    routing.grow(Routing::words(rows, count, taken), "routes of experts")?;
    let mut routing = Routing::new(routing, rows, count, taken);
    routing.choose(pool, isa, scores, &rule(&w));
    routing.sort();
    let (here, columns) = (routing.here(), w.down[0].cols);
    let biases = [w.gate_up_bias, w.down_bias];
    let [gate_up_bias, down_bias] = biases.map(|biases| biases.map(|own| own.0.as_slice()));
    let groups = |matrices, biases| Groups {
        matrices,
        biases,
        starts: routing.starts,
        placed: None,
    };
    let firsts = routing.firsts;
    let inputs = Inputs::ordered(x, Some(routing.order));
    let scratch = Scratch { packed, firsts };
    grouped_matmul(
        pool,
        isa,
        inputs,
        groups(w.gate_up, gate_up_bias),
        scratch,
        gate_up,
    )?;
    let gates = &gate_up[..here * w.gate.projections() * columns];
    let gated = &mut activated[..here * columns];
    activation::expert_gate(pool, isa, w.gate, gates, columns, gated);
    let inputs = Inputs::ordered(activated, None);
    let scratch = Scratch { packed, firsts };
    grouped_matmul(
        pool,
        isa,
        inputs,
        groups(w.down, down_bias),
        scratch,
        products,
    )?;
    let weights = routing.weights.chunks_exact(taken);
    let choices = routing.places.chunks_exact(taken).zip(weights);
    sum(pool, isa, products, &choices, w.down[0].rows, out);
    Ok(())
}

/// Rule by which rows choose experts of a mixture.
fn rule<'w>(w: &Experts<'w, CpuMatrix, CpuVector>) -> Rule<'w> {
    Rule {
        routing: w.routing,
        correction: w.correction.map(|values| values.0.as_slice()),
        scales: w.scales.map(|values| values.0.as_slice()),
        scored: w.scored,
        first: w.first,
        shared: w.shared,
    }
}

/// Sums the weighed products of each row's choices that are here, in their order: by ascending
/// expert. So a row's sum does not depend on other rows.
fn sum<'c>(
    pool: &mut Pool,
    isa: Isa,
    products: &[f32],
    choices: &(impl Iterator<Item = (&'c [u32], &'c [f32])> + Clone + Sync),
    width: usize,
    out: &mut [f32],
) {
    for_rows(pool, out, width, |rows, part| {
        let choices = choices.clone().skip(rows.start);
        for ((places, weights), out) in choices.zip(part.chunks_exact_mut(width)) {
            let choices = places.iter().zip(weights);
            let mut here = choices.filter(|(place, _)| **place != ELSEWHERE);
            let product = |place: u32| &products[place as usize * width..][..width];
            match here.next() {
                Some((place, weight)) => weigh(isa, product(*place), *weight, out),
                None => out.fill(0.0),
            }
            for (place, weight) in here {
                add_weighed(isa, product(*place), *weight, out);
            }
        }
    });
}

multiversion! {
    fn weigh(x: &[f32], weight: f32, out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out = weight * x;
        }
    }
}

multiversion! {
    fn add_weighed(x: &[f32], weight: f32, out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out += weight * x;
        }
    }
}

/// Words of packed inputs that experts with matrices of these shapes take for `choices` choices.
pub(crate) fn packed_words(
    isa: Isa,
    choices: usize,
    matrices: [(&dyn Format, MatrixShape); 2],
) -> usize {
    let words = matrices.map(|(format, shape)| grouped_words(format, isa, choices, shape.cols));
    words[0].max(words[1])
}

/// Words of routes that a mixture of `count` experts takes for `rows` rows.
pub(crate) fn routing_words(rows: usize, count: usize, active: usize) -> usize {
    Routing::words(rows, count, active)
}
