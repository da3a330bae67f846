//! Products, attention and choosing, each by itself.

use lockstep_backend::{
    Batch, Choice, ChoiceBatch, ChoiceMethod, ChoiceRow, DraftedRow, Holds, KvShape, Linear,
};
use lockstep_devices::Device;
use lockstep_types::{EngineConfig, KvCacheDtype};

use super::parts::{Bench, Line};
use super::sizes::Requests;
use crate::kernels::{Call, Shape, Times, fill, filled, staged};

/// Measures kernels.
pub struct Kernels<'a, B> {
    bench: &'a mut Bench<B>,
    shape: &'a Shape,
    config: &'a EngineConfig,
    /// The kernels measured so far.
    pub lines: Vec<Line>,
}

impl<'a, B: Device> Kernels<'a, B> {
    pub fn new(bench: &'a mut Bench<B>, shape: &'a Shape, config: &'a EngineConfig) -> Self {
        Self {
            bench,
            shape,
            config,
            lines: Vec::new(),
        }
    }

    /// Measures every product of a layer, and the output head, for each number of rows.
    pub fn products(&mut self, rows: &[usize]) -> anyhow::Result<()> {
        let element = self.config.dtype.bytes();
        let layer = self.shape.layer();
        for of in layer.into_iter().chain([self.shape.head()]) {
            let bytes = of.rows * of.cols * element;
            let turns = self.bench.turns(bytes);
            let matrices = (0..turns as u64).map(|key| self.bench.matrix(of, key));
            let matrices: Vec<B::Matrix> = matrices.collect::<anyhow::Result<_>>()?;
            for &rows in rows {
                let backend = &mut self.bench.backend;
                let x = filled(backend, rows, of.cols, Holds::Operand)?;
                let mut out = backend.tensor(rows, of.rows, Holds::Sum)?;
                let times = self.bench.times(turns, |backend, turn| {
                    backend.matmul(&x, Linear::unbiased(&matrices[turn]), &mut out);
                })?;
                self.lines.push(Line {
                    kernel: format!("product {}", of.name),
                    size: format!("{rows} x {} x {}", of.cols, of.rows),
                    times,
                    bytes: (bytes + rows * (element * of.cols + 4 * of.rows)) as f64,
                    operations: 2.0 * rows as f64 * (of.rows * of.cols) as f64,
                });
            }
        }
        Ok(())
    }

    /// Measures one new token of each request over its cached tokens.
    pub fn attention(&mut self, of: Requests) -> anyhow::Result<()> {
        let page_size = self.config.kv.page_size;
        let attention = self.shape.attention();
        let each = (of.tokens + 1).div_ceil(page_size);
        let mut kv = KvShape {
            group: 0,
            layers: 1,
            kv_heads: attention.kv_heads,
            head_dim: attention.head_dim,
            pages: of.requests * each,
            page_size,
            dtype: self.config.kv.dtype,
        };
        let token = kv.bytes_per_token();
        kv.layers = self.bench.turns(token * of.requests * of.tokens);
        if self.config.kv.dtype == KvCacheDtype::Int8 {
            anyhow::bail!("keys and values in 8-bit integers are not measured");
        }
        let backend = &mut self.bench.backend;
        let mut cache = backend.kv_cache(&kv)?;
        self.write_all(&mut cache, &kv)?;
        let backend = &mut self.bench.backend;
        let call = Call::new(of.requests, 1, of.tokens, page_size);
        let qkv = filled(backend, of.requests, attention.qkv_width(), Holds::Sum)?;
        let mut out = backend.tensor(of.requests, attention.out_width(), Holds::Operand)?;
        let inputs = staged(backend, &call.batch(), page_size)?;
        let times = self.bench.times(kv.layers, |backend, layer| {
            backend.attention(&mut cache, layer, &qkv, &attention, &inputs, &mut out);
        })?;
        let per_pair = 4 * attention.heads * attention.head_dim;
        self.lines.push(Line {
            kernel: "attention decode".to_owned(),
            size: of.to_string(),
            times,
            bytes: (of.requests * (of.tokens + 1) * token) as f64,
            operations: (call.pairs() * per_pair) as f64,
        });
        Ok(())
    }

    /// Writes every cell with random numbers. Each page is a request of its own here, so
    /// that next to nothing is attended to.
    fn write_all(&mut self, cache: &mut B::KvCache, kv: &KvShape) -> anyhow::Result<()> {
        const AT_ONCE: usize = 1024;
        let (backend, attention) = (&mut self.bench.backend, self.shape.attention());
        let pages = (AT_ONCE / kv.page_size).clamp(1, kv.pages);
        let tokens = pages * kv.page_size;
        let qkv = filled(backend, tokens, attention.qkv_width(), Holds::Sum)?;
        let mut out = backend.tensor(tokens, attention.out_width(), Holds::Operand)?;
        let mut call = Call::new(pages, kv.page_size, 0, kv.page_size);
        for first in (0..kv.pages).step_by(pages) {
            // The last pages are written twice where fewer are left.
            let first = first.min(kv.pages - pages);
            call.move_to(first * kv.page_size, kv.page_size);
            let inputs = staged(backend, &call.batch(), kv.page_size)?;
            for layer in 0..kv.layers {
                backend.attention(cache, layer, &qkv, &attention, &inputs, &mut out);
            }
        }
        Ok(())
    }

    /// Measures the choice of tokens from rows of logits, by top-k and top-p.
    pub fn choosing(&mut self, rows: usize) -> anyhow::Result<()> {
        let (vocab, repeat) = (self.shape.vocab, self.bench.repeat);
        let call = Call::new(rows, 1, 0, 1);
        let wanted = call.last(rows);
        let choices = Choices::new(&wanted);
        let backend = &mut self.bench.backend;
        let batch = Batch {
            choices: choices.batch(),
            ..call.wanting(&wanted)
        };
        let mut inputs = staged(backend, &batch, 1)?;
        let mut logits = backend.tensor(rows, vocab, Holds::Logits)?;
        let mut seconds = Vec::new();
        for turn in 0..=repeat {
            // Logits may hold anything after tokens were chosen from them.
            backend.write(&mut logits, fill);
            let took = backend.measure(1, &mut |backend| {
                if let Some(sampler) = backend.sampler() {
                    sampler.choose(&mut logits, 0, &mut inputs);
                }
                Ok(())
            })?;
            if turn > 0 {
                seconds.push(took);
            }
        }
        self.lines.push(Line {
            kernel: "choose, top-k and top-p".to_owned(),
            size: format!("{rows} x {vocab}"),
            times: Times::of(seconds),
            bytes: (4 * rows * vocab) as f64,
            operations: 0.0,
        });
        Ok(())
    }
}

/// The choice of a token for each request, in a usual way.
pub struct Choices {
    choices: Vec<Choice>,
    rows: Vec<ChoiceRow>,
    drafted: Vec<DraftedRow>,
}

impl Choices {
    /// The choices of requests that want the logits of these tokens.
    pub fn new(wanted: &[u32]) -> Self {
        let choice = |seed| Choice {
            how: ChoiceMethod::Sample {
                temperature: 0.8,
                top_k: 50,
                top_p: 0.95,
                min_p: 0.0,
            },
            seed,
            position: 1,
        };
        let drafted = |(logits, token): (u32, &u32)| DraftedRow {
            logits,
            token: *token,
            nodes: 0,
            parents: None,
        };
        let row = |request| ChoiceRow { request, depth: 0 };
        Self {
            choices: (0..wanted.len() as u64).map(choice).collect(),
            rows: (0..wanted.len() as u32).map(row).collect(),
            drafted: (0..).zip(wanted).map(drafted).collect(),
        }
    }

    pub fn batch(&self) -> ChoiceBatch<'_> {
        ChoiceBatch {
            choices: &self.choices,
            rows: &self.rows,
            drafted: &self.drafted,
            parents: &[],
        }
    }
}
