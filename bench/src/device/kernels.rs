//! Products, attention and choosing, each by itself.

use lockstep_backend::{
    Batch, Choice, ChoiceBatch, ChoiceMethod, ChoiceRow, DraftedRow, Holds, KvShape, Linear,
};
use lockstep_devices::Device;
use lockstep_types::{EngineConfig, KvCacheDtype};

use serde_json::Value;

use super::parts::{Alone, Bench, COLUMNS, Ceilings, Line, rope, unnormed};
use super::sink::Sink;
use super::sizes::Requests;
use crate::kernels::{Call, Shape, Times, fill, filled, staged};
use crate::report::{object, progress};

/// Kernels of attention, with the one that reads memory to empty the caches.
const ATTEND: &[&str] = &["attend", "attend_wide", "read_all"];
const WHOLE: &[&str] = &[
    "attend",
    "attend_wide",
    "attention_merge",
    "attention_plan",
    "read_all",
];
const MERGE: &[&str] = &["attention_merge", "read_all"];
const PLAN: &[&str] = &["attention_plan", "read_all"];
/// Most rows of the output head: a prompt wants the logits of its last token alone.
const HEAD_ROWS: usize = 512;

/// Measures kernels.
pub struct Kernels<'a, B> {
    pub bench: &'a mut Bench<B>,
    pub shape: &'a Shape,
    pub config: &'a EngineConfig,
    ceilings: &'a Ceilings,
    sink: &'a mut Sink,
    part: &'static str,
    /// The figures of the kernels measured so far, by [`COLUMNS`].
    pub figures: Vec<Vec<Value>>,
}

impl<'a, B: Device> Kernels<'a, B> {
    pub fn new(
        bench: &'a mut Bench<B>,
        shape: &'a Shape,
        config: &'a EngineConfig,
        ceilings: &'a Ceilings,
        sink: &'a mut Sink,
    ) -> Self {
        Self {
            bench,
            shape,
            config,
            ceilings,
            sink,
            part: "",
            figures: Vec::new(),
        }
    }

    /// Names the part that the next figures belong to.
    pub fn begin(&mut self, part: &'static str) {
        self.part = part;
        progress(part);
    }

    /// Keeps a measured kernel.
    pub fn keep(&mut self, line: &Line) -> anyhow::Result<()> {
        let cells = line.cells(self.ceilings);
        self.sink.write(self.part, object(&COLUMNS, &cells))?;
        self.figures.push(cells);
        Ok(())
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
            let is_head = of == self.shape.head();
            for &rows in rows.iter().filter(|rows| !is_head || **rows <= HEAD_ROWS) {
                let backend = &mut self.bench.backend;
                let x = filled(backend, rows, of.cols, Holds::Operand)?;
                let mut out = backend.tensor(rows, of.rows, Holds::Sum)?;
                let times = self.bench.times(turns, |backend, turn| {
                    backend.matmul(&x, Linear::unbiased(&matrices[turn]), &mut out);
                })?;
                self.keep(&Line {
                    kernel: format!("product {}", of.name),
                    size: format!("{rows} x {} x {}", of.cols, of.rows),
                    times,
                    bytes: (bytes + rows * (element * of.cols + 4 * of.rows)) as f64,
                    operations: 2.0 * rows as f64 * (of.rows * of.cols) as f64,
                })?;
            }
        }
        Ok(())
    }

    /// Measures one new token of each request over its cached tokens.
    pub fn attention(&mut self, of: Requests) -> anyhow::Result<()> {
        let call = Call::new(of.requests, 1, of.tokens, self.config.kv.page_size);
        self.attend(
            &call,
            "decode",
            &of.to_string(),
            of.requests * (of.tokens + 1),
        )
    }

    /// Measures a prompt that attends to itself.
    pub fn prompt(&mut self, tokens: usize) -> anyhow::Result<()> {
        let call = Call::new(1, tokens, 0, self.config.kv.page_size);
        self.attend(&call, "prompt", &tokens.to_string(), tokens)
    }

    /// Measures attention whole and its kernels by themselves. The batch reads `cached`
    /// positions.
    fn attend(&mut self, call: &Call, what: &str, size: &str, cached: usize) -> anyhow::Result<()> {
        if self.config.kv.dtype == KvCacheDtype::Int8 {
            anyhow::bail!("keys and values in 8-bit integers are not measured");
        }
        let page_size = self.config.kv.page_size;
        let attention = self.shape.attention();
        let (pages, tokens) = (call.pages(), call.tokens());
        let kv = self.cache_shape(pages * page_size);
        let token = kv.bytes_per_token() / kv.layers;
        let backend = &mut self.bench.backend;
        let mut cache = backend.kv_cache(&kv)?;
        self.write_all(&mut cache, &kv)?;
        let backend = &mut self.bench.backend;
        let rope = rope(backend, attention.head_dim, call.positions())?;
        let mut qkv = filled(backend, tokens, attention.qkv_width(), Holds::Sum)?;
        let mut out = backend.tensor(tokens, attention.out_width(), Holds::Operand)?;
        let inputs = staged(backend, &call.batch(), page_size)?;
        // Queries that were rotated once stay in `qkv`, rounded as attention reads them.
        let mut run = |backend: &mut B, layer| {
            let op = unnormed(&attention, &rope);
            backend.attend(&mut cache, layer, &mut qkv, &op, &inputs, &mut out);
        };
        let per_pair = 4 * attention.heads * attention.head_dim;
        let operations = (call.pairs() * per_pair) as f64;
        let read = cached * token;
        for (names, label, once, bytes, operations) in [
            (WHOLE, format!("attention {what}"), false, read, operations),
            (ATTEND, format!("attend of {what}"), false, read, operations),
            (MERGE, format!("attention_merge of {what}"), false, 0, 0.0),
            // Once for all layers of a pass.
            (PLAN, format!("attention_plan of {what}"), true, 0, 0.0),
        ] {
            let of = Alone {
                names,
                label: &label,
                size: size.to_owned(),
                arrays: if once { 1 } else { kv.layers },
                once,
                bytes: bytes as f64,
                operations,
            };
            self.alone(&of, &mut run)?;
        }
        Ok(())
    }

    /// Returns the shape of a cache of `cells`, with as many layers as are used in turn.
    pub fn cache_shape(&self, cells: usize) -> KvShape {
        let (page_size, attention) = (self.config.kv.page_size, self.shape.attention());
        let mut kv = KvShape {
            latent: None,
            group: 0,
            layers: 1,
            kv_heads: attention.kv_heads,
            head_dim: attention.head_dim,
            pages: cells.div_ceil(page_size),
            page_size,
            dtype: self.config.kv.dtype,
        };
        kv.layers = self.bench.layers(kv.bytes_per_token() * cells);
        kv
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
                backend.attention(cache, layer, &qkv, &attention, None, &inputs, &mut out);
            }
        }
        Ok(())
    }

    /// Measures the choice of tokens from rows of logits, by top-k and top-p or the likeliest.
    pub fn choosing(&mut self, rows: usize, greedy: bool) -> anyhow::Result<()> {
        let (vocab, repeat) = (self.shape.vocab, self.bench.repeat);
        let call = Call::new(rows, 1, 0, 1);
        let wanted = call.last(rows);
        let choices = match greedy {
            true => Choices::greedy(&wanted),
            false => Choices::new(&wanted),
        };
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
        let how = if greedy { "greedy" } else { "top-k and top-p" };
        self.keep(&Line {
            kernel: format!("choose, {how}"),
            size: format!("{rows} x {vocab}"),
            times: Times::of(seconds),
            bytes: (4 * rows * vocab) as f64,
            operations: 0.0,
        })
    }
}

/// The choice of a token for each request, in a usual way.
pub struct Choices {
    choices: Vec<Choice>,
    rows: Vec<ChoiceRow>,
    drafted: Vec<DraftedRow>,
}

impl Choices {
    /// The choices of requests that want the logits of these tokens, by top-k and top-p.
    pub fn new(wanted: &[u32]) -> Self {
        let how = ChoiceMethod::Sample {
            temperature: 0.8,
            top_k: 50,
            top_p: 0.95,
            min_p: 0.0,
        };
        Self::by(how, wanted)
    }

    /// The likeliest token for each of these requests.
    pub fn greedy(wanted: &[u32]) -> Self {
        Self::by(ChoiceMethod::Greedy, wanted)
    }

    fn by(how: ChoiceMethod, wanted: &[u32]) -> Self {
        let choice = |seed| Choice {
            how,
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
