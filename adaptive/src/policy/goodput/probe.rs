//! Probes: steps at another depth than the best, to learn about that depth.

use super::logit::ONE;
use crate::Digest;

/// Divisor of the time that probes may cost: one part in 256 of all time.
const BUDGET: i64 = 256;
/// Least and greatest number of steps between two probes.
const LEAST: u64 = 32;
const MOST: u64 = 1024;
/// Number of rows that a probe has to show, about.
const ROWS: u32 = 8;

/// Probes by step number. Probes become rarer the less they promise, and the more of them found
/// nothing.
#[derive(Debug)]
pub(super) struct Probe {
    depth: u32,
    /// Steps that are left of the present probe.
    left: u32,
    /// Number of the step at which the last probe began.
    began: u64,
    /// Steps until the next probe; doubled by each probe that found nothing.
    pause: u64,
}

impl Probe {
    pub fn new() -> Self {
        Self {
            depth: 0,
            left: 0,
            began: 0,
            pause: LEAST,
        }
    }

    /// Returns the number of steps of a probe with `rows` rows.
    pub fn steps(rows: u32) -> u32 {
        ROWS.div_ceil(rows.max(1))
    }

    /// Returns the depth of a probe that goes on.
    pub fn going_on(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        Some(self.depth)
    }

    /// Returns true if a probe is due that loses `cost` steps, in fixed point.
    pub fn is_due(&self, step: u64, cost: i64) -> bool {
        let worth = u64::try_from(cost.saturating_mul(BUDGET) / ONE).unwrap_or(0);
        step.saturating_sub(self.began) >= worth.max(self.pause)
    }

    /// Begins a probe of `steps` steps.
    pub fn begin(&mut self, step: u64, depth: u32, steps: u32) {
        self.depth = depth;
        self.left = steps;
        self.began = step;
        self.pause = (self.pause * 2).min(MOST);
    }

    /// Makes probes frequent again, because something has changed.
    pub fn reset(&mut self) {
        self.pause = LEAST;
    }

    /// Ends the present probe.
    pub fn stop(&mut self) {
        self.left = 0;
    }

    pub fn digest(&self, digest: &mut Digest) {
        digest.word(u64::from(self.depth));
        digest.word(u64::from(self.left));
        digest.word(self.began);
        digest.word(self.pause);
    }
}
