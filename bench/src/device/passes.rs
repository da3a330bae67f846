//! Whole passes of a model: decode steps, a prompt, and the time of recording.

use std::time::Instant;

use lockstep_backend::{Axis, BackendError, Batch};
use lockstep_devices::Device;
use lockstep_model::{
    ForwardLimits, LoadOptions, LogitBlock, LogitSink, ModelCache, ModelError, Transformer,
};
use lockstep_types::{EngineConfig, LayerSpec, ModelConfig};
use serde_json::{Value, json};

use super::kernels::Choices;
use super::parts::{Bench, Ceilings};
use super::sink::Sink;
use super::sizes::Requests;
use super::{Args, Measure, Part};
use crate::kernels::{Call, Times};
use crate::report::{Table, progress};

/// The tables of all passes: with graphs, and launch by launch.
pub fn measure<B: Device>(
    of: &Measure<'_>,
    ceilings: &Ceilings,
    sink: &mut Sink,
) -> anyhow::Result<Vec<Table>> {
    let (args, config) = (of.args, of.config);
    let mut tables = Tables::new();
    let disabled = config.graphs.is_empty();
    let recorded = (!disabled).then_some(&config.graphs[..]);
    for graphs in recorded.into_iter().chain([&[][..]]) {
        let recorded = !graphs.is_empty();
        let steps = args.measures(match recorded {
            true => Part::Steps,
            false => Part::Launches,
        });
        let prompt = args.measures(Part::Prompt) && (recorded || disabled);
        if !steps && !prompt {
            continue;
        }
        let how = if recorded {
            "recorded"
        } else {
            "launch by launch"
        };
        progress(&format!("passes, {how}"));
        let mut model: Loaded<B> = Loaded::new(of, graphs)?;
        if recorded && steps {
            tables.recording.row(model.record()?);
            sink.write("recording", tables.recording.last())?;
        }
        for of in args.decode.iter().filter(|_| steps) {
            tables.steps.row(model.decode(args, *of, how, ceilings)?);
            sink.write("steps", tables.steps.last())?;
        }
        if prompt {
            tables.prefill.row(model.prefill(args.prefill, ceilings)?);
            sink.write("prompt", tables.prefill.last())?;
        }
    }
    Ok(vec![tables.steps, tables.prefill, tables.recording])
}

struct Tables {
    steps: Table,
    prefill: Table,
    recording: Table,
}

impl Tables {
    fn new() -> Self {
        let steps = [
            "requests",
            "passes",
            "device us",
            "min us",
            "max us",
            "floor us",
            "of floor",
            "GB",
            "GB/s",
            "wall us",
            "host us between steps",
        ];
        let prefill = [
            "tokens",
            "ms",
            "min ms",
            "max ms",
            "tokens/s",
            "TFLOP/s",
            "of product",
        ];
        Self {
            steps: Table::new("Decode steps, tokens chosen on the device", &steps),
            prefill: Table::new("A prompt in one pass", &prefill),
            recording: Table::new(
                "Recording all passes before serving",
                &["passes", "seconds", "MiB", "MiB each", "MiB reserved"],
            ),
        }
    }
}

/// A model on a device.
struct Loaded<B: Device> {
    bench: Bench<B>,
    model: Transformer<B>,
    cache: ModelCache<B>,
    limits: ForwardLimits,
    /// Bytes of weights that a decode step reads at any batch.
    weights: f64,
    kv_per_token: f64,
    reserved: f64,
    of: ModelConfig,
}

impl<B: Device> Loaded<B> {
    fn new(of: &Measure<'_>, graphs: &[usize]) -> anyhow::Result<Self> {
        let Measure { args, config, kept } = *of;
        let page_size = config.kv.page_size;
        let working_set = args.working_set << 20;
        let mut bench: Bench<B> = Bench::open(config, graphs, kept, args.repeat, working_set)?;
        let requests = args.decode.iter().map(|of| of.requests).max().unwrap_or(1);
        let limits = ForwardLimits {
            max_tokens: args.prefill.max(requests),
            requests,
            positions: config.server.context_length,
            groups: 1,
            page_size,
            tree_nodes: 0,
            replays: 0,
            logit_block_rows: ForwardLimits::block_rows(config.model.vocab_size),
            max_commit: 1,
        };
        let backend = &mut bench.backend;
        let options = LoadOptions::new(Axis::World, limits);
        let model = Transformer::load(backend, &config.model, options, &mut |_| {})?;
        let decode = args.decode.iter();
        let decode = decode.map(|of| of.requests * (of.tokens + 1).div_ceil(page_size));
        let pages = decode
            .max()
            .unwrap_or(0)
            .max(args.prefill.div_ceil(page_size));
        // Page 0 is kept for padding.
        let cache = model.kv_cache(backend, pages + 1, page_size, config.kv.dtype)?;
        let table = (config.model.vocab_size * config.model.hidden_size) as f64;
        // A step reads only some rows of an embedding that is not the head too.
        let unread = match config.model.tie_word_embeddings {
            true => 0.0,
            false => table * config.dtype.bytes() as f64,
        };
        Ok(Self {
            weights: model.weight_bytes(backend) as f64 - unread,
            kv_per_token: cache.bytes_per_token() as f64,
            reserved: reserved(config) as f64,
            of: config.model.clone(),
            bench,
            model,
            cache,
            limits,
        })
    }

    /// Records the passes that serving would record.
    fn record(&mut self) -> anyhow::Result<Vec<Value>> {
        let begin = Instant::now();
        let backend = &mut self.bench.backend;
        self.model.record(backend, &mut self.cache, &mut |_| {})?;
        // Waits for queued work, which belongs to the recording.
        backend.measure(0, &mut |_| Ok(()))?;
        let seconds = begin.elapsed().as_secs_f64();
        let (passes, bytes) = backend.recorded();
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        Ok(vec![
            json!(passes),
            json!(seconds),
            json!(mib(bytes as f64)),
            json!(mib(bytes as f64) / passes.max(1) as f64),
            json!(mib(self.reserved)),
        ])
    }

    /// Runs steps of one token for each request, behind its cached tokens.
    fn decode(
        &mut self,
        args: &Args,
        of: Requests,
        how: &str,
        ceilings: &Ceilings,
    ) -> anyhow::Result<Vec<Value>> {
        self.write_all(of)?;
        let mut call = Call::new(of.requests, 1, of.tokens, self.limits.page_size);
        // Behind page 0.
        call.place(1, self.limits.page_size);
        let choices = Choices::new(&call.last(of.requests));
        self.run(&call, of.requests, &choices)?;
        self.run(&call, of.requests, &choices)?;
        // A step that is launched kernel by kernel waits for the host: that is part of its time.
        let copies = usize::from(how == "recorded");
        let (mut device, mut wall) = (Vec::new(), Vec::new());
        for _ in 0..self.bench.repeat {
            device.push(self.timed(&call, of.requests, copies, &choices)?);
            let begin = Instant::now();
            for _ in 0..args.steps {
                self.run(&call, of.requests, &choices)?;
            }
            wall.push(begin.elapsed().as_secs_f64() / args.steps as f64);
        }
        let (device, wall) = (Times::of(device), Times::of(wall));
        let cached = (of.requests * (of.tokens + 1)) as f64 * self.kv_per_token;
        let bytes = self.weights + cached;
        let floor = bytes / ceilings.copy.median;
        Ok(vec![
            json!(of.to_string()),
            json!(how),
            json!(device.median * 1e6),
            json!(device.min * 1e6),
            json!(device.max * 1e6),
            json!(floor * 1e6),
            json!(floor / device.median),
            json!(bytes * 1e-9),
            json!(bytes / device.median * 1e-9),
            json!(wall.median * 1e6),
            json!((wall.median - device.median).max(0.0) * 1e6),
        ])
    }

    /// Runs a prompt of `tokens` tokens in one pass, which wants the last token's logits.
    fn prefill(&mut self, tokens: usize, ceilings: &Ceilings) -> anyhow::Result<Vec<Value>> {
        let mut call = Call::new(1, tokens, 0, self.limits.page_size);
        // Behind page 0.
        call.place(1, self.limits.page_size);
        let choices = Choices::new(&call.last(1));
        self.run(&call, 1, &choices)?;
        let mut seconds = Vec::new();
        for _ in 0..self.bench.repeat {
            seconds.push(self.timed(&call, 1, 1, &choices)?);
        }
        let times = Times::of(seconds);
        let operations = operations(&self.of, tokens, call.pairs());
        Ok(vec![
            json!(tokens),
            json!(times.median * 1e3),
            json!(times.min * 1e3),
            json!(times.max * 1e3),
            json!(tokens as f64 / times.median),
            json!(operations / times.median * 1e-12),
            json!(operations / times.median / ceilings.product.median),
        ])
    }

    /// Writes prompts to the cells that a decode step reads.
    fn write_all(&mut self, of: Requests) -> anyhow::Result<()> {
        let page_size = self.limits.page_size;
        let each = (of.tokens + 1).div_ceil(page_size);
        for request in 0..of.requests {
            for from in (0..of.tokens).step_by(self.limits.max_tokens) {
                let tokens = self.limits.max_tokens.min(of.tokens - from);
                let mut call = Call::new(1, tokens, from, page_size);
                // Behind page 0, and the requests before.
                call.place(1 + request * each, page_size);
                self.run(&call, 1, &Choices::new(&call.last(1)))?;
            }
        }
        Ok(())
    }

    /// Runs a pass that wants the last `wanted` logits.
    fn run(&mut self, call: &Call, wanted: usize, choices: &Choices) -> Result<(), ModelError> {
        let wanted = call.last(wanted);
        let batch = chosen(&self.model, call.wanting(&wanted), choices);
        let (backend, cache) = (&mut self.bench.backend, &mut self.cache);
        self.model.forward_into(
            backend,
            cache,
            &batch,
            None,
            &mut |_, _| Ok(()),
            &mut Ignored,
        )
    }

    /// Seconds of one pass by the device's clock.
    fn timed(
        &mut self,
        call: &Call,
        wanted: usize,
        copies: usize,
        choices: &Choices,
    ) -> anyhow::Result<f64> {
        let wanted = call.last(wanted);
        let batch = chosen(&self.model, call.wanting(&wanted), choices);
        let (model, cache) = (&mut self.model, &mut self.cache);
        let mut failed = None;
        let mut work = |backend: &mut B| -> Result<(), BackendError> {
            let done = model.forward_into(
                backend,
                cache,
                &batch,
                None,
                &mut |_, _| Ok(()),
                &mut Ignored,
            );
            failed = done.err();
            Ok(())
        };
        let seconds = self.bench.backend.measure(copies, &mut work)?;
        failed.map_or(Ok(seconds), |error| Err(error.into()))
    }
}

/// The batch, with the choice of its tokens by `choices` if the device chooses.
fn chosen<'a, B: Device>(
    model: &Transformer<B>,
    batch: Batch<'a>,
    choices: &'a Choices,
) -> Batch<'a> {
    match model.chooses() {
        true => Batch {
            choices: choices.batch(),
            ..batch
        },
        false => batch,
    }
}

/// Drops the logits of a pass.
struct Ignored;

impl LogitSink for Ignored {
    fn take(&mut self, _: LogitBlock<'_>) {}
}

/// Bytes that configuration keeps free for recorded passes.
fn reserved(config: &EngineConfig) -> u64 {
    use lockstep_types::Footprint as _;
    let memory = lockstep_devices::DeviceFootprint.rank(&config.shape(), 0);
    memory.graphs
}

/// Multiplications and additions of a prompt's pass: all products of its tokens, the head
/// for the last token alone, and attention over `pairs` pairs of positions.
fn operations(model: &ModelConfig, tokens: usize, pairs: usize) -> f64 {
    let hidden = model.hidden_size;
    let products =
        |layer: &LayerSpec| layer.mixer.elements(hidden) + hidden * layer.mlp.active_rows();
    let products: usize = model.layers.iter().map(products).sum();
    let pair: usize = model
        .layers
        .iter()
        .map(|layer| layer.mixer.operations_per_pair())
        .sum();
    let head = 2.0 * (model.vocab_size * model.hidden_size) as f64;
    2.0 * tokens as f64 * products as f64 + head + pair as f64 * pairs as f64
}
