//! Gated short convolutions.

use lockstep_backend::{
    ConvolutionShape, Holds, Memory as _, Ops as _, Recurrence, ShortConvolution,
};
use lockstep_backend_cuda::Element;

use super::rows::{TOKENS, brought, text_of, texts};
use crate::support::{Noise, assert_close, tolerance};

/// Channels of more than one block, whose states are no whole units of 16 bytes.
const SHAPE: ConvolutionShape = ConvolutionShape {
    channels: 301,
    taps: 4,
};

/// Weights, and what each token brings.
struct Data {
    convolution: Vec<f32>,
    bias: Option<Vec<f32>>,
    /// `[TOKENS, 3 · channels]`
    projected: Vec<f32>,
}

impl Data {
    fn new(seed: u64) -> Self {
        let noise = &mut Noise(seed);
        let biased = seed.is_multiple_of(2);
        Self {
            convolution: noise.floats(SHAPE.taps * SHAPE.channels),
            bias: biased.then(|| noise.floats(SHAPE.channels)),
            projected: noise.floats(TOKENS * 3 * SHAPE.channels),
        }
    }

    /// Output of the last of `tokens`.
    fn oracle(&self, tokens: &[usize]) -> Vec<f64> {
        let ConvolutionShape { channels, taps } = SHAPE;
        let part = |token: usize, number: usize, channel: usize| {
            f64::from(self.projected[(3 * token + number) * channels + channel])
        };
        let last = tokens.len() - 1;
        let output = |channel: usize| {
            let bias = self.bias.as_ref().map_or(0.0, |bias| bias[channel].into());
            let seen = (0..taps).filter(|tap| last + tap + 1 >= taps);
            let products = seen.map(|tap| {
                let token = tokens[last + tap + 1 - taps];
                let column = part(token, 0, channel) * part(token, 2, channel);
                f64::from(self.convolution[tap * channels + channel]) * column
            });
            part(tokens[last], 1, channel) * (products.sum::<f64>() + bias)
        };
        (0..channels).map(output).collect()
    }
}

fn found(element: Element, data: &Data) -> Vec<f32> {
    let channels = SHAPE.channels;
    let rule = Recurrence::Convolution(SHAPE);
    texts(element, rule, |gpu, states, tokens, inputs| {
        let projected = brought(gpu, &data.projected, 3 * channels, &tokens);
        let mut tensor = |holds| gpu.tensor(tokens.len(), channels, holds).expect("room");
        let (mut space, mut out) = (tensor(Holds::Sum), tensor(Holds::Operand));
        let mut vector = |values: &Vec<f32>| gpu.load_vector(values).expect("room");
        let convolution = vector(&data.convolution);
        let bias = data.bias.as_ref().map(vector);
        let op = ShortConvolution {
            shape: SHAPE,
            convolution: &convolution,
            bias: bias.as_ref(),
        };
        let done = gpu.short_convolution(states, 0, &op, &projected, &mut space, inputs, &mut out);
        done.expect("launches");
        out
    })
}

/// Prompts and trees have the outputs of plain arithmetic.
pub fn check(element: Element, seed: u64) {
    let data = Data::new(seed);
    let found = found(element, &data);
    for (token, found) in found.chunks_exact(SHAPE.channels).enumerate() {
        assert_close(
            found,
            &data.oracle(&text_of(token)),
            4.0 * tolerance(element),
        );
    }
}
