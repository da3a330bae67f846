//! Outputs of gates of experts, by plain arithmetic, and experts without gates.

use lockstep_types::{Activation, ExpertGate};

use super::{COLUMNS, Case, Expert, IN, SIZES, backend};
use crate::support::{ELEMENTS, Noise, SEEDS};

/// Returns what `function` makes of a gate and of what it lets through. Without gates both are the
/// same.
pub(super) fn let_through(function: ExpertGate, gate: f64, up: f64) -> f64 {
    match function {
        ExpertGate::Silu => gate / (1.0 + (-gate).exp()) * up,
        ExpertGate::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044_715 * gate.powi(3));
            0.5 * gate * (1.0 + inner.tanh()) * up
        }
        ExpertGate::Clamped { limit, alpha } => {
            let (limit, alpha) = (f64::from(limit), f64::from(alpha));
            let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
            gate / (1.0 + (-alpha * gate).exp()) * (up + 1.0)
        }
        ExpertGate::Ungated(Activation::ReluSquared) => up.max(0.0).powi(2),
        ExpertGate::Ungated(other) => panic!("no case has experts of {other:?} without gates"),
    }
}

impl Case {
    /// Columns that an expert has before its function.
    pub(super) fn before(&self) -> usize {
        self.gate.projections() * COLUMNS
    }

    /// Returns the error behind the activation, as a multiple of the one before it. Squares of sums
    /// have twice the relative error, and are larger.
    pub(super) fn gate_error(&self) -> f64 {
        match self.gate {
            ExpertGate::Ungated(_) => 4.0,
            ExpertGate::Silu | ExpertGate::GeluTanh | ExpertGate::Clamped { .. } => 1.0,
        }
    }

    /// Returns the same mixture without gates: of gates and ups the first halves stay.
    pub(super) fn without_gates(mut self) -> Self {
        for Expert { gate_up, .. } in &mut self.experts {
            gate_up.truncate(COLUMNS * IN);
        }
        if let Some([biases, _]) = &mut self.biases {
            *biases = biases
                .chunks(2 * COLUMNS)
                .flat_map(|own| own[..COLUMNS].to_vec())
                .collect();
        }
        self.gate = ExpertGate::Ungated(Activation::ReluSquared);
        self
    }
}

/// Tiles of 8, 32 and 64 rows, with and without biases, as floats and packed.
#[test]
fn experts_without_gates_are_those_of_plain_loops() {
    for (element, seed) in ELEMENTS.into_iter().zip(SEEDS) {
        let mut gpu = backend(element);
        let _order = lockstep_fake_cuda::order(seed);
        for sizes in [SIZES[1], SIZES[3], SIZES[4]] {
            let case = || Case::new(element, sizes, &mut Noise(seed)).without_gates();
            case().check(&mut gpu);
            case().in_mxfp4().check_packed(&mut gpu);
        }
    }
}
