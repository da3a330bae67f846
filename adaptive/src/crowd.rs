//! Crowds: many requests that come at once.

use crate::LAG;

/// Factor that makes a crowd: more rows than this many times those that the depth was decided
/// for.
const TIMES: u32 = 4;

/// Numbers of rows that the depths of the next steps were decided for.
///
/// A decision takes [`LAG`] steps to hold. If a crowd has joined meanwhile, the planner drafts
/// nothing until the depth has been decided anew. A crowd's step at the depth of one request
/// can take as long as ten other steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Crowd {
    /// Numbers of rows by step, the next step first.
    decided_for: [u32; LAG as usize],
}

impl Crowd {
    /// Returns true if the next step's `decodes` rows are a crowd.
    pub fn is_met(self, decodes: u32) -> bool {
        decodes > self.decided_for[0].max(1).saturating_mul(TIMES)
    }

    /// Begins the next step. In it a depth is decided for the `decode_next` rows that decode
    /// after it.
    pub fn begin(&mut self, decode_next: u32) {
        self.decided_for.rotate_left(1);
        self.decided_for[LAG as usize - 1] = decode_next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_more_than_a_depth_was_decided_for_are_a_crowd() {
        let mut crowd = Crowd::default();
        let mut met = |decodes, decode_next| {
            let met = crowd.is_met(decodes);
            crowd.begin(decode_next);
            met
        };
        // Nothing was decided yet, which counts as a decision for one row.
        assert!(!met(4, 1) && met(5, 3));
        // The decisions were for one row, for three and for twelve.
        assert!(!met(4, 12) && met(13, 48) && met(49, 0));
        assert!(!met(192, 0) && met(5, 0));
    }
}
