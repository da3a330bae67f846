//! Outputs of gates of experts, by plain arithmetic.

use lockstep_types::ExpertGate;

/// Returns what `function` makes of a gate and of what it lets through.
///
/// # Panics
/// Panics if there are no gates.
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
        ExpertGate::Ungated(_) => panic!("GPUs refuse experts without gates"),
    }
}
