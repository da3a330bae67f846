//! Steps at another depth than the best, to learn what it would show.

use super::logit::ONE;
use crate::Digest;

/// What probes may cost: one part in so many of all time.
const BUDGET: i64 = 256;
/// Steps between two probes at the least and at the most.
const LEAST: u64 = 32;
const MOST: u64 = 1024;
/// A probe lasts until it has shown about so many rows.
const ROWS: u32 = 8;

/// Probes by step number: the less there is to expect of them and the more often
/// they found nothing, the rarer.
#[derive(Debug)]
pub(super) struct Probe {
    depth: u32,
    /// Steps that are left of the present one.
    left: u32,
    /// The step at which the last one began.
    began: u64,
    /// Steps to the next one, doubled by each that found nothing.
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

    /// How many steps a probe with so many rows lasts.
    pub fn steps(rows: u32) -> u32 {
        ROWS.div_ceil(rows.max(1))
    }

    /// The depth of a probe that goes on.
    pub fn going_on(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        Some(self.depth)
    }

    /// Whether it is time for one that loses so many steps, in fixed point.
    pub fn is_due(&self, step: u64, cost: i64) -> bool {
        let worth = u64::try_from(cost.saturating_mul(BUDGET) / ONE).unwrap_or(0);
        step.saturating_sub(self.began) >= worth.max(self.pause)
    }

    /// Begins one of so many steps.
    pub fn begin(&mut self, step: u64, depth: u32, steps: u32) {
        self.depth = depth;
        self.left = steps;
        self.began = step;
        self.pause = (self.pause * 2).min(MOST);
    }

    /// Something has changed: probes are worth more again.
    pub fn reset(&mut self) {
        self.pause = LEAST;
    }

    /// Ends the present one.
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
