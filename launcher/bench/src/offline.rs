//! Prefill and decode tokens/s of a model, without a server.
//!
//! Prefill: one prompt per length, cold cache, one output token. Decode: B
//! requests over a short prompt, timed over the steps in which all B decode;
//! the prompts stay cached, so that only the warm-up computes them. Both run the real planner and the real workers inside this process.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use lockstep_config::args::{MemoryArgs, ModelArgs, ParallelArgs, ScheduleArgs};
use lockstep_config::{EngineConfig, Hardware, ServeArgs};
use lockstep_local_engine::LocalEngine;
use lockstep_proto::{
    request::Request,
    sampling::{LogprobParams, SamplingParams},
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::json;

use crate::{DemoModel, machine, report::Report};

/// Prefill and decode tokens/s of a model.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Prompt lengths for prefill [default: 128,512,2048; demo model: 128,512,1024].
    #[arg(long, value_delimiter = ',')]
    prefill: Vec<usize>,
    /// Batch sizes for decode.
    #[arg(long, value_delimiter = ',', default_value = "1,4,8,16,32")]
    batch: Vec<usize>,
    /// Measure one phase alone [default: both].
    #[arg(long, value_name = "PHASE")]
    only: Option<Phase>,
    /// Prompt tokens of each decoding request.
    #[arg(long, default_value_t = 192)]
    context: usize,
    /// Tokens each decoding request generates.
    #[arg(long, default_value_t = 64)]
    output_len: usize,
    /// Repetitions; the median is reported, with the extremes.
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    parallel: ParallelArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    schedule: ScheduleArgs,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Phase {
    /// Whole prompts, one at a time.
    Prefill,
    /// One token a step for each request.
    Decode,
}

/// Runs the benchmark.
pub fn run(mut args: Args, demo: DemoModel) -> anyhow::Result<Report> {
    ensure!(
        args.repeat > 0 && args.output_len > 1,
        "repeat at least once, over 2 tokens or more"
    );
    // Its folder stays until all is measured.
    let folder = tempfile::tempdir().context("a folder for the demo model")?;
    let inside = args.model.model_path.is_none();
    if inside {
        let path = demo(folder.path()).context("writing the demo model")?;
        args.model.model_path = Some(path);
    }
    if args.prefill.is_empty() {
        // The demo model's context is 2,048 tokens, the first output among them.
        args.prefill = vec![128, 512, if inside { 1024 } else { 2048 }];
    }
    match args.only {
        Some(Phase::Prefill) => args.batch.clear(),
        Some(Phase::Decode) => args.prefill.clear(),
        None => {}
    }
    let config = resolve(&args)?;
    let start = Instant::now();
    let mut engine = LocalEngine::start(&config, None)?;
    let mut report = Report::new(
        "Offline throughput",
        &[
            "phase", "batch", "prompt", "tokens/s", "min", "max", "ms/step",
        ],
    );
    let model = &config.model;
    let name = match inside {
        true => format!("{} (inside the program)", config.server.served_model_name),
        false => model.path.display().to_string(),
    };
    report.note("model", name);
    report.note("parameters", model.parameters() as u64);
    report.note("dtype", config.dtype.name());
    report.note("quantization", config.quantization.name());
    report.note("KV cache dtype", config.kv.dtype.name());
    report.note("tensor-parallel ranks", config.parallel.tp_size as u64);
    report.note("threads per rank", config.parallel.threads_per_rank as u64);
    report.note(
        "backend",
        engine.descriptions().first().cloned().unwrap_or_default(),
    );
    report.note("load seconds", start.elapsed().as_secs_f64());
    for length in &args.prefill {
        let runs = repeat(args.repeat, |_| prefill(&mut engine, *length))?;
        let rate = |took: &Duration| *length as f64 / took.as_secs_f64();
        add(&mut report, "prefill", 1, *length, &runs, rate, 1.0);
    }
    for batch in &args.batch {
        let steps = args.output_len - 1;
        let runs = repeat(args.repeat, |_| decode(&mut engine, *batch, &args))?;
        let rate = |took: &Duration| (*batch * steps) as f64 / took.as_secs_f64();
        add(
            &mut report,
            "decode",
            *batch,
            args.context,
            &runs,
            rate,
            steps as f64,
        );
    }
    let peak = machine::peak_memory().map(|bytes| bytes as f64 / f64::from(1 << 30));
    report.note("peak memory GiB", peak);
    Ok(report)
}

fn resolve(args: &Args) -> anyhow::Result<EngineConfig> {
    let longest = args.prefill.iter().copied().max().unwrap_or(0) + 1;
    let longest = longest.max(args.context + args.output_len);
    let batch = args.batch.iter().copied().max().unwrap_or(1).max(1);
    let mut engine = ServeArgs::of_engine(
        args.model.clone(),
        args.parallel.clone(),
        args.memory.clone(),
        args.schedule.clone(),
    );
    engine.model.context_length.get_or_insert(longest + 16);
    engine.schedule.max_running_requests.get_or_insert(batch);
    let (config, _) = lockstep_config::resolve(&engine, &Hardware::detect())?.value;
    ensure!(
        config.server.context_length >= longest,
        "the measurements need a --context-length of {longest}"
    );
    ensure!(
        config.kv_tokens() >= batch * (args.context + args.output_len + config.kv.page_size),
        "the KV cache holds {} tokens, too few for {batch} requests: raise --max-total-tokens",
        config.kv_tokens()
    );
    Ok(config)
}

fn repeat(
    times: usize,
    mut one: impl FnMut(usize) -> anyhow::Result<Duration>,
) -> anyhow::Result<Vec<Duration>> {
    // The first run touches memory that later ones find in place.
    one(0).context("warm-up")?;
    let mut runs = (0..times)
        .map(&mut one)
        .collect::<anyhow::Result<Vec<_>>>()?;
    runs.sort();
    Ok(runs)
}

fn add(
    report: &mut Report,
    phase: &str,
    batch: usize,
    prompt: usize,
    sorted: &[Duration],
    rate: impl Fn(&Duration) -> f64,
    steps: f64,
) {
    let (Some(fastest), Some(slowest)) = (sorted.first(), sorted.last()) else {
        return;
    };
    let median = &sorted[sorted.len() / 2];
    report.row(vec![
        json!(phase),
        json!(batch),
        json!(prompt),
        json!(rate(median)),
        json!(rate(slowest)),
        json!(rate(fastest)),
        json!(median.as_secs_f64() * 1e3 / steps),
    ]);
}

/// From submitting a prompt to its first token, nothing cached.
fn prefill(engine: &mut LocalEngine, length: usize) -> anyhow::Result<Duration> {
    engine.flush_cache()?;
    let start = Instant::now();
    engine.submit(request(engine.vocab_size(), length, 1, 1))?;
    while engine.step()? {}
    let took = start.elapsed();
    engine.take_outputs().for_each(drop);
    Ok(took)
}

/// The steps in which every request decodes, scaled to all of them: from when
/// the last request has its first token to when the first one ends.
fn decode(engine: &mut LocalEngine, batch: usize, args: &Args) -> anyhow::Result<Duration> {
    for index in 0..batch {
        let seed = index as u64 + 2;
        engine.submit(request(
            engine.vocab_size(),
            args.context,
            args.output_len,
            seed,
        ))?;
    }
    let mut begun = std::collections::BTreeSet::new();
    let (mut started, mut took, mut tokens) = (None::<Instant>, None, 0);
    while engine.step()? {
        let mut ended = false;
        let mut arrived = 0;
        for (id, output) in engine.take_outputs() {
            begun.insert(id);
            arrived += output.token_ids.len();
            ended |= output.finish.is_some();
        }
        match started {
            Some(start) if took.is_none() => {
                tokens += arrived;
                took = ended.then(|| start.elapsed());
            }
            None if begun.len() == batch => started = Some(Instant::now()),
            _ => {}
        }
    }
    let took = took.context("prefill left no step to measure; raise --output-len")?;
    Ok(took.mul_f64((batch * (args.output_len - 1)) as f64 / tokens as f64))
}

fn request(vocab: usize, length: usize, output_len: usize, seed: u64) -> Request {
    let mut random = StdRng::seed_from_u64(seed);
    let vocab = u32::try_from(vocab).unwrap_or(u32::MAX);
    Request {
        trace_id: String::new(),
        input_ids: (0..length).map(|_| random.random_range(0..vocab)).collect(),
        sampling: SamplingParams {
            ignore_eos: true,
            ..SamplingParams::greedy()
        },
        logprobs: LogprobParams::default(),
        max_new_tokens: u32::try_from(output_len).unwrap_or(u32::MAX),
        priority: 0,
        timeout_ms: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn one_phase_alone_makes_its_rows_alone() -> anyhow::Result<()> {
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lockstep-demo-7m");
        let folder = tempfile::tempdir()?;
        for (only, rows) in [("prefill", [17, 33]), ("decode", [20, 20])] {
            let line = format!(
                "offline --model-path {model} --tp-size 1 --threads-per-rank 1 --only {only} \
                 --prefill 17,33 --batch 1,2 --context 20 --output-len 3 --repeat 1"
            );
            let line: Line = clap::Parser::try_parse_from(line.split_whitespace())?;
            let path = folder.path().join(only);
            run(line.args, |_| Err(std::io::ErrorKind::Unsupported.into()))?.write(&path)?;
            let read: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
            let found = read["rows"].as_array().context("rows")?;
            assert!(found.iter().all(|row| row["phase"] == only), "{found:?}");
            let prompts: Vec<_> = found.iter().map(|row| row["prompt"].clone()).collect();
            assert_eq!(prompts, rows.map(|prompt| json!(prompt)));
        }
        Ok(())
    }
}
