//! Time of planning one step: `plan` and `complete` with N requests decoding, and results
//! that are made up on the spot. A second table has the time of deciding how deep to draft;
//! every rank decides that in every step of an adaptive depth.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use lockstep_planner::{Millis, Planner, PlannerConfig, RequestId};
use lockstep_types::{
    request::Request,
    sampling::SamplingParams,
    step::{SlotExtend, SlotOutput, StepPlan, StepResult},
};
use serde_json::json;

use crate::{report::Report, stats::Durations};

mod decision;

/// Time that planning one step takes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Requests decoding at once, one measurement each.
    #[arg(long, value_delimiter = ',', default_value = "1,32,64,256",
          value_parser = clap::value_parser!(u32).range(1..))]
    running: Vec<u32>,
    /// Steps per measurement.
    #[arg(long, default_value_t = 3000, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Prompt tokens of each request.
    #[arg(long, default_value_t = 128)]
    prompt: u32,
    /// Tokens per page.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    page_size: u32,
}

/// Runs the benchmark.
pub fn run(args: &Args) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "Planning one decode step (plan + complete), overlap on",
        &[
            "running",
            "steps",
            "plan p50 us",
            "plan p99 us",
            "complete p50 us",
            "complete p99 us",
            "sum p50 us",
        ],
    );
    report.note("page size", args.page_size);
    for running in &args.running {
        let (plan, complete) = measure(args, *running)?;
        let sum = plan.us(50.0).as_f64().unwrap_or(0.0) + complete.us(50.0).as_f64().unwrap_or(0.0);
        report.row(vec![
            json!(running),
            json!(plan.count()),
            plan.us(50.0),
            plan.us(99.0),
            complete.us(50.0),
            complete.us(99.0),
            json!(sum),
        ]);
    }
    report.add(decision::table(args.steps)?);
    Ok(report)
}

fn measure(args: &Args, running: u32) -> anyhow::Result<(Durations, Durations)> {
    let warm_up = args.steps / 10;
    let length = args.prompt + args.steps + warm_up + 64;
    let mut planner = Planner::new(PlannerConfig {
        max_running_requests: running,
        page_size: args.page_size,
        num_pages: running * (length + 64).div_ceil(args.page_size) + running + 64,
        context_length: length + 32,
        max_queued_tokens: u64::from(running) * u64::from(length) * 2,
        ..PlannerConfig::default()
    })?;
    for id in 0..running {
        planner
            .submit(
                Millis(0),
                RequestId(u64::from(id)),
                request(id, args.prompt, length),
            )
            .context("a request was refused")?;
    }
    let (mut plan_took, mut complete_took) = (Durations::default(), Durations::default());
    let mut in_flight = std::collections::VecDeque::new();
    let mut measured = 0;
    while measured < args.steps + warm_up {
        let start = Instant::now();
        let plan = planner.plan();
        let planned = start.elapsed();
        let full = if let Some(plan) = plan {
            let full = plan.rows().count() == running as usize
                && plan.rows().all(|extend| extend.prefill_len == 0);
            in_flight.push_back(answer(&plan));
            planner.recycle(plan);
            full
        } else {
            ensure!(!in_flight.is_empty(), "the planner has nothing to do");
            false
        };
        if full {
            measured += 1;
        }
        if in_flight.len() < 2 {
            continue;
        }
        let Some(result) = in_flight.pop_front() else {
            continue;
        };
        let start = Instant::now();
        planner.complete(Millis(0), result)?;
        planner.take_outputs().for_each(drop);
        let completed = start.elapsed();
        // Steps that still prefill are not measured.
        if full && measured > warm_up {
            plan_took.record(planned);
            complete_took.record(completed);
        }
    }
    Ok((plan_took, complete_took))
}

fn request(id: u32, prompt: u32, length: u32) -> Request {
    // Prompts differ from the first token on: requests share nothing.
    let tokens = (0..prompt).map(|at| (id * 7919 + at * 31) % 30_000);
    let endless = SamplingParams {
        ignore_eos: true,
        ..SamplingParams::greedy()
    };
    Request {
        generation: endless.into(),
        ..Request::new(tokens.collect(), length - prompt)
    }
}

fn answer(plan: &StepPlan) -> StepResult {
    let output = |extend: &SlotExtend| {
        extend.sample.then(|| SlotOutput {
            slot: extend.slot,
            token_ids: vec![(plan.step % 30_000) as u32],
            ..Default::default()
        })
    };
    StepResult {
        step: plan.step,
        outputs: vec![plan.rows().filter_map(output).collect()],
        ..Default::default()
    }
}
