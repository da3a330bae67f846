//! The gated short convolution of LFM2.

use lockstep_backend::ShortConvolution;

use super::columns::commit;
use super::convolution::{Columns, Convolution, for_tokens};
use super::states::Places;
use crate::inputs::CpuInputs;
use crate::isa::Isa;
use crate::multiversion::multiversion;
use crate::partition::for_rows;
use crate::pool::Pool;
use crate::tensor::CpuVector;

multiversion! {
    /// `out = a · b`.
    fn product(a: &[f32], b: &[f32], out: &mut [f32]) {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = a * b;
        }
    }
}

multiversion! {
    /// `x = x · by`.
    fn product_in_place(x: &mut [f32], by: &[f32]) {
        for (x, by) in x.iter_mut().zip(by) {
            *x *= by;
        }
    }
}

/// Runs all rows. `projected` and the column of `zeros` are read, and `space` becomes the columns of
/// the convolution.
pub(super) fn run(
    pool: &mut Pool,
    isa: Isa,
    places: &Places<'_>,
    op: &ShortConvolution<'_, CpuVector>,
    [projected, zeros]: [&[f32]; 2],
    [space, out]: [&mut [f32]; 2],
    inputs: &CpuInputs,
) {
    let channels = op.shape.channels;
    let part = |token: usize, number: usize| {
        let first = (3 * token + number) * channels;
        &projected[first..first + channels]
    };
    for_rows(pool, space, channels, |tokens, columns| {
        for (token, column) in tokens.zip(columns.chunks_exact_mut(channels)) {
            product(isa, part(token, 0), part(token, 2), column);
        }
    });
    let columns = Columns {
        values: space,
        width: channels,
    };
    let convolution = Convolution {
        isa,
        places,
        taps: &op.convolution.0,
        bias: op.bias.map(|bias| &*bias.0),
        columns,
        zeros,
        inputs,
    };
    for_tokens(pool, inputs, out, channels, |row, state, node, out| {
        convolution.run(row, state, node, out);
        convolution.record(row, state, node);
        product_in_place(isa, out, part(row.start as usize + node, 1));
    });
    pool.for_chunks(inputs.rows.len(), |_, index| {
        let (row, state) = (&inputs.rows[index], &inputs.states[index]);
        commit(places, columns, row, state, inputs);
    });
}
