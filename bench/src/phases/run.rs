//! Lets one arm answer a list, a slice at a time, and records every step.

use std::time::{Duration, Instant};

use anyhow::ensure;
use lockstep_local_engine::LocalEngine;
use lockstep_planner::RequestId;
use lockstep_types::request::Request;
use lockstep_types::sampling::SamplingParams;
use lockstep_types::step::StageTimes;

use super::work::{Driver, Item, Text, Work};
use crate::stats::Durations;

/// Temperature at which the next token is nearly random: no text comes twice.
const FRESH_TEMPERATURE: f32 = 1.5;

/// A step of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Step {
    /// The phase that had begun last when the step's result came.
    pub phase: usize,
    /// Seconds from the run's beginning to the result; only seconds in which this arm had
    /// the machine count.
    pub at: f64,
    /// Seconds since the result before, counted like [`Self::at`].
    pub took: f64,
    /// Draft steps of the step's plan.
    pub depth: u32,
    /// Rows that decoded.
    pub decodes: u32,
    /// Prompt tokens beside the decode rows.
    pub prompt_tokens: u32,
    /// Tokens that the step put out.
    pub tokens: u32,
    /// Stages of the step's time.
    pub stages: StageTimes,
}

/// Record of one arm's run.
#[derive(Default)]
pub struct Run {
    /// The steps, in their order.
    pub steps: Vec<Step>,
    /// Seconds of each slice of equal work.
    pub slices: Vec<f64>,
    /// Time at which each phase's first request began, in seconds.
    pub begins: Vec<f64>,
    /// Times between two outputs of a request.
    pub gaps: Durations,
    /// Number of greedy answers that differ from the answers without speculation.
    pub different: u64,
}

impl Run {
    /// Seconds of the whole run.
    pub fn seconds(&self) -> f64 {
        self.steps.last().map_or(0.0, |step| step.at)
    }

    /// Number of steps at another depth than the step before.
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
    /// Time of its last output, counted like [`Step::at`].
    heard: Option<f64>,
}

/// An arm that answers a list.
pub struct Answering<'a> {
    work: &'a Work,
    texts: &'a [Text],
    driver: Driver<'a>,
    /// Number of this repetition, which makes its seeds unique.
    repetition: u64,
    running: Vec<Running>,
    /// Tokens put out so far.
    tokens: u64,
    /// Seconds that the arm has had the machine.
    seconds: f64,
    run: Run,
}

impl<'a> Answering<'a> {
    /// An arm that has begun nothing.
    pub fn new(work: &'a Work, texts: &'a [Text], repetition: u64) -> Self {
        Self {
            work,
            texts,
            driver: Driver::new(work),
            repetition,
            running: Vec::new(),
            tokens: 0,
            seconds: 0.0,
            run: Run::default(),
        }
    }

    /// Goes on until `tokens` tokens are out since the beginning, or nothing is left to do.
    /// No step is under way afterwards.
    ///
    /// # Errors
    /// The errors of the engine, or a request that fails.
    pub fn go_on(&mut self, engine: &mut LocalEngine, tokens: u64) -> anyhow::Result<()> {
        let (begin, before) = (Instant::now(), self.seconds);
        self.steps(engine, tokens, begin)?;
        self.run.slices.push(self.seconds - before);
        Ok(())
    }

    /// Runs the steps of a slice that began at `begin`.
    fn steps(
        &mut self,
        engine: &mut LocalEngine,
        tokens: u64,
        begin: Instant,
    ) -> anyhow::Result<()> {
        let before = self.seconds;
        loop {
            self.begin_requests(engine)?;
            let more = match self.tokens < tokens {
                true => engine.step()?,
                false => engine.settle_step()?,
            };
            if !more {
                return Ok(());
            }
            self.seconds = before + begin.elapsed().as_secs_f64();
            self.take_step(engine)?;
        }
    }

    fn begin_requests(&mut self, engine: &mut LocalEngine) -> anyhow::Result<()> {
        while let Some((phase, item)) = self.driver.next(self.running.len()) {
            if self.run.begins.len() <= phase {
                self.run.begins.resize(phase + 1, self.seconds);
            }
            self.running.push(Running {
                id: engine.submit(request(&item, self.texts, self.repetition))?,
                item,
                answer: Vec::with_capacity(item.tokens as usize),
                heard: None,
            });
        }
        Ok(())
    }

    fn take_step(&mut self, engine: &mut LocalEngine) -> anyhow::Result<()> {
        let mut step = Step {
            phase: self.run.begins.len().saturating_sub(1),
            at: self.seconds,
            took: self.seconds - self.run.seconds(),
            tokens: self.take_outputs(engine)?,
            ..Step::default()
        };
        if let Some(record) = engine.last_step() {
            step.depth = record.depth;
            step.decodes = record.decodes;
            step.prompt_tokens = record.prompt_tokens;
            step.stages = record.stages;
        }
        self.tokens += u64::from(step.tokens);
        self.run.steps.push(step);
        Ok(())
    }

    /// Takes the outputs of a step; returns their number of tokens.
    fn take_outputs(&mut self, engine: &mut LocalEngine) -> anyhow::Result<u32> {
        let mut tokens = 0;
        for (id, output) in engine.take_outputs() {
            let Some(at) = self.running.iter().position(|known| known.id == id) else {
                continue;
            };
            let request = &mut self.running[at];
            if !output.token_ids.is_empty() {
                if let Some(heard) = request.heard.replace(self.seconds) {
                    let gap = Duration::from_secs_f64(self.seconds - heard);
                    self.run.gaps.record(gap);
                }
                tokens += u32::try_from(output.token_ids.len()).unwrap_or(u32::MAX);
                request.answer.extend(&output.token_ids);
            }
            if let Some(finish) = output.finish {
                finish.outcome?;
                let Running { item, answer, .. } = self.running.swap_remove(at);
                let known = self.texts[item.text].answer.get(..answer.len());
                self.run.different += u64::from(item.seed.is_none() && known != Some(&answer[..]));
            }
        }
        Ok(tokens)
    }

    /// Ends the run and returns its record.
    ///
    /// # Errors
    /// Answers that are shorter or longer than those of other arms.
    pub fn end(mut self) -> anyhow::Result<Run> {
        let (found, wanted) = (self.tokens, self.work.all_tokens());
        ensure!(
            found == wanted,
            "{found} tokens came, {wanted} were asked for: answers are others than those before"
        );
        // Rows of requests that have ended may still have been under way.
        let steps = &mut self.run.steps;
        while steps.pop_if(|step| step.tokens == 0).is_some() {}
        let idle = self.seconds - self.run.seconds();
        if let Some(last) = self.run.slices.last_mut() {
            *last -= idle;
        }
        Ok(self.run)
    }
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
    Request {
        data_parallel_rank: item.dp_rank,
        ..ask(&texts[item.text].prompt, item.tokens, sampling)
    }
}

/// A request for `tokens` tokens.
pub fn ask(prompt: &[u32], tokens: u32, sampling: SamplingParams) -> Request {
    Request {
        generation: sampling.into(),
        ..Request::new(prompt.to_vec(), tokens)
    }
}
