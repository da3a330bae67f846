//! Measures how quantised weights and caches change a model's predictions.
//!
//! Every form of the model reads the same tokens; its predictions of each next
//! token are compared with those of the same checkpoint in f32. That loss has two parts. One is
//! the weights': their numbers, multiplied in f32 with inputs that are not rounded, against the
//! checkpoint's. The other is the arithmetic's: the form as it is served, against those numbers.
//! Weights that are integers in the checkpoint have no other numbers, so only the second part is
//! theirs.

mod logits;
mod score;
mod texts;

use std::path::PathBuf;

use anyhow::Context as _;
use lockstep_config::args::{
    DeviceArg, DtypeArg, KvCacheDtypeArg, MemoryArgs, ModelArgs, QuantizationArg,
};
use lockstep_config::{Hardware, ServeArgs};
use lockstep_types::{Algorithms, EngineConfig};
use serde_json::json;

use crate::report::{Report, progress};
use crate::{DemoModel, machine};
use logits::{Products, Reading};
use score::{Predictions, Score};

/// How far quantised forms of a model stray from it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A model: its folder, or its name on the hub [default: the demo model].
    #[arg(long, value_name = "MODEL")]
    model_path: Option<PathBuf>,
    /// What to compare with f32.
    #[arg(long, value_delimiter = ',', default_value = "none,int8,int4")]
    quantization: Vec<QuantizationArg>,
    /// Caches to try each with.
    #[arg(long, value_delimiter = ',', default_value = "auto,int8")]
    kv_cache_dtype: Vec<KvCacheDtypeArg>,
    /// Text to read [default: text that the model writes itself, sampled at
    /// temperature 1].
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Tokens to read.
    #[arg(long, default_value_t = 2_048)]
    tokens: usize,
    /// Tokens read at a time, nothing known of those before.
    #[arg(long, default_value_t = 256)]
    window: usize,
    /// Kernel threads [default: all cores].
    #[arg(long, value_parser = crate::positive())]
    threads: Option<usize>,
}

/// Compares.
pub fn run(args: &Args, demo: DemoModel) -> anyhow::Result<Report> {
    require!(args.window > 1, "a --window has at least 2 tokens");
    require!(
        args.tokens >= args.window,
        "--tokens {} is less than one --window of {}",
        args.tokens,
        args.window
    );
    let folder = tempfile::tempdir().context("a folder for the demo model")?;
    let path = crate::model_or_demo(args.model_path.clone(), demo, folder.path())?;
    let form = |dtype, quantization, kv| config(args, &path, dtype, quantization, kv);
    let reference = form(
        DtypeArg::Float32,
        QuantizationArg::None,
        KvCacheDtypeArg::Auto,
    )?;
    let windows = texts::windows(args, &reference)?;
    check_memory(&windows, reference.model.vocab_size)?;
    progress("reading the text in float32");
    let Reading {
        predictions: truth,
        weight_bytes,
    } = logits::read(&reference, Products::Dequantized, args.window, &windows)?;
    let mut report = Report::new(
        "Predictions against float32",
        &[
            "weights",
            "KV cache",
            "GB of weights",
            "perplexity",
            "of float32's",
            "KL divergence",
            "KL of weights",
            "KL of arithmetic",
            "KL, worst 1 %",
            "same best token",
        ],
    );
    report.note("model", path.display().to_string());
    report.note("tokens predicted", truth.rows());
    report.note(
        "text",
        args.text.as_ref().map_or_else(
            || "written by the model itself".to_owned(),
            |file| file.display().to_string(),
        ),
    );
    let score = truth.against(&truth);
    add(&mut report, &reference, weight_bytes, &score, [0.0; 2]);
    for &quantization in &args.quantization {
        compare(args, &form, quantization, &windows, &truth, &mut report)?;
    }
    report.note(
        "peak memory GiB",
        machine::peak_memory().map(|bytes| bytes as f64 / f64::from(1 << 30)),
    );
    Ok(report)
}

/// Adds a row for each cache, with weights that are loaded with `quantization`.
fn compare(
    args: &Args,
    form: &impl Fn(DtypeArg, QuantizationArg, KvCacheDtypeArg) -> anyhow::Result<EngineConfig>,
    quantization: QuantizationArg,
    windows: &[Vec<u32>],
    truth: &Predictions,
    report: &mut Report,
) -> anyhow::Result<()> {
    let numbers = form(DtypeArg::Float32, quantization, KvCacheDtypeArg::Auto)?;
    progress(&format!(
        "reading it with the numbers of {} weights",
        name(&numbers)
    ));
    let numbers = logits::read(&numbers, Products::Dequantized, args.window, windows)?;
    let numbers = numbers.predictions;
    let of_weights = truth.against(&numbers).divergence;
    for &kv in &args.kv_cache_dtype {
        let config = form(DtypeArg::Auto, quantization, kv)?;
        progress(&format!(
            "reading it with {} weights, {} cache",
            name(&config),
            config.kv.dtype.name()
        ));
        let found = logits::read(&config, Products::Served, args.window, windows)?;
        let score = truth.against(&found.predictions);
        let of_arithmetic = numbers.against(&found.predictions).divergence;
        let parts = [of_weights, of_arithmetic];
        add(report, &config, found.weight_bytes, &score, parts);
    }
    Ok(())
}

/// Refuses predictions that the machine has too little memory for.
fn check_memory(windows: &[Vec<u32>], vocab: usize) -> anyhow::Result<()> {
    let rows: usize = windows.iter().map(Vec::len).sum();
    let needed = 3 * (rows * vocab * size_of::<f32>()) as u64;
    let available = machine::available_memory().unwrap_or(u64::MAX);
    require!(
        needed < available / 2,
        "predictions of {rows} tokens take {needed} bytes, more than half of the memory available; \
         lower --tokens"
    );
    Ok(())
}

/// Name of the type of the weights.
fn name(config: &EngineConfig) -> &'static str {
    match config.model.quantization {
        lockstep_types::Quantization::None => config.dtype.name(),
        quantization => quantization.name(),
    }
}

/// Adds a row, with the divergences of the weights and of the arithmetic.
fn add(
    report: &mut Report,
    config: &EngineConfig,
    weight_bytes: usize,
    score: &Score,
    [of_weights, of_arithmetic]: [f64; 2],
) {
    report.row(vec![
        json!(name(config)),
        json!(config.kv.dtype.name()),
        json!(weight_bytes as f64 * 1e-9),
        json!(score.perplexity),
        json!(score.ratio),
        json!(score.divergence),
        json!(of_weights),
        json!(of_arithmetic),
        json!(score.worst),
        json!(score.agreement),
    ]);
}

fn config(
    args: &Args,
    path: &std::path::Path,
    dtype: DtypeArg,
    quantization: QuantizationArg,
    kv: KvCacheDtypeArg,
) -> anyhow::Result<EngineConfig> {
    let mut serve = ServeArgs::of_engine(
        ModelArgs {
            model_path: Some(path.to_owned()),
            dtype: Some(dtype),
            quantization: Some(quantization),
            context_length: Some(args.window + 16),
            ..ModelArgs::default()
        },
        lockstep_config::args::ParallelArgs::default(),
        MemoryArgs {
            kv_cache_dtype: Some(kv),
            ..MemoryArgs::default()
        },
        lockstep_config::args::ScheduleArgs::default(),
    );
    serve.parallel.device = Some(DeviceArg::Cpu);
    serve.parallel.threads_per_rank = args.threads;
    serve.schedule.max_running_requests = Some(texts::AT_ONCE);
    Ok(lockstep_config::resolve(
        &serve,
        &Hardware::detect(),
        &Algorithms::default(),
        &lockstep_devices::DeviceFootprint,
    )?
    .value
    .0)
}

#[cfg(test)]
mod tests;
