//! One arm answers a list, and every step is written down.

use std::time::Instant;

use anyhow::ensure;
use lockstep_local_engine::LocalEngine;
use lockstep_planner::RequestId;
use lockstep_types::request::Request;
use lockstep_types::sampling::{LogprobParams, SamplingParams};
use lockstep_types::step::StageTimes;

use super::work::{Driver, Item, Text, Work};
use crate::stats::Durations;

/// Above it, what comes next is as good as random: no text comes twice.
const FRESH_TEMPERATURE: f32 = 1.5;

/// A step of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Step {
    /// The phase that had begun last when its result came.
    pub phase: usize,
    /// From the run's beginning to the result, seconds.
    pub at: f64,
    /// Since the result before, seconds.
    pub took: f64,
    /// Draft steps of its plan.
    pub depth: u32,
    /// Rows that decoded.
    pub decodes: u32,
    /// Prompt tokens beside them.
    pub prompt_tokens: u32,
    /// Tokens that it put out.
    pub tokens: u32,
    /// Where its time went.
    pub stages: StageTimes,
}

/// What one arm did.
#[derive(Default)]
pub struct Run {
    /// In their order.
    pub steps: Vec<Step>,
    /// When each phase's first request began, seconds.
    pub begins: Vec<f64>,
    /// Between two outputs of a request.
    pub gaps: Durations,
    /// Greedy answers that are others than without speculation.
    pub different: u64,
}

impl Run {
    /// Seconds of the whole run.
    pub fn seconds(&self) -> f64 {
        self.steps.last().map_or(0.0, |step| step.at)
    }

    /// Tokens put out.
    pub fn tokens(&self) -> u64 {
        self.steps.iter().map(|step| u64::from(step.tokens)).sum()
    }

    /// Tokens and seconds of a phase: up to the beginning of the next.
    pub fn window(&self, phase: usize) -> Option<(f64, f64)> {
        let begin = *self.begins.get(phase)?;
        let end = self.begins.get(phase + 1).copied();
        let end = end.unwrap_or_else(|| self.seconds());
        let within = self.steps.iter().filter(|step| step.phase == phase);
        let tokens: u32 = within.map(|step| step.tokens).sum();
        Some((f64::from(tokens), end - begin))
    }

    /// How often the depth was another than in the step before.
    pub fn switches(&self) -> usize {
        let pairs = self.steps.windows(2);
        pairs.filter(|pair| pair[0].depth != pair[1].depth).count()
    }
}

/// A request under way.
struct Running {
    id: RequestId,
    item: Item,
    answer: Vec<u32>,
    heard: Option<Instant>,
}

/// Answers all of `work`; `repetition` makes seeds that never come again.
///
/// # Errors
/// The engine's, or a request that fails or ends early.
pub fn run(
    engine: &mut LocalEngine,
    work: &Work,
    texts: &[Text],
    repetition: u64,
) -> anyhow::Result<Run> {
    let mut driver = Driver::new(work);
    let mut run = Run::default();
    let mut running: Vec<Running> = Vec::new();
    let start = Instant::now();
    let mut last = start;
    loop {
        while let Some((phase, item)) = driver.next(running.len()) {
            if run.begins.len() <= phase {
                run.begins.resize(phase + 1, start.elapsed().as_secs_f64());
            }
            running.push(Running {
                id: engine.submit(request(&item, texts, repetition))?,
                item,
                answer: Vec::with_capacity(item.tokens as usize),
                heard: None,
            });
        }
        if !engine.step()? {
            break;
        }
        let now = Instant::now();
        let mut step = Step {
            phase: run.begins.len().saturating_sub(1),
            at: (now - start).as_secs_f64(),
            took: (now - last).as_secs_f64(),
            ..Step::default()
        };
        last = now;
        if let Some(record) = engine.last_step() {
            step.depth = record.depth;
            step.decodes = record.decodes;
            step.prompt_tokens = record.prompt_tokens;
            step.stages = record.stages;
        }
        step.tokens = take_outputs(engine, &mut running, texts, now, &mut run)?;
        run.steps.push(step);
    }
    let wanted: u64 = (0..work.phases.len())
        .map(|phase| u64::from(work.tokens(phase)))
        .sum();
    let found = run.tokens();
    ensure!(
        found == wanted,
        "{found} tokens came, {wanted} were asked for: answers are others than those before"
    );
    drop_idle_end(&mut run);
    Ok(run)
}

/// Rows of requests that have ended may still have been under way.
fn drop_idle_end(run: &mut Run) {
    while run.steps.last().is_some_and(|step| step.tokens == 0) {
        run.steps.pop();
    }
}

/// Tokens that came.
fn take_outputs(
    engine: &mut LocalEngine,
    running: &mut Vec<Running>,
    texts: &[Text],
    now: Instant,
    run: &mut Run,
) -> anyhow::Result<u32> {
    let mut tokens = 0;
    for (id, output) in engine.take_outputs() {
        let Some(at) = running.iter().position(|known| known.id == id) else {
            continue;
        };
        let request = &mut running[at];
        if !output.token_ids.is_empty() {
            if let Some(heard) = request.heard.replace(now) {
                run.gaps.record(now - heard);
            }
            tokens += u32::try_from(output.token_ids.len()).unwrap_or(u32::MAX);
            request.answer.extend(&output.token_ids);
        }
        if let Some(finish) = output.finish {
            finish.outcome?;
            let Running { item, answer, .. } = running.swap_remove(at);
            let known = texts[item.text].answer.get(..answer.len());
            run.different += u64::from(item.seed.is_none() && known != Some(&answer[..]));
        }
    }
    Ok(tokens)
}

fn request(item: &Item, texts: &[Text], repetition: u64) -> Request {
    let sampling = match item.seed {
        None => SamplingParams::greedy(),
        Some(seed) => SamplingParams {
            temperature: FRESH_TEMPERATURE,
            seed: repetition << 32 | seed,
            ignore_eos: true,
            ..SamplingParams::default()
        },
    };
    ask(&texts[item.text].prompt, item.tokens, sampling)
}

/// A request of so many tokens.
pub fn ask(prompt: &[u32], tokens: u32, sampling: SamplingParams) -> Request {
    Request {
        trace_id: String::new(),
        input_ids: prompt.to_vec(),
        sampling,
        logprobs: LogprobParams::default(),
        max_new_tokens: tokens,
        priority: 0,
        timeout_ms: None,
        max_draft_steps: None,
    }
}
