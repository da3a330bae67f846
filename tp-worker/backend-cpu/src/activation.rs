//! The gated activation of an MLP.

use crate::exp::exp;
use crate::isa::Isa;
use crate::multiversion::multiversion;
use crate::partition::for_rows;
use crate::pool::Pool;

multiversion! {
    fn silu_mul_row(gate: &[f32], up: &[f32], out: &mut [f32]) {
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            *out = gate / (1.0 + exp(-gate)) * up;
        }
    }
}

/// `out = silu(gate) · up` with rows `[gate, up]` (Shazeer, arXiv:2002.05202).
pub(crate) fn silu_mul(pool: &mut Pool, isa: Isa, gate_up: &[f32], width: usize, out: &mut [f32]) {
    for_rows(pool, out, width, |rows, out| {
        let gate_up = &gate_up[2 * rows.start * width..2 * rows.end * width];
        for (row, out) in gate_up
            .chunks_exact(2 * width)
            .zip(out.chunks_exact_mut(width))
        {
            let (gate, up) = row.split_at(width);
            silu_mul_row(isa, gate, up, out);
        }
    });
}
