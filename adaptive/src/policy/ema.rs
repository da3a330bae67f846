//! `ema`: SGLang's thresholds on a moving average of accepted drafts.

use super::{Moment, Policy, PolicyFactory, up_to};
use crate::{AdaptiveConfig, BatchSlot, Digest, POSITIONS};

#[cfg(test)]
mod tests;

/// Billionths in one.
const ONE: i64 = 1_000_000_000;
/// Billionths in a millionth, the unit of configured fractions.
const MILLIONTH: i64 = 1_000;

/// Makes policies with SGLang's thresholds.
#[derive(Debug)]
pub(super) struct Emas;

impl PolicyFactory for Emas {
    fn name(&self) -> &str {
        "ema"
    }

    fn summary(&self) -> &str {
        "SGLang's thresholds on a moving average of the drafts accepted per request"
    }

    fn obeys(&self, key: &str) -> bool {
        let of_averages = ["ema_alpha", "update_interval", "warmup_batches"];
        let of_slots = ["up_hysteresis", "down_hysteresis", "ceiling_coeff"];
        of_averages.contains(&key) || of_slots.contains(&key)
    }

    /// SGLang's `DEFAULT_ADAPTIVE_CONFIG`.
    fn default_slots(&self, most: u32) -> Vec<BatchSlot> {
        let table = [
            (1, &[1, 3, 5, 7][..], -250_000),
            (8, &[0, 1, 3], 0),
            (32, &[0, 1], 0),
            (64, &[0], 0),
        ];
        let slot = |(from, depths, down_hysteresis)| BatchSlot {
            down_hysteresis,
            ..BatchSlot::new(from, up_to(most, depths))
        };
        table.map(slot).to_vec()
    }

    fn reads_costs(&self) -> bool {
        false
    }

    fn build(&self, config: &AdaptiveConfig) -> Box<dyn Policy> {
        let slots = config.slots.iter();
        Box::new(Ema {
            slots: slots.map(|slot| Slot::new(config, slot)).collect(),
            from: config.slots.iter().map(|slot| slot.from).collect(),
            config: config.clone(),
        })
    }
}

/// SGLang's `AdaptiveSpeculativeParams`
/// (`python/sglang/srt/speculative/adaptive_spec_params.py`; PRs #21599, #24055). Every slot of
/// batch sizes has a state of its own. The batch's slot takes in the batch's statistics and
/// says the depth.
#[derive(Debug)]
struct Ema {
    config: AdaptiveConfig,
    slots: Vec<Slot>,
    /// Smallest batch of each slot.
    from: Vec<u32>,
}

/// SGLang's `AdaptiveStepSlot`.
#[derive(Debug)]
struct Slot {
    rule: BatchSlot,
    /// Index of the present depth among the slot's depths.
    current: usize,
    /// Average of accepted drafts per request, in billionths.
    ema: i64,
    batches: u64,
}

impl Policy for Ema {
    fn decide(&mut self, moment: &Moment<'_>) -> u32 {
        let batch = moment.seen.decodes.max(1);
        let at = self.from.partition_point(|from| *from <= batch);
        let Some(slot) = self.slots.get_mut(at.saturating_sub(1)) else {
            return self.config.initial_depth;
        };
        slot.update(&self.config, moment);
        slot.depth()
    }

    fn digest(&self, digest: &mut Digest) {
        for slot in &self.slots {
            digest.word(slot.current as u64);
            digest.word(slot.ema as u64);
            digest.word(slot.batches);
        }
    }
}

impl Slot {
    fn new(config: &AdaptiveConfig, rule: &BatchSlot) -> Self {
        let initial = |depth: &u32| *depth == config.initial_depth;
        let current = rule.depths.iter().position(initial);
        let mut slot = Self {
            current: current.unwrap_or(rule.depths.len() / 2),
            rule: rule.clone(),
            ema: 0,
            batches: 0,
        };
        slot.ema = (i64::from(slot.depth()) - 1) * ONE;
        slot
    }

    fn depth(&self) -> u32 {
        self.rule.depths.get(self.current).copied().unwrap_or(0)
    }

    /// Updates `ema ← (1 − α) · ema + α · x`, where `x` is the mean of accepted drafts over the
    /// requests. After the warm-up, decides every `update_interval` batches.
    ///
    /// A result that ran at depth 0 changes no average: SGLang passes each result's own depth
    /// since #37274, and decisions come a step later here. Nor do requests with forced drafts.
    fn update(&mut self, config: &AdaptiveConfig, moment: &Moment<'_>) {
        let seen = moment.seen;
        if seen.decodes == 0 {
            return;
        }
        let rows = seen.telling();
        if self.depth() > 0 && seen.depth > 0 && rows > 0 {
            let sum = i128::from(seen.drafts_accepted()) * i128::from(ONE);
            let most = POSITIONS as i64 * ONE;
            let mean = i64::try_from(sum / i128::from(rows)).unwrap_or(most);
            let alpha = i128::from(config.ema_alpha);
            let change = i128::from(mean.min(most) - self.ema) * alpha / 1_000_000;
            self.ema += i64::try_from(change).unwrap_or(0);
        }
        self.batches = self.batches.saturating_add(1);
        let past = self.batches.checked_sub(u64::from(config.warmup_batches));
        let interval = u64::from(config.update_interval.max(1));
        if past.is_some_and(|past| past > 0 && past.is_multiple_of(interval)) {
            self.recompute();
        }
    }

    fn recompute(&mut self) {
        let before = self.depth();
        if before == 0 {
            return self.probe();
        }
        let moved = self.go_down();
        if !moved {
            self.go_up();
        }
        self.keep_under_ceiling(before);
    }

    /// Tries the next depth, because depth 0 shows nothing.
    fn probe(&mut self) {
        self.current = (self.current + 1).min(self.rule.depths.len().saturating_sub(1));
        if self.depth() > 0 && self.ema < 0 {
            self.ema = (i64::from(self.depth()) - 1) * ONE;
        }
    }

    /// Falls to the next lower depth `prev` while `ema ≤ prev − 0.5 + down`. For depth 0 the
    /// threshold is `0.5 + down`.
    fn go_down(&mut self) -> bool {
        let before = self.current;
        while let Some(below) = self.current.checked_sub(1) {
            let base = match self.rule.depths[below] {
                0 => ONE / 2,
                depth => i64::from(depth) * ONE - ONE / 2,
            };
            if self.ema > base + i64::from(self.rule.down_hysteresis) * MILLIONTH {
                break;
            }
            self.current = below;
        }
        self.current < before
    }

    /// Rises while `ema > current − 0.5 + up`.
    fn go_up(&mut self) {
        while self.current + 1 < self.rule.depths.len() {
            let base = i64::from(self.depth()) * ONE - ONE / 2;
            if self.ema <= base + i64::from(self.rule.up_hysteresis) * MILLIONTH {
                break;
            }
            self.current += 1;
        }
    }

    /// Leaves depths above `ceil(max(1, ema · coefficient))`, unless the depth has just risen.
    fn keep_under_ceiling(&mut self, before: u32) {
        let coefficient = i128::from(self.rule.ceiling_coeff);
        if coefficient == 0 || self.depth() > before {
            return;
        }
        let unit = i128::from(ONE) * 1_000_000;
        let product = i128::from(self.ema.max(0)) * coefficient;
        let ceiling = (product + unit - 1) / unit;
        while self.current > 0 && i128::from(self.depth()) > ceiling.max(1) {
            self.current -= 1;
        }
    }
}
