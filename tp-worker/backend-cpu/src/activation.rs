//! Activations between the projections of an MLP, and the bound of logits.

use lockstep_backend::LogitScaling;
use lockstep_types::{Activation, ExpertGate};

use crate::exp::exp;
use crate::isa::Isa;
use crate::multiversion::multiversion;
use crate::partition::for_rows;
use crate::pool::Pool;

/// `x · σ(x)`.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))` (Hendrycks and Gimpel, arXiv:1606.08415),
/// which is `x · σ(2u)` for the argument `u` of the tanh.
#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    const TWICE_ROOT: f32 = 1.595_769;
    x / (1.0 + exp(-TWICE_ROOT * (x + 0.044_715 * x * x * x)))
}

/// `tanh(x)`, within about an ulp of one.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

multiversion! {
    pub(crate) fn silu_in_place(x: &mut [f32]) {
        x.iter_mut().for_each(|x| *x = silu(*x));
    }
}

multiversion! {
    fn relu_squared_row(x: &[f32], out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(x) {
            // What is no number stays none.
            let x = if *x < 0.0 { 0.0 } else { *x };
            *out = x * x;
        }
    }
}

multiversion! {
    fn relu_squared_mul_row(gate: &[f32], up: &[f32], out: &mut [f32]) {
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            let gate = if *gate < 0.0 { 0.0 } else { *gate };
            *out = gate * gate * up;
        }
    }
}

multiversion! {
    fn silu_mul_row(gate: &[f32], up: &[f32], out: &mut [f32]) {
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            *out = silu(*gate) * up;
        }
    }
}

multiversion! {
    fn gelu_mul_row(gate: &[f32], up: &[f32], out: &mut [f32]) {
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            *out = gelu_tanh(*gate) * up;
        }
    }
}

multiversion! {
    /// See [`ExpertGate::Clamped`]. What is no number stays none.
    fn clamped_row(gate: &[f32], up: &[f32], limit: f32, alpha: f32, out: &mut [f32]) {
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            let gate = if *gate > limit { limit } else { *gate };
            let up = if *up > limit { limit } else { *up };
            let up = if up < -limit { -limit } else { up };
            *out = gate / (1.0 + exp(-alpha * gate)) * (up + 1.0);
        }
    }
}

multiversion! {
    fn sigmoid_gate_row(gate: &[f32], out: &mut [f32]) {
        for (out, gate) in out.iter_mut().zip(gate) {
            *out *= 1.0 / (1.0 + exp(-*gate));
        }
    }
}

multiversion! {
    fn sigmoid_weight_row(gate: f32, out: &mut [f32]) {
        let weight = 1.0 / (1.0 + exp(-gate));
        out.iter_mut().for_each(|out| *out *= weight);
    }
}

multiversion! {
    fn silu_row(x: &[f32], out: &mut [f32]) {
        out.iter_mut().zip(x).for_each(|(out, x)| *out = silu(*x));
    }
}

multiversion! {
    fn gelu_row(x: &[f32], out: &mut [f32]) {
        out.iter_mut().zip(x).for_each(|(out, x)| *out = gelu_tanh(*x));
    }
}

multiversion! {
    fn divide_row(x: &mut [f32], divisor: f32) {
        x.iter_mut().for_each(|x| *x /= divisor);
    }
}

multiversion! {
    /// Bounds each value: `cap · tanh(x / cap)`.
    pub(crate) fn cap_row(x: &mut [f32], cap: f32) {
        x.iter_mut().for_each(|x| *x = cap * tanh(*x / cap));
    }
}

multiversion! {
    /// Bounds each of `x` times its factor: `cap · tanh(x · factor / cap)`.
    pub(crate) fn cap_scaled_row(x: &mut [f32], factors: &[f32], cap: f32) {
        for (x, factor) in x.iter_mut().zip(factors) {
            *x = cap * tanh(*x * factor / cap);
        }
    }
}

/// `out = f(gate) · up` with rows `[gate, up]` (Shazeer, arXiv:2002.05202).
pub(crate) fn gate(
    pool: &mut Pool,
    isa: Isa,
    activation: Activation,
    gate_up: &[f32],
    width: usize,
    out: &mut [f32],
) {
    let gate_row = match activation {
        Activation::Silu => silu_mul_row,
        Activation::GeluTanh => gelu_mul_row,
        Activation::ReluSquared => relu_squared_mul_row,
    };
    pairs(pool, gate_up, width, out, |gate, up, out| {
        gate_row(isa, gate, up, out);
    });
}

/// `out = f(gate, up)` with the rows `[gate, up]` of experts, or `[up]` of those without gates.
pub(crate) fn expert_gate(
    pool: &mut Pool,
    isa: Isa,
    gate: ExpertGate,
    gate_up: &[f32],
    width: usize,
    out: &mut [f32],
) {
    if let ExpertGate::Ungated(function) = gate {
        return activate(pool, isa, function, gate_up, width, out);
    }
    pairs(pool, gate_up, width, out, |row, up, out| match gate {
        ExpertGate::Silu | ExpertGate::Ungated(_) => silu_mul_row(isa, row, up, out),
        ExpertGate::GeluTanh => gelu_mul_row(isa, row, up, out),
        ExpertGate::Clamped { limit, alpha } => clamped_row(isa, row, up, limit, alpha, out),
    });
}

/// Calls `each(gate, up, out)` for every row `[gate, up]`, and the row of `out` for it.
fn pairs(
    pool: &mut Pool,
    gate_up: &[f32],
    width: usize,
    out: &mut [f32],
    each: impl Fn(&[f32], &[f32], &mut [f32]) + Sync,
) {
    for_rows(pool, out, width, |rows, out| {
        let gate_up = &gate_up[2 * rows.start * width..2 * rows.end * width];
        for (row, out) in gate_up
            .chunks_exact(2 * width)
            .zip(out.chunks_exact_mut(width))
        {
            let (gate, up) = row.split_at(width);
            each(gate, up, out);
        }
    });
}

/// `out = f(x)`.
pub(crate) fn activate(
    pool: &mut Pool,
    isa: Isa,
    activation: Activation,
    x: &[f32],
    width: usize,
    out: &mut [f32],
) {
    let row = match activation {
        Activation::Silu => silu_row,
        Activation::GeluTanh => gelu_row,
        Activation::ReluSquared => relu_squared_row,
    };
    for_rows(pool, out, width, |rows, out| {
        row(isa, &x[rows.start * width..rows.end * width], out);
    });
}

/// `out = out · σ(gate)`, of rows of `width`. A row of the gate has as many `columns`, or one.
pub(crate) fn sigmoid_gate(
    pool: &mut Pool,
    isa: Isa,
    gate: &[f32],
    columns: usize,
    width: usize,
    out: &mut [f32],
) {
    for_rows(pool, out, width, |rows, out| {
        let gate = &gate[rows.start * columns..rows.end * columns];
        if columns == width {
            return sigmoid_gate_row(isa, gate, out);
        }
        for (row, gate) in out.chunks_exact_mut(width).zip(gate) {
            sigmoid_weight_row(isa, *gate, row);
        }
    });
}

/// Divides logits, then bounds them.
pub(crate) fn scale_logits(
    pool: &mut Pool,
    isa: Isa,
    LogitScaling { divisor, softcap }: LogitScaling,
    width: usize,
    logits: &mut [f32],
) {
    for_rows(pool, logits, width, |_, part| {
        divide_row(isa, part, divisor);
        if let Some(cap) = softcap {
            cap_row(isa, part, cap);
        }
    });
}
