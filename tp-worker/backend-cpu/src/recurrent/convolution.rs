//! A causal convolution of each channel, over the columns of a token and of the tokens before it.
//! These are ancestors in a tree, replayed nodes, and the columns that a state keeps.

use lockstep_backend::{ConvolutionShape, Row, RowState};
use lockstep_types::GatedDeltaSpec;

use super::states::Places;
use crate::inputs::CpuInputs;
use crate::isa::Isa;
use crate::multiversion::multiversion;
use crate::partition::for_rows;
use crate::pool::Pool;

multiversion! {
    /// `out = taps · column`, the oldest column of a convolution.
    fn first_tap(taps: &[f32], column: &[f32], out: &mut [f32]) {
        for ((out, tap), x) in out.iter_mut().zip(taps).zip(column) {
            *out = tap * x;
        }
    }
}

multiversion! {
    /// `out += taps · column`, fused.
    fn next_tap(taps: &[f32], column: &[f32], out: &mut [f32]) {
        for ((out, tap), x) in out.iter_mut().zip(taps).zip(column) {
            *out = tap.mul_add(*x, *out);
        }
    }
}

/// Raw columns of a batch's tokens, each at the begin of the token's row.
#[derive(Clone, Copy)]
pub(super) struct Columns<'a> {
    pub values: &'a [f32],
    /// Elements of a row.
    pub width: usize,
}

impl<'a> Columns<'a> {
    /// Returns the first `channels` elements of the row of `token`.
    pub fn of(&self, token: usize, channels: usize) -> &'a [f32] {
        &self.values[token * self.width..][..channels]
    }
}

/// Operands that all tokens share.
pub(super) struct Convolution<'a> {
    pub isa: Isa,
    pub places: &'a Places<'a>,
    /// `[taps·channels]`, the oldest tap first.
    pub taps: &'a [f32],
    /// `[channels]`
    pub bias: Option<&'a [f32]>,
    pub columns: Columns<'a>,
    /// A column of zeros.
    pub zeros: &'a [f32],
    pub inputs: &'a CpuInputs,
}

impl Convolution<'_> {
    /// Column of token `node` of a row, before the convolution.
    pub fn column(&self, row: &Row, node: usize) -> &[f32] {
        let token = row.start as usize + node;
        self.columns.of(token, self.places.convolution.channels)
    }

    /// Writes the column of token `node` to its record, if the token is to be verified.
    pub fn record(&self, row: &Row, state: &RowState, node: usize) {
        if state.commits {
            return;
        }
        let record = self.places.record(state, state.side, node as u32);
        // SAFETY: each token writes its own record, and replays read the other half.
        let place = unsafe { self.places.records.slice(record.column) };
        place.copy_from_slice(self.column(row, node));
    }

    /// Column of the committed token that is `back` tokens before the row's first.
    fn committed(&self, state: &RowState, back: usize) -> &[f32] {
        let replays = state.replays.of(&self.inputs.replays);
        if let Some(node) = replays.len().checked_sub(back + 1) {
            let record = self.places.replayed(state, replays[node]);
            // SAFETY: nobody writes this half of the records in this call.
            return unsafe { self.places.records.read(record.column) };
        }
        let ConvolutionShape { channels, taps } = self.places.convolution;
        let back = back - replays.len();
        match (taps - 1).checked_sub(back + 1) {
            Some(at) if !state.fresh => {
                let start = self.places.columns(state.state).start + at * channels;
                // SAFETY: states are written behind this part of the call.
                unsafe { self.places.columns.read(start..start + channels) }
            }
            _ => &self.zeros[..channels],
        }
    }

    /// Convolves the channels of token `node` of a row with those of the tokens before it.
    pub fn run(&self, row: &Row, state: &RowState, node: usize, out: &mut [f32]) {
        let ConvolutionShape { channels, taps } = self.places.convolution;
        let mut window = [self.zeros; GatedDeltaSpec::MOST_TAPS];
        let window = &mut window[..taps];
        let (mut own, mut back) = (Some(node), 0);
        for column in window.iter_mut().rev() {
            *column = match own {
                Some(node) => self.column(row, node),
                None => {
                    back += 1;
                    self.committed(state, back - 1)
                }
            };
            own = own.and_then(|last| self.inputs.ancestor(row, node, last));
        }
        if let Some(bias) = self.bias {
            out.copy_from_slice(bias);
        }
        let all = self.taps.chunks_exact(channels);
        for (tap, (taps, column)) in all.zip(window.iter()).enumerate() {
            match (tap, self.bias) {
                (0, None) => first_tap(self.isa, taps, column, out),
                _ => next_tap(self.isa, taps, column, out),
            }
        }
    }
}

/// Calls `each(row, state, node, part)` for each token of each row, on all threads, where `part` is
/// the token's row of `data` `[_, width]`.
pub(super) fn for_tokens(
    pool: &mut Pool,
    inputs: &CpuInputs,
    data: &mut [f32],
    width: usize,
    each: impl Fn(&Row, &RowState, usize, &mut [f32]) + Sync,
) {
    let end = |row: &Row| (row.start + row.q_len) as usize;
    for_rows(pool, data, width, |tokens, part| {
        let mut index = inputs.rows.partition_point(|row| end(row) <= tokens.start);
        for (token, part) in tokens.zip(part.chunks_exact_mut(width)) {
            while inputs.rows.get(index).is_some_and(|row| end(row) <= token) {
                index += 1;
            }
            let row = inputs.rows.get(index);
            if let Some(row) = row.filter(|row| row.start as usize <= token) {
                let node = token - row.start as usize;
                each(row, &inputs.states[index], node, part);
            }
        }
    });
}
