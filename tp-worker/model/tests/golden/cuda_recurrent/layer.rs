//! A recurrent layer of any rule with random weights on a device.

use lockstep_backend::{
    Backend, BackendError, ColumnGroups, DeltaOperands, GatedDelta, Holds, Mamba2, Mamba2Operands,
    Recurrence, RmsNorm, ShortConvolution,
};

/// Added to mean squares.
const EPS: f32 = 1e-6;

/// Weights of a layer, by their roles.
struct Weights<V> {
    convolution: V,
    /// Biases of the convolution, with an even number of taps.
    bias: Option<V>,
    a_log: V,
    dt_bias: V,
    /// Factors of values in outputs.
    skip: V,
    /// Norm of one head, or with Mamba-2 of all.
    norm: V,
}

/// Columns that a token brings, and those of what the layer makes of it.
#[derive(Debug, Clone, Copy)]
pub struct Widths {
    /// All projections but the gates.
    pub projected: usize,
    /// Strengths and decays, or steps.
    pub gates: usize,
    pub out: usize,
    space: usize,
}

impl Widths {
    pub fn of(rule: &Recurrence) -> Self {
        let space = rule.convolution().channels;
        match rule {
            Recurrence::Delta(shape) => Self {
                projected: space + shape.value_width(),
                gates: 2 * shape.value_heads,
                out: shape.value_width(),
                space,
            },
            Recurrence::Mamba2(shape) => Self {
                projected: space + shape.value_width(),
                gates: shape.value_heads,
                out: shape.value_width(),
                space,
            },
            // There are no gates apart; a column stands for them.
            Recurrence::Convolution(_) => Self {
                projected: 3 * space,
                gates: 1,
                out: space,
                space,
            },
        }
    }
}

/// Activations of some tokens.
pub struct Tensors<T> {
    pub projected: T,
    pub gates: T,
    pub out: T,
    space: T,
    /// Output of Mamba-2 before its norm, and sums of squares.
    gated: T,
    squares: T,
}

pub struct Layer<B: Backend> {
    rule: Recurrence,
    weights: Weights<B::Vector>,
    pub tensors: Tensors<B::Tensor>,
}

/// Groups of the output's columns, as of one of several ranks: a part of the first, the second, and
/// nothing of the last.
fn groups(columns: usize) -> ColumnGroups {
    ColumnGroups {
        count: 3,
        width: columns / 2 + 3,
        first: 5,
    }
}

impl<B: Backend> Layer<B> {
    /// Makes a layer for passes of at most `tokens` tokens. `noise` makes numbers of a seed in ±1.
    pub fn new(
        backend: &mut B,
        rule: Recurrence,
        tokens: usize,
        noise: impl Fn(u64, usize, f32, f32) -> Vec<f32>,
    ) -> Self {
        let (widths, convolution) = (Widths::of(&rule), rule.convolution());
        let heads = rule.heads().map_or(1, |heads| heads.value_heads);
        let normed = match rule {
            Recurrence::Delta(shape) => shape.value_dim,
            _ => widths.out,
        };
        let mut vector = |seed, len, scale, shift| {
            let values = noise(seed, len, scale, shift);
            backend.load_vector(&values).unwrap()
        };
        let biased = convolution.taps.is_multiple_of(2);
        let weights = Weights {
            convolution: vector(1, convolution.taps * convolution.channels, 0.8, 0.0),
            bias: biased.then(|| vector(6, convolution.channels, 0.5, 0.0)),
            a_log: vector(2, heads, 2.0, -1.0),
            dt_bias: vector(3, heads, 2.0, -2.0),
            skip: vector(5, heads, 1.0, 0.5),
            norm: vector(4, normed, 0.3, 1.0),
        };
        let mut tensor = |width, holds| backend.tensor(tokens, width, holds).unwrap();
        let tensors = Tensors {
            projected: tensor(widths.projected, Holds::Sum),
            gates: tensor(widths.gates, Holds::Sum),
            out: tensor(widths.out, Holds::Operand),
            space: tensor(widths.space, Holds::Sum),
            gated: tensor(widths.out, Holds::Sum),
            squares: tensor(groups(widths.out).count, Holds::Sum),
        };
        Self {
            rule,
            weights,
            tensors,
        }
    }

    pub fn set_rows(&mut self, backend: &mut B, rows: usize) {
        let Tensors {
            projected,
            gates,
            out,
            space,
            gated,
            squares,
        } = &mut self.tensors;
        for tensor in [projected, gates, out, space, gated, squares] {
            backend.set_rows(tensor, rows);
        }
    }

    /// Runs the layer over a staged batch, as layer `layer` of `states`.
    pub fn run(
        &mut self,
        backend: &mut B,
        (states, layer): (&mut B::States, usize),
        inputs: &B::Inputs,
    ) -> Result<(), BackendError> {
        let Weights {
            convolution,
            bias,
            a_log,
            dt_bias,
            skip,
            norm,
        } = &self.weights;
        let Tensors {
            projected,
            gates,
            out,
            space,
            gated,
            squares,
        } = &mut self.tensors;
        match self.rule {
            Recurrence::Delta(shape) => {
                let op = GatedDelta {
                    shape,
                    convolution,
                    a_log,
                    dt_bias,
                    norm,
                    eps: EPS,
                };
                let operands = DeltaOperands {
                    projected,
                    gates,
                    space,
                };
                backend.gated_delta(states, layer, &op, operands, inputs, out)
            }
            Recurrence::Mamba2(shape) => {
                let op = Mamba2 {
                    shape,
                    convolution,
                    convolution_bias: bias.as_ref(),
                    a_log,
                    dt_bias,
                    skip,
                };
                let operands = Mamba2Operands {
                    projected,
                    steps: gates,
                    space,
                };
                backend.mamba2(states, layer, &op, operands, inputs, gated)?;
                let groups = groups(shape.value_width());
                backend.group_square_sums(gated, &groups, squares)?;
                let weight = norm;
                let norm = RmsNorm { weight, eps: EPS };
                backend.group_norm(gated, &groups, squares, norm, out)
            }
            Recurrence::Convolution(shape) => {
                let bias = bias.as_ref();
                let op = ShortConvolution {
                    shape,
                    convolution,
                    bias,
                };
                backend.short_convolution(states, layer, &op, projected, space, inputs, out)
            }
        }
    }
}
