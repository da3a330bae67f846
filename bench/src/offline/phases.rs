//! The two phases, timed.
//!
//! Prefill: one prompt per length, cold cache, one output token. Decode: B requests over a
//! short prompt, timed over the steps in which all B decode. The prompts stay cached, so
//! that only the warm-up computes them.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use lockstep_local_engine::LocalEngine;
use lockstep_types::{adapter::Adapter, request::Request, sampling::SamplingParams};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use super::Args;
use super::cell::Cell;
use super::work::Model;
use crate::report::progress;

/// Measures all cells that the arguments ask for.
pub fn measure(engine: &mut LocalEngine, args: &Args, work: &Model) -> anyhow::Result<Vec<Cell>> {
    let adapters = load_adapters(engine, &args.lora_paths)?;
    let mut cells = Vec::new();
    for &length in &args.prefill {
        progress(&format!("prefill of {length} tokens"));
        cells.push(Cell {
            phase: "prefill",
            batch: 1,
            prompt: length,
            tokens: length,
            steps: 1,
            runs: repeat(args.repeat, || prefill(engine, length, &adapters))?,
            work: work.prefill(length),
        });
    }
    for &batch in &args.batch {
        let steps = args.output_len - 1;
        progress(&format!("decode of {batch} at once, {steps} steps"));
        cells.push(Cell {
            phase: "decode",
            batch,
            prompt: args.context,
            tokens: batch * steps,
            steps,
            runs: repeat(args.repeat, || decode(engine, batch, args, &adapters))?,
            work: work.decode(batch, args.context, steps),
        });
    }
    Ok(cells)
}

/// Loads adapters to the first places.
fn load_adapters(engine: &mut LocalEngine, folders: &[PathBuf]) -> anyhow::Result<Vec<Adapter>> {
    let folders = (0..).zip(folders);
    let loaded = folders.map(|(place, folder)| Ok(engine.load_adapter(place, folder)?));
    loaded.collect()
}

/// Seconds of each run, ascending.
fn repeat(
    times: usize,
    mut one: impl FnMut() -> anyhow::Result<Duration>,
) -> anyhow::Result<Vec<f64>> {
    // The first run touches memory that later runs find in place.
    one().context("warm-up")?;
    let mut runs = (0..times)
        .map(|_| Ok(one()?.as_secs_f64()))
        .collect::<anyhow::Result<Vec<_>>>()?;
    runs.sort_by(f64::total_cmp);
    Ok(runs)
}

/// Time from submitting a prompt to its first token, with nothing cached.
fn prefill(
    engine: &mut LocalEngine,
    length: usize,
    adapters: &[Adapter],
) -> anyhow::Result<Duration> {
    engine.flush_cache()?;
    let start = Instant::now();
    let asked = request(engine.vocab_size(), length, 1, 1);
    engine.submit(adapted(asked, adapters.first()))?;
    while engine.step()? {}
    let took = start.elapsed();
    engine.take_outputs().for_each(drop);
    Ok(took)
}

/// Time of the steps in which every request decodes, scaled to all steps: from the last
/// request's first token to the first request's end.
fn decode(
    engine: &mut LocalEngine,
    batch: usize,
    args: &Args,
    adapters: &[Adapter],
) -> anyhow::Result<Duration> {
    for index in 0..batch {
        let seed = index as u64 + 2;
        let asked = request(engine.vocab_size(), args.context, args.output_len, seed);
        let adapter = adapters.iter().cycle().nth(index);
        engine.submit(adapted(asked, adapter))?;
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

/// Gives a request an adapter.
fn adapted(mut request: Request, adapter: Option<&Adapter>) -> Request {
    request.generation.adapter = adapter.copied();
    request
}

fn request(vocab: usize, length: usize, output_len: usize, seed: u64) -> Request {
    let mut random = StdRng::seed_from_u64(seed);
    let vocab = u32::try_from(vocab).unwrap_or(u32::MAX);
    let prompt = (0..length).map(|_| random.random_range(0..vocab)).collect();
    let endless = SamplingParams {
        ignore_eos: true,
        ..SamplingParams::greedy()
    };
    Request {
        generation: endless.into(),
        ..Request::new(prompt, u32::try_from(output_len).unwrap_or(u32::MAX))
    }
}
