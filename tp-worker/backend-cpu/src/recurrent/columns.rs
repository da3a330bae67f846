//! The columns of the convolution that a state keeps.

use lockstep_backend::{ConvolutionShape, Row, RowState};

use super::convolution::Columns;
use super::states::Places;
use crate::inputs::CpuInputs;

/// Writes the last columns of the convolution of a row's committed tokens to its live state, and
/// those of earlier positions to the copies that are kept.
pub(super) fn commit(
    places: &Places<'_>,
    columns: Columns<'_>,
    row: &Row,
    state: &RowState,
    inputs: &CpuInputs,
) {
    let ConvolutionShape { channels, taps } = places.convolution;
    let kept = taps - 1;
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
                columns.of(token, channels)
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
