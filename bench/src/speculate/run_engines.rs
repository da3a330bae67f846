//! Times the same prompts through all engines, one after the other.

use std::io::IsTerminal as _;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use lockstep_local_engine::LocalEngine;
use lockstep_types::generation::GenerationParams;
use lockstep_types::request::Request;
use lockstep_types::sampling::SamplingParams;

use super::tally::{Cell, Run, Runner, Tally, merge};
use super::{
    Args,
    engines::Engines,
    prompts::{Domain, Prompts},
};
use crate::report::progress;

/// Runs everything that the arguments ask for.
///
/// # Errors
/// The errors of an engine.
pub fn all(
    args: &Args,
    prompts: &Prompts,
    engines: &mut Engines,
    tally: &mut Tally,
) -> anyhow::Result<()> {
    warm_up(args, prompts, engines)?;
    let runners = runners(args, engines);
    let bar = bar(args, prompts, runners.len());
    let mut turn = 0;
    for repetition in 0..args.repeat {
        for domain in prompts.domains() {
            if bar.is_hidden() {
                progress(&format!("{}, repetition {}", domain.name, repetition + 1));
            }
            bar.set_message(domain.name.clone());
            for &size in &args.batch {
                for batch in domain.batches(size) {
                    let requests: Vec<Request> = batch
                        .iter()
                        .map(|ids| request(ids, domain, args.max_tokens))
                        .collect();
                    let mut runs = Vec::with_capacity(runners.len());
                    for at in 0..runners.len() {
                        // Each engine comes first in turn.
                        let runner = (at + turn) % runners.len();
                        let engine = runners[runner].engine(engines);
                        runs.push((runner, run(engine, &requests)?));
                        bar.inc(1);
                    }
                    turn += 1;
                    runs.sort_by_key(|(runner, _)| *runner);
                    let plain = runs[0].1.texts.clone();
                    for (runner, run) in runs {
                        let cell = Cell {
                            domain: domain.name.clone(),
                            batch: size,
                            runner: runners[runner].clone(),
                        };
                        tally.add(cell, repetition, &run, &plain);
                    }
                }
            }
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// The runners in order: without speculation first, then every algorithm at every depth.
fn runners(args: &Args, engines: &mut Engines) -> Vec<Runner> {
    let mut runners = vec![Runner::plain()];
    for (at, (name, _)) in engines.drafting().iter().enumerate() {
        runners.extend(args.steps.iter().map(|&steps| Runner {
            engine: Some(at),
            algorithm: name.clone(),
            steps,
        }));
    }
    runners
}

impl Runner {
    fn engine<'a>(&self, engines: &'a mut Engines) -> &'a mut LocalEngine {
        let Some(at) = self.engine else {
            return engines.plain();
        };
        let engine = &mut engines.drafting()[at].1;
        engine.set_draft_steps(self.steps);
        engine
    }
}

/// Touches memory that later runs find in place.
fn warm_up(args: &Args, prompts: &Prompts, engines: &mut Engines) -> anyhow::Result<()> {
    let size = args.batch.iter().copied().max().unwrap_or(1);
    // The first of those that are constrained too: its grammar is compiled here.
    let constrained = prompts
        .domains()
        .iter()
        .find(|own| own.constraint.is_some());
    for domain in prompts.domains().iter().take(1).chain(constrained) {
        let batch = domain.batches(size).remove(0);
        let requests: Vec<Request> = batch
            .iter()
            .map(|ids| request(ids, domain, args.max_tokens))
            .collect();
        run(engines.plain(), &requests)?;
        for (_, engine) in engines.drafting() {
            run(engine, &requests)?;
        }
    }
    Ok(())
}

fn bar(args: &Args, prompts: &Prompts, runners: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let batches = |size: &usize| {
        let domains = prompts.domains().iter();
        domains
            .map(|domain| domain.batches(*size).len())
            .sum::<usize>()
    };
    let all = args.batch.iter().map(batches).sum::<usize>() * runners * args.repeat;
    let style = ProgressStyle::with_template("  {bar:32} {percent:>3}%  {eta:>4} left  {msg}");
    ProgressBar::new(all as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Runs all requests at once, with nothing cached.
fn run(engine: &mut LocalEngine, requests: &[Request]) -> anyhow::Result<Run> {
    engine.flush_cache()?;
    let mut ids = Vec::with_capacity(requests.len());
    for request in requests {
        ids.push(engine.submit(request.clone())?);
    }
    let mut run = Run {
        texts: vec![Vec::new(); ids.len()],
        ..Run::default()
    };
    let (mut begun, mut ended, mut start) = (0, 0, None::<Instant>);
    while engine.step()? {
        let mut arrived = 0;
        for (id, output) in engine.take_outputs() {
            let Some(at) = ids.iter().position(|known| *known == id) else {
                continue;
            };
            begun += usize::from(run.texts[at].is_empty() && !output.token_ids.is_empty());
            arrived += output.token_ids.len() as u64;
            run.texts[at].extend(&output.token_ids);
            if let Some(finish) = output.finish {
                finish.outcome?;
                ended += 1;
                merge(&mut run.usage, &finish.speculation.unwrap_or_default());
            }
        }
        match start {
            // Rows of requests that have ended may still be under way.
            Some(start) if run.steps == 0 || arrived > 0 => {
                run.took = start.elapsed();
                run.tokens += arrived;
                run.steps += 1;
            }
            None if begun == ids.len() => start = Some(Instant::now()),
            _ => {}
        }
    }
    anyhow::ensure!(ended == ids.len(), "{ended} of {} answers ended", ids.len());
    run.after_first = run.texts.iter().map(|text| text.len() as u64 - 1).sum();
    Ok(run)
}

fn request(ids: &[u32], domain: &Domain, max_tokens: u32) -> Request {
    Request {
        generation: GenerationParams {
            constraint: domain.constraint.clone(),
            ..SamplingParams::greedy().into()
        },
        ..Request::new(ids.to_vec(), max_tokens)
    }
}
