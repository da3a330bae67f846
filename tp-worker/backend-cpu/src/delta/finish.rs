//! The parts behind the recurrence: the gated norm, and the columns of the convolution that a state
//! keeps.

use lockstep_backend::{GatedDelta, Row, RowState};

use super::states::Places;
use crate::activation::silu;
use crate::inputs::CpuInputs;
use crate::isa::Isa;
use crate::multiversion::multiversion;
use crate::norm::inverse_rms;
use crate::partition::for_rows;
use crate::pool::Pool;
use crate::tensor::CpuVector;

multiversion! {
    /// `x = weight · x/rms(x) · silu(gate)`.
    fn gated_norm(x: &mut [f32], weight: &[f32], eps: f32, gate: &[f32]) {
        let scale = inverse_rms(x, eps);
        for ((x, weight), gate) in x.iter_mut().zip(weight).zip(gate) {
            *x = *x * scale * weight * silu(*gate);
        }
    }
}

/// Norms and gates the output of all heads, in place. The gates are behind the channels of
/// `projected`.
pub(super) fn run(
    pool: &mut Pool,
    isa: Isa,
    op: &GatedDelta<'_, CpuVector>,
    projected: &[f32],
    out: &mut [f32],
) {
    let (channels, values) = (op.shape.channels(), op.shape.value_width());
    let dim = op.shape.value_dim;
    for_rows(pool, out, values, |tokens, part| {
        for (token, row) in tokens.zip(part.chunks_exact_mut(values)) {
            let gates = &projected[token * (channels + values) + channels..][..values];
            for (head, gate) in row.chunks_exact_mut(dim).zip(gates.chunks_exact(dim)) {
                gated_norm(isa, head, &op.norm.0, op.eps, gate);
            }
        }
    });
}

/// Writes the last columns of the convolution of a row's committed tokens to its live state, and
/// those of earlier positions to the copies that are kept.
pub(super) fn columns(
    places: &Places<'_>,
    projected: &[f32],
    row: &Row,
    state: &RowState,
    inputs: &CpuInputs,
) {
    let shape = &places.shape;
    let (channels, kept) = (shape.channels(), shape.taps - 1);
    let width = channels + shape.value_width();
    let replays = state.replays.of(&inputs.replays);
    let own = if state.commits { row.q_len as usize } else { 0 };
    // SAFETY: rows have states of their own, in which nothing is kept; one job has the columns.
    let live = unsafe { places.columns.slice(places.columns(state.state)) };
    if state.fresh {
        live.fill(0.0);
    }
    // The committed column at `at`, counted from the oldest of the live state; `None` for one of
    // these.
    let column = |at: usize| -> Option<&[f32]> {
        let behind = at.checked_sub(kept)?;
        Some(match replays.get(behind) {
            Some(node) => {
                let record = places.replayed(state, *node);
                // SAFETY: nobody writes this half of the records in this call.
                unsafe { places.records.read(record.column) }
            }
            None => {
                let token = row.start as usize + behind - replays.len();
                &projected[token * width..][..channels]
            }
        })
    };
    for keep in state.keeps.of(&inputs.keeps) {
        // SAFETY: nothing else of this batch has that state; one job has the columns.
        let copy = unsafe { places.columns.slice(places.columns(keep.state)) };
        for (tap, to) in copy.chunks_exact_mut(channels).enumerate() {
            let at = keep.after as usize + tap;
            match column(at) {
                Some(column) => to.copy_from_slice(column),
                None => to.copy_from_slice(&live[at * channels..][..channels]),
            }
        }
    }
    let committed = replays.len() + own;
    // Ascending, so that a column is read before another takes its place.
    for tap in 0..kept {
        let (at, to) = (committed + tap, tap * channels);
        match column(at) {
            Some(column) => live[to..to + channels].copy_from_slice(column),
            None => live.copy_within(at * channels..(at + 1) * channels, to),
        }
    }
}
