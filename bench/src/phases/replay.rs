//! What a list would take at other depths: accepted drafts are known for every
//! position, and what a step takes has been measured.
//!
//! Requests begin as in a run, and steps are planned as far ahead as there: a
//! request that ends has one row too many in the next step, and the one after it
//! begins a step later.

use std::collections::VecDeque;

use super::cost::Costs;
use super::texts::Log;
use super::work::{Driver, Item, Work};

/// All that a replay comes from.
#[derive(Debug, Clone, Copy)]
pub struct Replay<'a> {
    /// What is answered.
    pub work: &'a Work,
    /// Accepted drafts.
    pub log: &'a Log,
    /// Times of steps.
    pub costs: &'a Costs,
    /// Prompt tokens that the prefix cache does not have, of a request.
    pub prompt_tokens: f64,
    /// Steps in flight at once: 2 where planning overlaps.
    pub lag: usize,
}

/// How deep a step drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Always so deep.
    Fixed(u32),
    /// The most expected tokens per second, by how often drafts of each running
    /// text are accepted over all its positions.
    Expected,
    /// The most tokens per second, by what will be accepted in this very step.
    Clairvoyant,
}

/// A request that has begun.
#[derive(Debug, Clone, Copy)]
struct Row {
    item: Item,
    /// Tokens that are out.
    out: u32,
    /// Rows on their way.
    in_flight: u32,
    prompt_planned: bool,
}

/// Requests by number, and whether each row is of a prompt.
type Planned = Vec<(usize, bool)>;

impl Replay<'_> {
    /// Seconds of the whole list; `None` where a step's time is not known.
    pub fn seconds(&self, choice: Choice) -> Option<f64> {
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
            let depth = self.depth(choice, &rows, &step)?;
            // Rows of requests that have all ended: nothing waits for them.
            if running.is_empty() {
                continue;
            }
            seconds += self.step_seconds(depth, &step)?;
            for (at, is_prompt) in step {
                let row = &mut rows[at];
                row.in_flight -= 1;
                let tokens = match is_prompt {
                    true => 1,
                    false => self.accepted(row).min(depth) + 1,
                };
                row.out = (row.out + tokens).min(row.item.tokens);
            }
            running.retain(|at| rows[*at].out < rows[*at].item.tokens);
        }
    }

    /// The best that is known of: [`Choice::Expected`], or a fixed depth where
    /// that is faster still.
    pub fn oracle(&self) -> Option<f64> {
        let fixed = self.costs.depths().map(Choice::Fixed);
        let all = fixed.chain([Choice::Expected]);
        all.filter_map(|choice| self.seconds(choice))
            .min_by(f64::total_cmp)
    }

    /// Knows every draft's fate beforehand; no policy can.
    pub fn clairvoyant(&self) -> Option<f64> {
        let known = self.seconds(Choice::Clairvoyant);
        let both = known.into_iter().chain(self.oracle());
        both.min_by(f64::total_cmp)
    }

    fn depth(&self, choice: Choice, rows: &[Row], step: &Planned) -> Option<u32> {
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
            // Where nothing can come, the fastest is best.
            Some(tokens.sum::<f64>().max(1.0) / self.step_seconds(depth, step)?)
        };
        let rates = self.costs.depths().filter_map(|d| Some((d, rate(d)?)));
        let best = rates.max_by(|(_, one), (_, other)| one.total_cmp(other));
        best.map(|(depth, _)| depth)
    }

    fn step_seconds(&self, depth: u32, step: &Planned) -> Option<f64> {
        let prompts = step.iter().filter(|(_, is_prompt)| *is_prompt).count();
        let decodes = u32::try_from(step.len() - prompts).unwrap_or(u32::MAX);
        let tokens = prompts as f64 * self.prompt_tokens;
        self.costs.seconds(depth, decodes, tokens)
    }

    /// Drafts accepted where the row stands; none where it has ended.
    fn accepted(&self, row: &Row) -> u32 {
        let text = self.log.accepted.get(row.item.text);
        let at = text.and_then(|text| text.get(row.out as usize));
        at.copied().unwrap_or(0)
    }

    /// Tokens of a verification.
    fn expected(&self, text: usize, depth: u32) -> f64 {
        let drafts = (1..=depth).map(|depth| self.log.survival(text, depth));
        1.0 + drafts.sum::<f64>()
    }
}

/// A row for every request that may still need one, as far as is known when the
/// step is planned.
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
