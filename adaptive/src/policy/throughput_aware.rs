//! `throughput_aware`: a policy that maximises SGLang's score, expected tokens over profiled
//! time.

use super::{Moment, Outlook, Policy, PolicyFactory, up_to};
use crate::{AdaptiveConfig, BatchSlot, Digest, POSITIONS, Seen};

mod window;

#[cfg(test)]
mod tests;

use window::{ONE, Windows};

/// Makes policies with SGLang's score.
#[derive(Debug)]
pub(super) struct ThroughputAwares;

impl PolicyFactory for ThroughputAwares {
    fn name(&self) -> &str {
        "throughput_aware"
    }

    fn summary(&self) -> &str {
        "SGLang's score: tokens expected from the last 20 batches over profiled time"
    }

    fn obeys(&self, key: &str) -> bool {
        ["window_size", "update_interval", "switch_hysteresis"].contains(&key)
    }

    fn default_slots(&self, most: u32) -> Vec<BatchSlot> {
        vec![BatchSlot::new(1, up_to(most, &[1, 3, 5, 7]))]
    }

    fn check(&self, config: &AdaptiveConfig) -> Result<(), String> {
        let drafts = |slot: &BatchSlot| !slot.depths.contains(&0);
        if config.slots.iter().all(drafts) {
            return Ok(());
        }
        Err(
            "throughput_aware has no score for depth 0. Leave 0 out of candidate_steps, \
             or let strategy be goodput, which may stop drafting"
                .to_owned(),
        )
    }

    fn build(&self, config: &AdaptiveConfig) -> Box<dyn Policy> {
        let first = config.slots.first().map_or(&[][..], |slot| &slot.depths);
        let known = config
            .tiers
            .iter()
            .any(|tier| tier.depth == config.initial_depth);
        let middle = first.get(first.len() / 2).copied().unwrap_or(0);
        Box::new(ThroughputAware {
            present: Present {
                depth: if known { config.initial_depth } else { middle },
                windows: Windows::new(config.window_size),
            },
            batches: 0,
            step_us: 0,
            config: config.clone(),
        })
    }
}

/// SGLang's `ThroughputAwarePolicy`
/// (`python/sglang/srt/speculative/throughput_aware_policy.py`; PRs #28045, #37274).
///
/// `score(S) = E[S] / cost(batch, S)` with `E[S] = 1 + Σ_{k<S} p[k]`. Here `p[k]` is the share
/// of requests that accepted more than `k` drafts, as the mean over the last batches of all sizes
/// (`window_size`, 20 by default). Depth 0 has no score.
///
/// Example: with `p` = 0.8, 0.6 the expected tokens at depth 2 are 1 + 0.8 + 0.6 = 2.4. If a step
/// then takes 30 ms, the score is 80 tokens per second.
#[derive(Debug)]
struct ThroughputAware {
    config: AdaptiveConfig,
    present: Present,
    /// Batches since the last decision.
    batches: u32,
    /// Expected time of a step at the present depth.
    step_us: u32,
}

/// The present depth, and the statistics of the last batches.
#[derive(Debug)]
struct Present {
    depth: u32,
    windows: Windows,
}

impl Present {
    /// Moves to `depth`. The windows of deeper positions are cleared: they would be out of date
    /// when that depth runs again.
    fn move_to(&mut self, depth: u32) {
        if depth < self.depth {
            self.windows.clear_from(depth);
        }
        self.depth = depth;
    }
}

/// Score of a depth, as a fraction: expected tokens of a row over expected nanoseconds of a step.
#[derive(Debug, Clone, Copy)]
struct Score {
    depth: u32,
    tokens: u64,
    ns: u64,
}

impl Score {
    /// Returns true if this score is more than `1 + margin` times `other`; `margin` is in
    /// millionths.
    fn beats(self, other: Self, margin: u32) -> bool {
        let product = |tokens: u64, ns: u64| u128::from(tokens) * u128::from(ns);
        product(self.tokens, other.ns) * 1_000_000
            > product(other.tokens, self.ns) * (1_000_000 + u128::from(margin))
    }
}

impl Policy for ThroughputAware {
    fn decide(&mut self, moment: &Moment<'_>) -> u32 {
        if moment.seen.decodes > 0 {
            self.present.windows.push(moment.seen);
            self.batches = self.batches.saturating_add(1);
        }
        let slot = self.config.slot(moment.seen.decodes);
        let depths = slot.map_or(moment.candidates, |slot| &slot.depths);
        if !depths.contains(&self.present.depth) {
            // The batch has moved to a slot without the present depth.
            let best = self.best(depths, moment);
            let middle = depths.get(depths.len() / 2).copied().unwrap_or(0);
            self.present
                .move_to(best.map_or(middle, |score| score.depth));
        }
        if self.batches >= self.config.update_interval {
            if self.present.windows.full(self.present.depth) {
                let target = self.reconsider(depths, moment);
                self.present.move_to(target);
            }
            self.batches = 0;
        }
        let score = self.score(self.present.depth, moment);
        self.step_us = score.map_or(0, |score| u32::try_from(score.ns / 1000).unwrap_or(0));
        self.present.depth
    }

    fn digest(&self, digest: &mut Digest) {
        digest.word(u64::from(self.present.depth));
        digest.word(u64::from(self.batches));
        self.present.windows.digest(digest);
    }

    fn outlook(&self) -> Outlook {
        let mut acceptance = [0; POSITIONS];
        let mut before = ONE;
        for (at, value) in acceptance.iter_mut().enumerate() {
            let Some(rate) = self.present.windows.rate(at) else {
                break;
            };
            *value = u32::try_from(rate * 65_536 / before.max(1)).unwrap_or(0);
            before = rate;
        }
        Outlook {
            step_us: self.step_us,
            acceptance,
        }
    }
}

impl ThroughputAware {
    /// Returns the best of `depths` if it beats the present one by the hysteresis, else the
    /// present one.
    fn reconsider(&self, depths: &[u32], moment: &Moment<'_>) -> u32 {
        let current = self.present.depth;
        let hysteresis = self.config.switch_hysteresis;
        match (self.best(depths, moment), self.score(current, moment)) {
            (Some(best), Some(present)) if !best.beats(present, hysteresis) => current,
            (Some(best), _) => best.depth,
            (None, _) => current,
        }
    }

    /// Returns the best score of `depths`, the first of equal ones. Depths without a score are
    /// left out.
    fn best(&self, depths: &[u32], moment: &Moment<'_>) -> Option<Score> {
        let scores = depths.iter().filter_map(|depth| self.score(*depth, moment));
        scores.reduce(|best, score| if score.beats(best, 0) { score } else { best })
    }

    fn score(&self, depth: u32, moment: &Moment<'_>) -> Option<Score> {
        let tokens = self.present.windows.expected_tokens(depth)?;
        let ns = moment.costs.profiled_step_ns(moment.rows, depth)?;
        Some(Score { depth, tokens, ns })
    }
}
