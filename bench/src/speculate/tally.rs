//! Sums of runs, by domain, batch and runner.

use std::collections::BTreeMap;
use std::time::Duration;

use lockstep_types::request::SpeculationUsage;

/// Figures of one batch on one engine.
#[derive(Debug, Default)]
pub struct Run {
    /// Answers, in the order of the prompts.
    pub texts: Vec<Vec<u32>>,
    /// Time from the moment when all requests had their first token to the end of the last
    /// one.
    pub took: Duration,
    /// Tokens that came in that time.
    pub tokens: u64,
    /// Steps in that time.
    pub steps: u64,
    /// Tokens after each answer's first.
    pub after_first: u64,
    /// Counts of speculation, over all answers.
    pub usage: SpeculationUsage,
}

/// An engine at a depth.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Runner {
    /// Index of a drafting engine; `None` for the engine without speculation.
    pub engine: Option<usize>,
    /// The algorithm's name.
    pub algorithm: String,
    /// Draft steps.
    pub steps: u32,
}

/// Key of sums.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// Domain of the prompts.
    pub domain: String,
    /// Requests at once.
    pub batch: usize,
    /// The engine that answered, and its depth.
    pub runner: Runner,
}

/// Sums of a cell.
#[derive(Debug, Clone, Default)]
pub struct Sums {
    /// Time and tokens of each repetition.
    times: Vec<(Duration, u64)>,
    /// Steps that were timed.
    steps: u64,
    /// Tokens after the answers' first.
    after_first: u64,
    usage: SpeculationUsage,
}

/// All sums; domains in the order of their runs.
#[derive(Debug, Default)]
pub struct Tally {
    domains: Vec<String>,
    cells: BTreeMap<Cell, Sums>,
    different: u64,
}

impl Runner {
    /// The runner without speculation.
    pub fn plain() -> Self {
        Self {
            engine: None,
            algorithm: "none".into(),
            steps: 0,
        }
    }
}

impl Tally {
    /// Adds a run; `plain` are the answers without speculation.
    pub fn add(&mut self, cell: Cell, repetition: usize, run: &Run, plain: &[Vec<u32>]) {
        if !self.domains.contains(&cell.domain) {
            self.domains.push(cell.domain.clone());
        }
        let pairs = run.texts.iter().zip(plain);
        self.different += pairs.filter(|(found, wanted)| found != wanted).count() as u64;
        let sums = self.cells.entry(cell).or_default();
        sums.times
            .resize(sums.times.len().max(repetition + 1), Default::default());
        let (took, tokens) = &mut sums.times[repetition];
        *took += run.took;
        *tokens += run.tokens;
        sums.steps += run.steps;
        sums.after_first += run.after_first;
        merge(&mut sums.usage, &run.usage);
    }

    /// Number of answers that differ from the answers without speculation.
    pub fn different(&self) -> u64 {
        self.different
    }

    /// Domains, in the order of their runs.
    pub fn domains(&self) -> &[String] {
        &self.domains
    }

    /// Batch sizes, ascending.
    pub fn batches(&self) -> Vec<usize> {
        let mut all: Vec<usize> = self.cells.keys().map(|cell| cell.batch).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The runners, the one without speculation first.
    pub fn runners(&self) -> Vec<Runner> {
        let mut all: Vec<Runner> = self.cells.keys().map(|cell| cell.runner.clone()).collect();
        all.sort();
        all.dedup();
        all
    }

    /// Sums of one cell; empty sums if it was not run.
    pub fn get(&self, domain: &str, batch: usize, runner: &Runner) -> Sums {
        let cell = Cell {
            domain: domain.to_owned(),
            batch,
            runner: runner.clone(),
        };
        self.cells.get(&cell).cloned().unwrap_or_default()
    }

    /// Sums over all domains.
    pub fn over_domains(&self, batch: usize, runner: &Runner) -> Sums {
        let mut sums = Sums::default();
        for domain in &self.domains {
            sums.join(&self.get(domain, batch, runner));
        }
        sums
    }
}

impl Sums {
    fn join(&mut self, other: &Self) {
        self.times
            .resize(self.times.len().max(other.times.len()), Default::default());
        for ((took, tokens), (more, others)) in self.times.iter_mut().zip(&other.times) {
            *took += *more;
            *tokens += others;
        }
        self.steps += other.steps;
        self.after_first += other.after_first;
        merge(&mut self.usage, &other.usage);
    }

    /// Tokens per second in the middle repetition.
    pub fn rate(&self) -> Option<f64> {
        median(self.times.iter().filter_map(rate).collect())
    }

    /// Rate relative to `plain`'s: the middle repetition, and the extremes.
    pub fn ratios(&self, plain: &Self) -> Option<(f64, f64, f64)> {
        let pairs = self.times.iter().zip(&plain.times);
        let ratios: Vec<f64> = pairs
            .filter_map(|(own, plain)| Some(rate(own)? / rate(plain)?))
            .collect();
        let low = ratios.iter().copied().reduce(f64::min)?;
        let high = ratios.iter().copied().reduce(f64::max)?;
        Some((median(ratios)?, low, high))
    }

    /// Milliseconds of a step, over all repetitions.
    pub fn step_ms(&self) -> Option<f64> {
        let took: Duration = self.times.iter().map(|(took, _)| *took).sum();
        (self.steps > 0).then(|| took.as_secs_f64() * 1e3 / self.steps as f64)
    }

    /// Tokens of a verification, including the one after the drafts. The first token of an
    /// answer comes from its prompt and does not count.
    pub fn tokens_per_round(&self) -> Option<f64> {
        let rounds = self.usage.verify_steps;
        (rounds > 0).then(|| self.after_first as f64 / f64::from(rounds))
    }

    /// Part of the proposed drafts that were accepted, by position.
    pub fn accepted(&self) -> Vec<f64> {
        let accepted = |at: usize| f64::from(self.usage.accepted.get(at).copied().unwrap_or(0));
        let proposed = self.usage.proposed.iter().enumerate();
        proposed
            .filter(|(_, proposed)| **proposed > 0)
            .map(|(at, proposed)| accepted(at) / f64::from(*proposed))
            .collect()
    }
}

fn rate((took, tokens): &(Duration, u64)) -> Option<f64> {
    let seconds = took.as_secs_f64();
    (seconds > 0.0 && *tokens > 0).then(|| *tokens as f64 / seconds)
}

/// The middle value, or the mean of the two middle ones.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// Adds up counts by position.
pub fn merge(sum: &mut SpeculationUsage, usage: &SpeculationUsage) {
    sum.verify_steps += usage.verify_steps;
    sum.draft_tokens += usage.draft_tokens;
    for (sum, list) in [
        (&mut sum.proposed, &usage.proposed),
        (&mut sum.accepted, &usage.accepted),
    ] {
        sum.resize(sum.len().max(list.len()), 0);
        for (sum, count) in sum.iter_mut().zip(list) {
            *sum += count;
        }
    }
}
