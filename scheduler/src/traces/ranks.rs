//! The workers' part of a request: times of their steps while the request ran, rank by rank.
//! Workers report the times with each result, so a worker makes no span itself and does nothing
//! for one.

use std::time::SystemTime;

use lockstep_traces::{Span, TraceError, Traces, names};
use lockstep_types::{ParallelConfig, step::RankResult};

/// A part of a request's life: it waits, or steps compute it.
pub struct Part {
    pub name: &'static str,
    pub span: Span,
    since: SystemTime,
    /// First step of the part; 0 = the request waits.
    first_step: u64,
    /// Times by rank.
    took: Vec<RankTime>,
}

/// An ended part whose last steps some ranks have not answered.
struct Closing {
    part: Part,
    ended: SystemTime,
    last_step: u64,
    dp_rank: usize,
}

/// Times of a rank's steps, by its own clock.
#[derive(Clone, Default)]
struct RankTime {
    steps: i64,
    step_us: i64,
    draft_us: i64,
    verify_us: i64,
    extend_us: i64,
    masks: i64,
    mask_us: i64,
}

/// The ranks, and the parts that wait for their answers.
pub struct Ranks {
    /// Makes the spans of the workers; `None` if nothing is traced.
    workers: Option<Traces>,
    size: usize,
    of_dp_rank: usize,
    closing: Vec<Closing>,
    /// Number of the newest step that any rank has answered.
    last_step: u64,
}

impl Part {
    fn add(&mut self, rank: usize, result: &RankResult) {
        if self.first_step == 0 || result.step < self.first_step {
            return;
        }
        if let Some(took) = self.took.get_mut(rank) {
            took.steps += 1;
            took.step_us += count(result.forward_us);
            took.draft_us += i64::from(result.stages.draft_us);
            took.verify_us += i64::from(result.stages.verify_us);
            took.extend_us += i64::from(result.stages.extend_us);
            took.masks += count(result.constraints.masks);
            took.mask_us += count(result.constraints.mask_us);
        }
        let (waits, wait_us) = (result.constraints.waits, result.constraints.wait_us);
        if waits > 0 {
            let about = [(names::RANK, rank as u64), (names::WAIT_US, wait_us)];
            let about = about.map(|(name, value)| (name, count(value)));
            self.span.event("step waits for a constraint", about);
        }
    }
}

impl Ranks {
    /// # Errors
    /// [`TraceError`] where the workers' spans can't be exported.
    pub fn new(traces: Option<&Traces>, parallel: &ParallelConfig) -> Result<Self, TraceError> {
        let workers = traces.map(|own| own.beside("tp-worker", "tp-worker"));
        Ok(Self {
            workers: workers.transpose()?,
            size: parallel.tp_size,
            of_dp_rank: parallel.attn_tp_size(),
            closing: Vec::new(),
            last_step: 0,
        })
    }

    /// Begins a part of a request `now`. `step` is the first step that computes it; 0 = the
    /// request waits.
    pub fn part(&self, of: &Span, name: &'static str, now: SystemTime, step: u64) -> Part {
        Part {
            name,
            span: of.child_since(name, now),
            since: now,
            first_step: step,
            took: vec![RankTime::default(); if step == 0 { 0 } else { self.size }],
        }
    }

    /// Returns the number of the newest step that any rank has answered.
    pub fn last_step(&self) -> u64 {
        self.last_step
    }

    /// Notes a rank's answer to a step, in which the parts `live` may have been computed.
    pub fn answered<'a>(
        &mut self,
        rank: usize,
        result: &RankResult,
        live: impl Iterator<Item = &'a mut Part>,
    ) {
        self.last_step = self.last_step.max(result.step);
        live.for_each(|part| part.add(rank, result));
        for closing in &mut self.closing {
            if result.step <= closing.last_step {
                closing.part.add(rank, result);
            }
        }
    }

    /// Ends a part. Its span is complete when all ranks have answered its steps.
    pub fn close(&mut self, part: Part, ended: SystemTime, dp_rank: u32) {
        if part.first_step == 0 {
            part.span.end_at(ended);
            return;
        }
        self.closing.push(Closing {
            part,
            ended,
            last_step: self.last_step,
            dp_rank: dp_rank as usize,
        });
    }

    /// Notes that all ranks have answered this step.
    pub fn settle(&mut self, step: u64) {
        if self.closing.is_empty() {
            return;
        }
        let (done, open) = std::mem::take(&mut self.closing)
            .into_iter()
            .partition(|closing| closing.last_step <= step);
        self.closing = open;
        done.into_iter().for_each(|closing| self.emit(closing));
    }

    /// Emits the spans of the part and of the ranks that computed it.
    fn emit(&self, closing: Closing) {
        let Closing {
            part,
            ended,
            dp_rank,
            ..
        } = closing;
        let first = dp_rank * self.of_dp_rank;
        let ranks = part.took.iter().enumerate();
        for (rank, took) in ranks.skip(first).take(self.of_dp_rank) {
            let Some(workers) = &self.workers else { break };
            let mut span = workers.within(&part.span, part.name, part.since);
            span.set(names::RANK, i64::try_from(rank).unwrap_or(i64::MAX));
            span.set(names::STEPS, took.steps);
            span.set(names::STEP_US, took.step_us);
            span.set(names::VERIFY_US, took.verify_us);
            if took.draft_us + took.extend_us > 0 {
                span.set(names::DRAFT_US, took.draft_us);
                span.set(names::EXTEND_US, took.extend_us);
            }
            if took.masks > 0 {
                span.set(names::MASKS, took.masks);
                span.set(names::MASK_US, took.mask_us);
            }
            span.end_at(ended);
        }
        part.span.end_at(ended);
    }
}

fn count(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
