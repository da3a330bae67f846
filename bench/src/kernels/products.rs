//! Matrix products with the weights of a layer.
//!
//! The number of layers is such that their weights are several times the last-level cache.
//! The layers are used in turn, as in a model.

use lockstep_backend::{Backend, Holds, Linear, MatrixRole, Memory};
use lockstep_devices::Device;
use serde_json::json;

use super::line::Line;
use super::setup::{Setup, Times, Weights, filled, load};
use super::shape::{Matrix, Shape};
use crate::report::Table;
use crate::roofline::{Traffic, Work};

/// The most tokens of a step in the table of steps.
const STEP_TOKENS: usize = 16;
/// Most tokens whose logits are wanted at once.
const HEAD_TOKENS: usize = 64;
/// Seconds that one measurement of many tokens may take. Such measurements are bound by
/// arithmetic, and need not go through all layers.
const PATIENCE: f64 = 0.25;

/// The weights of some layers and of the output head.
pub struct Products<'a, B: Backend> {
    setup: &'a Setup,
    shape: &'a Shape,
    weights: Weights,
    backend: B,
    kinds: [Matrix; 4],
    layers: Vec<[B::Matrix; 4]>,
    head: B::Matrix,
    /// The layer to use next.
    next: usize,
}

/// Inputs and outputs of each matrix of a layer, then of the output head.
type Activations<B> = Vec<(<B as Memory>::Tensor, <B as Memory>::Tensor)>;

impl<'a, B: Device> Products<'a, B> {
    /// Packs the weights.
    pub fn load(setup: &'a Setup, shape: &'a Shape, weights: Weights) -> anyhow::Result<Self> {
        let mut backend: B = setup.backend(weights)?;
        let [projection, vocabulary] = MatrixRole::ROUNDED.map(|role| weights.format(role));
        let kinds = shape.layer();
        let mut layers = Vec::new();
        let mut bytes = 0;
        while bytes < setup.working_set {
            let mut layer = Vec::with_capacity(kinds.len());
            for kind in kinds {
                layer.push(load(&mut backend, kind, projection)?);
            }
            let Ok(layer) = <[B::Matrix; 4]>::try_from(layer) else {
                anyhow::bail!("a layer has four matrices");
            };
            bytes += layer
                .iter()
                .map(|matrix| backend.matrix_bytes(matrix))
                .sum::<usize>();
            layers.push(layer);
        }
        let head = load(&mut backend, shape.head(), vocabulary)?;
        Ok(Self {
            setup,
            shape,
            weights,
            backend,
            kinds,
            layers,
            head,
            next: 0,
        })
    }

    /// Adds a line per matrix and number of tokens.
    pub fn measure(&mut self, tokens: &[usize], lines: &mut Vec<Line>) -> anyhow::Result<()> {
        for &tokens in tokens {
            let with_head = tokens <= HEAD_TOKENS;
            let mut activations = self.activations(tokens, with_head)?;
            // Touches the activations, and measures how many layers fit in the time.
            let once: f64 = self.sweep(1, &mut activations).iter().sum();
            let layers = (PATIENCE / once) as usize;
            let layers = layers.clamp(1, self.layers.len());
            let rounds: Vec<_> = (0..self.setup.repeat)
                .map(|_| self.sweep(layers, &mut activations))
                .collect();
            let mut kinds = self.kinds.to_vec();
            kinds.extend(with_head.then(|| self.shape.head()));
            for (index, kind) in kinds.into_iter().enumerate() {
                let times = Times::of(rounds.iter().map(|round| round[index]).collect());
                let matrix = self.layers[0].get(index).unwrap_or(&self.head);
                let bytes = self.backend.matrix_bytes(matrix) as f64;
                lines.push(self.line(kind, tokens, bytes, times));
            }
        }
        Ok(())
    }

    /// Adds a row per number of tokens: the cost of a step of all products of a layer,
    /// relative to a step of one token. The steps are measured alternately, since machines
    /// drift.
    pub fn measure_steps(&mut self, table: &mut Table) -> anyhow::Result<()> {
        let mut activations = (1..=STEP_TOKENS)
            .map(|tokens| self.activations(tokens, false))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let (layers, repeat) = (self.layers.len(), self.setup.repeat);
        let mut round = || -> Vec<f64> {
            let step = |step: &mut Activations<B>| self.sweep(layers, step).iter().sum();
            activations.iter_mut().map(step).collect()
        };
        round();
        let rounds: Vec<_> = (0..repeat).map(|_| round()).collect();
        for tokens in 1..=STEP_TOKENS {
            let of = |part: &dyn Fn(&Vec<f64>) -> f64| Times::of(rounds.iter().map(part).collect());
            let times = of(&|round| round[tokens - 1]);
            let ratio = of(&|round| round[tokens - 1] / round[0]);
            table.row(vec![
                json!(format!("verify {tokens} tokens / 1 token")),
                json!(self.shape.name),
                json!(self.weights.name()),
                json!(tokens),
                json!(times.median * 1e6),
                json!(ratio.median),
                json!(ratio.min),
                json!(ratio.max),
            ]);
        }
        Ok(())
    }

    fn line(&self, kind: Matrix, tokens: usize, bytes: f64, times: Times) -> Line {
        let Matrix { name, rows, cols } = kind;
        Line {
            kernel: format!("matmul {name}"),
            shape: self.shape.name.clone(),
            format: self.weights.name(),
            size: format!("{cols} -> {rows}"),
            tokens,
            times,
            work: Work {
                bytes,
                operations: (2 * tokens * rows * cols) as f64,
            },
            arithmetics: self.weights.arithmetics(),
            traffic: Traffic::Read,
        }
    }

    fn activations(&mut self, tokens: usize, with_head: bool) -> anyhow::Result<Activations<B>> {
        let mut kinds = self.kinds.to_vec();
        kinds.extend(with_head.then(|| self.shape.head()));
        let mut activations = Vec::with_capacity(kinds.len());
        for kind in kinds {
            let x = filled(&mut self.backend, tokens, kind.cols, Holds::Operand)?;
            activations.push((x, self.backend.tensor(tokens, kind.rows, Holds::Sum)?));
        }
        Ok(activations)
    }

    /// Seconds of each product, on average over the next `count` layers. The output head
    /// follows, as in a model, where it has activations.
    fn sweep(&mut self, count: usize, activations: &mut Activations<B>) -> Vec<f64> {
        let clock = self.setup.clock;
        let mut seconds = vec![0.0; activations.len()];
        for _ in 0..count {
            let layer = &self.layers[self.next];
            self.next = (self.next + 1) % self.layers.len();
            for ((matrix, (x, out)), seconds) in
                layer.iter().zip(&mut *activations).zip(&mut seconds)
            {
                let start = clock.seconds();
                self.backend.matmul(x, Linear::unbiased(matrix), out);
                *seconds += (clock.seconds() - start) / count as f64;
            }
        }
        if let (Some((x, out)), Some(seconds)) =
            (activations.get_mut(self.kinds.len()), seconds.last_mut())
        {
            let start = clock.seconds();
            self.backend.matmul(x, Linear::unbiased(&self.head), out);
            *seconds = clock.seconds() - start;
        }
        seconds
    }
}

/// The table that [`Products::measure_steps`] fills.
pub fn step_table() -> Table {
    Table::new(
        "All matrix products of a layer, relative to one token",
        &[
            "step", "shape", "weights", "tokens", "us", "ratio", "low", "high",
        ],
    )
}
