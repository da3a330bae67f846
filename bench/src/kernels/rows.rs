//! Kernels that go over activations row by row: norms, rotary embedding,
//! activation, table look-up.
//!
//! Each kernel is measured with few tokens, whose rows lie in a cache as in a model's
//! step. Then it is measured with many tokens, whose rows stream from memory.

use lockstep_backend::{Batch, Holds, RmsNorm, RopeTable, WeightFormat};
use lockstep_devices::Device;
use lockstep_types::Activation;

use super::line::Line;
use super::setup::{Setup, Times, Weights, filled, load, staged};
use super::shape::Shape;
use crate::roofline::{Traffic, Work};

/// Tokens of a step.
const STEPS: [usize; 2] = [1, 32];
/// Calls timed together, since each takes microseconds.
const CALLS: usize = 256;
/// Positions of the rotary table.
const POSITIONS: usize = 2_048;

/// Adds lines for all kernels.
pub fn measure<B: Device>(
    setup: &Setup,
    shape: &Shape,
    lines: &mut Vec<Line>,
) -> anyhow::Result<()> {
    let mut rows = Rows::<B> {
        backend: setup.backend(Weights::Bf16)?,
        setup,
        shape,
        lines,
    };
    for tokens in STEPS.map(Some).into_iter().chain([None]) {
        rows.norm(tokens)?;
        rows.add_norm(tokens)?;
        rows.rope(tokens)?;
        rows.silu_mul(tokens)?;
        rows.embed(tokens)?;
    }
    Ok(())
}

/// The state of the measurements. In the methods `tokens` is `None` for as many tokens as
/// stream from memory.
struct Rows<'a, B> {
    backend: B,
    setup: &'a Setup,
    shape: &'a Shape,
    lines: &'a mut Vec<Line>,
}

impl<B: Device> Rows<'_, B> {
    fn norm(&mut self, tokens: Option<usize>) -> anyhow::Result<()> {
        let width = self.shape.hidden;
        let rows = self.rows(tokens, 2 * width);
        let (x, mut out) = (self.sums(rows, width)?, self.operands(rows, width)?);
        let weight = self.backend.load_vector(&vec![1.0; width])?;
        let backend = &mut self.backend;
        let times = time(self.setup, tokens, || {
            backend.rms_norm(&x, &weight, 1e-5, &mut out);
        });
        self.add("rms_norm", tokens, rows, 2 * width, times);
        Ok(())
    }

    fn add_norm(&mut self, tokens: Option<usize>) -> anyhow::Result<()> {
        let width = self.shape.hidden;
        let rows = self.rows(tokens, 4 * width);
        let (mut x, delta) = (self.sums(rows, width)?, self.sums(rows, width)?);
        let mut out = self.operands(rows, width)?;
        let weight = self.backend.load_vector(&vec![1.0; width])?;
        let backend = &mut self.backend;
        let times = time(self.setup, tokens, || {
            let norm = RmsNorm {
                weight: &weight,
                eps: 1e-5,
            };
            backend.end_block(&mut x, Some(&delta), norm.into(), &mut out);
        });
        self.add("add_rms_norm", tokens, rows, 4 * width, times);
        Ok(())
    }

    fn rope(&mut self, tokens: Option<usize>) -> anyhow::Result<()> {
        let attention = self.shape.attention();
        let rotated = (attention.heads + attention.kv_heads) * attention.head_dim;
        let rows = self.rows(tokens, 2 * rotated);
        let mut qkv = self.sums(rows, attention.qkv_width())?;
        let half = attention.head_dim / 2;
        let angles = (0..POSITIONS * half).map(|i| i as f32 * 1e-3);
        let table = self.backend.load_rope(RopeTable {
            queries: Vec::new(),
            half,
            cos: angles.clone().map(f32::cos).collect(),
            sin: angles.map(f32::sin).collect(),
        })?;
        let positions: Vec<u32> = (0..rows).map(|row| (row % POSITIONS) as u32).collect();
        let inputs = self.staged(&Batch {
            tokens: &positions,
            positions: &positions,
            cells: &positions,
            ..Batch::default()
        })?;
        let backend = &mut self.backend;
        let times = time(self.setup, tokens, || {
            backend.rope(&mut qkv, &attention, &table, &inputs);
        });
        self.add("rope", tokens, rows, 2 * rotated, times);
        Ok(())
    }

    fn silu_mul(&mut self, tokens: Option<usize>) -> anyhow::Result<()> {
        let width = self.shape.intermediate;
        let rows = self.rows(tokens, 3 * width);
        let (gate_up, mut out) = (self.sums(rows, 2 * width)?, self.operands(rows, width)?);
        let backend = &mut self.backend;
        let times = time(self.setup, tokens, || {
            backend.gate(&gate_up, Activation::Silu, &mut out);
        });
        self.add("silu_mul", tokens, rows, 3 * width, times);
        Ok(())
    }

    fn embed(&mut self, tokens: Option<usize>) -> anyhow::Result<()> {
        let width = self.shape.hidden;
        let rows = self.rows(tokens, 2 * width);
        let table = load(&mut self.backend, self.shape.head(), WeightFormat::Float)?;
        let row_bytes = self.backend.matrix_bytes(&table) / self.shape.vocab;
        let mut out = self.sums(rows, width)?;
        let vocab = self.shape.vocab;
        // Rows far apart, like those of texts.
        let tokens_of: Vec<u32> = (0..rows).map(|i| (i * 7_919 % vocab) as u32).collect();
        let inputs = self.staged(&Batch {
            tokens: &tokens_of,
            positions: &tokens_of,
            cells: &tokens_of,
            ..Batch::default()
        })?;
        let backend = &mut self.backend;
        let times = time(self.setup, tokens, || {
            backend.embed(&table, 0, 1.0, &inputs, &mut out);
        });
        self.add("embed", tokens, rows, width + row_bytes / 4, times);
        Ok(())
    }

    /// Number of rows of `values` f32 each that are read or written.
    fn rows(&self, tokens: Option<usize>, values: usize) -> usize {
        tokens.unwrap_or_else(|| self.setup.working_set.div_ceil(4 * values))
    }

    /// A batch that nothing attends to.
    fn staged(&mut self, batch: &Batch<'_>) -> anyhow::Result<B::Inputs> {
        Ok(staged(&mut self.backend, batch, 1)?)
    }

    fn sums(&mut self, rows: usize, width: usize) -> anyhow::Result<B::Tensor> {
        Ok(filled(&mut self.backend, rows, width, Holds::Sum)?)
    }

    fn operands(&mut self, rows: usize, width: usize) -> anyhow::Result<B::Tensor> {
        Ok(filled(&mut self.backend, rows, width, Holds::Operand)?)
    }

    /// Adds a line for a kernel that reads and writes `values` f32 of each row.
    fn add(
        &mut self,
        kernel: &str,
        tokens: Option<usize>,
        rows: usize,
        values: usize,
        times: Times,
    ) {
        self.lines.push(Line {
            kernel: kernel.to_owned(),
            shape: self.shape.name.clone(),
            format: "f32",
            size: match tokens {
                Some(_) => "in a cache",
                None => "from memory",
            }
            .to_owned(),
            tokens: rows,
            times,
            work: Work {
                bytes: (4 * rows * values) as f64,
                operations: 0.0,
            },
            arithmetics: &[],
            traffic: match tokens {
                Some(_) => Traffic::Cached,
                None => Traffic::Update,
            },
        });
    }
}

fn time(setup: &Setup, tokens: Option<usize>, call: impl FnMut()) -> Times {
    setup.time(if tokens.is_some() { CALLS } else { 1 }, call)
}
