//! Test of the times measured before serving by the steps that run.

use super::ONE;

/// Number of steps that prove a time, and number that can refute a proven one. Many steps in a
/// row are seldom short by chance.
const FIRST: u32 = 4;
const LATER: u32 = 16;
/// Most that a step counts for, as a multiple of its expected time.
const MOST: u64 = 4;
/// A measured time is wrong if steps take less than `SHORTER` of it, or more than `LONGER`.
const SHORTER: u64 = ONE * 2 / 3;
const LONGER: u64 = ONE * 3 / 2;
/// The test counts only if the time is at least this part of the whole step: a smaller part
/// tells nothing.
const PART: u64 = 16;

/// Steps of one size that have run while serving.
///
/// Before serving, other programs may have made a few steps ten times as long, and no slow
/// correction mends that. No program makes a step shorter than it is. So the first few steps
/// that are far shorter are believed at once.
#[derive(Debug, Clone, Default)]
pub(super) struct Proof {
    proven: bool,
    steps: u32,
    took: u64,
    expected: u64,
    whole: u64,
}

impl Proof {
    /// Returns true if enough steps have run.
    pub fn is_proven(&self) -> bool {
        self.proven
    }

    /// Rescales the steps so far, because other steps have changed the expected time from `old`
    /// to `new`.
    pub fn expect(&mut self, new: u64, old: u64) {
        let expected = u128::from(self.expected) * u128::from(new) / u128::from(old.max(1));
        self.expected = u64::try_from(expected).unwrap_or(u64::MAX);
    }

    /// Takes in a step that took `ns` where `expected` was expected, as a part of `step_ns`. If
    /// the expected time was wrong, returns the part of it that steps take, in fixed point. A
    /// proven time only becomes shorter at once: the cause of longer steps may pass.
    pub fn observe(&mut self, ns: u64, expected: u64, step_ns: u64) -> Option<u64> {
        self.steps += 1;
        self.took = self.took.saturating_add(ns.min(MOST * expected));
        self.expected = self.expected.saturating_add(expected);
        self.whole = self.whole.saturating_add(step_ns);
        if self.steps < if self.proven { LATER } else { FIRST } {
            return None;
        }
        let ratio = u128::from(self.took) * u128::from(ONE) / u128::from(self.expected.max(1));
        let ratio = u64::try_from(ratio).unwrap_or(ONE);
        let counts = self.took.max(self.expected).saturating_mul(PART) >= self.whole;
        let longer = counts && ratio > LONGER && !self.proven;
        let shorter = counts && ratio < SHORTER;
        *self = Self {
            // A time that became longer may be longer still.
            proven: !longer,
            ..Self::default()
        };
        (longer || shorter).then_some(ratio)
    }
}
