//! Whether what was measured before serving is what steps take.

use super::ONE;

/// Steps that prove a time, and those that show it wrong after it was proven: by
/// chance, many steps in a row are seldom short together.
const FIRST: u32 = 4;
const LATER: u32 = 16;
/// No step counts for more than so many times what was expected of it.
const MOST: u64 = 4;
/// A time was measured wrong where steps take less than this part of it, or more.
const SHORTER: u64 = ONE * 2 / 3;
const LONGER: u64 = ONE * 3 / 2;
/// And where it is this part of the whole step: what is shorter tells nothing.
const PART: u64 = 16;

/// What steps of one size have shown while serving.
///
/// Before serving, others who use the machine may have made a few steps ten times as
/// long, which no slow correction mends. Nobody makes a step shorter than it is: so
/// the first few steps that are far shorter are believed at once.
#[derive(Debug, Clone, Default)]
pub(super) struct Proof {
    proven: bool,
    steps: u32,
    took: u64,
    expected: u64,
    whole: u64,
}

impl Proof {
    /// Whether enough steps have run.
    pub fn is_proven(&self) -> bool {
        self.proven
    }

    /// `new` is believed where `old` was, by what other steps have shown: these steps
    /// are compared with that.
    pub fn expect(&mut self, new: u64, old: u64) {
        let expected = u128::from(self.expected) * u128::from(new) / u128::from(old.max(1));
        self.expected = u64::try_from(expected).unwrap_or(u64::MAX);
    }

    /// A step took `ns` where `expected` were, in a step of `step_ns`. Where that was
    /// wrong, gives how much of it steps take, in fixed point. What is proven only
    /// becomes shorter at once: what makes it longer may pass.
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
            // What became longer may be more than that.
            proven: !longer,
            ..Self::default()
        };
        (longer || shorter).then_some(ratio)
    }
}
