//! Replays a list at other depths: the accepted drafts are known for every position, and the
//! times of steps have been measured.
//!
//! Requests begin as in a run, and steps are planned as far ahead: a request that ends has
//! one row too many in the next step, and the request after it begins a step later.

use std::collections::VecDeque;

use super::cost::Costs;
use super::texts::Log;
use super::work::{Driver, Item, Work};
use lockstep_adaptive::{Decider, Seen};

mod policy;

use policy::Simulated;
pub use policy::profile;

/// Data of a replay.
#[derive(Debug, Clone, Copy)]
pub struct Replay<'a> {
    /// The requests that are answered.
    pub work: &'a Work,
    /// Accepted drafts.
    pub log: &'a Log,
    /// Times of steps.
    pub costs: &'a Costs,
    /// Prompt tokens of a request that are not in the prefix cache.
    pub prompt_tokens: f64,
    /// Steps in flight at once: 2 where planning overlaps.
    pub lag: usize,
}

/// Choice of a step's depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Always this depth.
    Fixed(u32),
    /// The depth with the most expected tokens per second, by how often each running text's
    /// drafts are accepted over all its positions.
    Expected,
    /// The depth with the most tokens per second, by the drafts that will be accepted in
    /// this very step.
    Clairvoyant,
}

/// A request that has begun.
#[derive(Debug, Clone, Copy)]
struct Row {
    item: Item,
    /// Tokens that are out.
    out: u32,
    /// Rows in steps that are under way.
    in_flight: u32,
    prompt_planned: bool,
}

/// Requests by number, and whether each row is of a prompt.
type Planned = Vec<(usize, bool)>;

/// Chooses how deep each step drafts.
trait Chooser {
    /// The depth of the step that runs now; `None` if its costs are not known.
    fn depth(&mut self, replay: &Replay<'_>, rows: &[Row], step: &Planned) -> Option<u32>;
    /// Shows the chooser the figures of that step.
    fn saw(&mut self, seen: &Seen) {
        let _ = seen;
    }
}

impl Chooser for Choice {
    fn depth(&mut self, replay: &Replay<'_>, rows: &[Row], step: &Planned) -> Option<u32> {
        replay.best(*self, rows, step)
    }
}

impl Replay<'_> {
    /// Seconds of the whole list; `None` if a step's time is not known.
    pub fn seconds(&self, mut choice: Choice) -> Option<f64> {
        self.run(&mut choice)
    }

    /// Seconds under a policy that has seen nothing but a profile.
    pub fn policy_seconds(&self, decider: Decider) -> Option<f64> {
        self.run(&mut Simulated::new(decider))
    }

    fn run(&self, chooser: &mut impl Chooser) -> Option<f64> {
        let mut driver = Driver::new(self.work);
        let mut rows: Vec<Row> = Vec::new();
        let mut running: Vec<usize> = Vec::new();
        let mut planned: VecDeque<Planned> = VecDeque::new();
        let mut seconds = 0.0;
        loop {
            while let Some((_, item)) = driver.next(running.len()) {
                running.push(rows.len());
                rows.push(Row {
                    item,
                    out: 0,
                    in_flight: 0,
                    prompt_planned: false,
                });
            }
            while planned.len() < self.lag {
                let step = plan(&mut rows, &running);
                if step.is_empty() {
                    break;
                }
                planned.push_back(step);
            }
            let Some(step) = planned.pop_front() else {
                return Some(seconds);
            };
            let depth = chooser.depth(self, &rows, &step)?;
            // All rows' requests have ended: nothing waits for this step.
            if running.is_empty() {
                continue;
            }
            let took = self.step_seconds(depth, &step)?;
            seconds += took;
            let mut seen = self.seen(depth, &step, took);
            for (at, is_prompt) in step {
                let row = &mut rows[at];
                row.in_flight -= 1;
                let mut tokens = 1;
                if !is_prompt {
                    let accepted = self.accepted(row).min(depth);
                    seen.count(depth, accepted);
                    tokens += accepted;
                }
                row.out = (row.out + tokens).min(row.item.tokens);
            }
            chooser.saw(&seen);
            running.retain(|at| rows[*at].out < rows[*at].item.tokens);
        }
    }

    /// Seconds of the best choice that is known: [`Choice::Expected`], or a fixed depth if
    /// that is faster.
    pub fn oracle(&self) -> Option<f64> {
        let fixed = self.costs.depths().map(Choice::Fixed);
        let all = fixed.chain([Choice::Expected]);
        all.filter_map(|choice| self.seconds(choice))
            .min_by(f64::total_cmp)
    }

    /// Seconds if every draft's fate were known beforehand; no policy can be faster.
    pub fn clairvoyant(&self) -> Option<f64> {
        let known = self.seconds(Choice::Clairvoyant);
        let both = known.into_iter().chain(self.oracle());
        both.min_by(f64::total_cmp)
    }

    fn best(&self, choice: Choice, rows: &[Row], step: &Planned) -> Option<u32> {
        if let Choice::Fixed(depth) = choice {
            return Some(depth);
        }
        let all = step.iter().map(|(at, is_prompt)| (&rows[*at], is_prompt));
        let alive = all.filter(|(row, _)| row.out < row.item.tokens);
        let rate = |depth: u32| {
            let tokens = alive.clone().map(|(row, is_prompt)| match choice {
                _ if *is_prompt => 1.0,
                Choice::Clairvoyant => {
                    let left = row.item.tokens - row.out;
                    f64::from((self.accepted(row).min(depth) + 1).min(left))
                }
                _ => self.expected(row.item.text, depth),
            });
            // Where nothing can come, the fastest depth is best.
            Some(tokens.sum::<f64>().max(1.0) / self.step_seconds(depth, step)?)
        };
        let rates = self.costs.depths().filter_map(|d| Some((d, rate(d)?)));
        let best = rates.max_by(|(_, one), (_, other)| one.total_cmp(other));
        best.map(|(depth, _)| depth)
    }

    fn step_seconds(&self, depth: u32, step: &Planned) -> Option<f64> {
        let (decodes, prompts) = sizes(step);
        let tokens = f64::from(prompts) * self.prompt_tokens;
        self.costs.between(depth, decodes, tokens)
    }

    /// Figures of a step before its outcomes are counted.
    fn seen(&self, depth: u32, step: &Planned, seconds: f64) -> Seen {
        let (decodes, prompts) = sizes(step);
        let stages = self.costs.stages(depth, decodes, seconds);
        Seen {
            depth,
            decodes,
            tokens: decodes * (depth + 1) + prompts,
            prompt_tokens: prompts,
            draft_us: stages.draft_us,
            verify_us: stages.verify_us,
            extend_us: stages.extend_us,
            ..Seen::default()
        }
    }

    /// Drafts accepted at the row's position; none if the request has ended.
    fn accepted(&self, row: &Row) -> u32 {
        let text = self.log.accepted.get(row.item.text);
        let at = text.and_then(|text| text.get(row.out as usize));
        at.copied().unwrap_or(0)
    }

    /// Expected tokens of a verification.
    fn expected(&self, text: usize, depth: u32) -> f64 {
        let drafts = (1..=depth).map(|depth| self.log.survival(text, depth));
        1.0 + drafts.sum::<f64>()
    }
}

/// Numbers of rows that decode, and of rows of prompts.
fn sizes(step: &Planned) -> (u32, u32) {
    let prompts = step.iter().filter(|(_, is_prompt)| *is_prompt).count();
    let count = |rows: usize| u32::try_from(rows).unwrap_or(u32::MAX);
    (count(step.len() - prompts), count(prompts))
}

/// Plans a row for every request that may still need one, as far as is known when the step
/// is planned.
fn plan(rows: &mut [Row], running: &[usize]) -> Planned {
    let mut step = Planned::new();
    for at in running {
        let row = &mut rows[*at];
        if row.out + row.in_flight < row.item.tokens {
            step.push((*at, !row.prompt_planned));
            row.prompt_planned = true;
            row.in_flight += 1;
        }
    }
    step
}

#[cfg(test)]
mod tests;
