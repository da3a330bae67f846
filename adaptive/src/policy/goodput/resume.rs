//! Cost of drafting again after steps that drafted nothing.

use super::logit::ONE;
use crate::{Digest, Seen};

/// Inverse of a resumption's weight in the mean.
const RATE: i64 = 4;
/// Greatest cost of a step.
const MOST_US: i64 = 1 << 32;

/// The cost of a drafter's late work. A drafter takes in what it missed in the first step that
/// drafts again. The cost is the time of that step beyond its expected time, per row.
#[derive(Debug)]
pub(super) struct Resume {
    /// Depth of the newest step.
    depth: u32,
    /// Microseconds per row; negative before any resumption was seen.
    row_us: i64,
}

impl Resume {
    pub fn new() -> Self {
        Self {
            depth: u32::MAX,
            row_us: -1,
        }
    }

    /// Takes in a step of `us` microseconds where `expected` were expected. Returns true if the
    /// step drafts again after steps that did not.
    pub fn observe(&mut self, seen: &Seen, us: u64, expected: Option<u64>) -> bool {
        let resumes = self.depth == 0 && seen.depth > 0;
        self.depth = seen.depth;
        if resumes
            && seen.is_decode()
            && let Some(expected) = expected
        {
            let more = us.saturating_sub(expected) / u64::from(seen.decodes.max(1));
            let more = i64::try_from(more).unwrap_or(MOST_US).min(MOST_US);
            self.row_us += match self.row_us {
                ..0 => more - self.row_us,
                known => (more - known) / RATE,
            };
        }
        resumes
    }

    /// Returns the cost for `rows` rows, in steps of `step_us` microseconds, in fixed point.
    pub fn steps(&self, rows: u32, step_us: u64) -> i64 {
        let us = self.row_us.max(0).saturating_mul(i64::from(rows));
        let step = i64::try_from(step_us).unwrap_or(MOST_US).max(1);
        us.min(MOST_US) * ONE / step
    }

    pub fn digest(&self, digest: &mut Digest) {
        digest.word(u64::from(self.depth));
        digest.word(self.row_us as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_first_step_takes_longer_is_the_cost() {
        let mut resume = Resume::new();
        let at = |depth, decodes| Seen {
            depth,
            decodes,
            ..Seen::default()
        };
        // Steps that always draft do not resume, however long they take.
        assert!(!resume.observe(&at(3, 4), 900, Some(100)));
        assert_eq!(resume.steps(4, 100), 0);
        for (us, steps) in [(500, 4), (100, 3), (20, 2)] {
            assert!(!resume.observe(&at(0, 4), 50, Some(50)));
            assert!(resume.observe(&at(1, 4), us, Some(100)));
            assert!(!resume.observe(&at(1, 4), 900, Some(100)));
            assert_eq!(resume.steps(4, 100) / ONE, steps, "{us}");
        }
        // Prompts in a step take time too, which is not known separately.
        let known = resume.steps(4, 100);
        let with_prompts = Seen {
            prompt_tokens: 9,
            ..at(1, 4)
        };
        assert!(!resume.observe(&at(0, 4), 50, Some(50)));
        assert!(resume.observe(&with_prompts, 9_000, Some(100)));
        assert_eq!(resume.steps(4, 100), known);
        // Twice as many rows cost twice as much.
        assert_eq!(resume.steps(8, 100), 2 * resume.steps(4, 100));
    }
}
