//! Requests that come all at once.

use crate::LAG;

/// More than so many times as many rows as a depth was decided for are a crowd.
const TIMES: u32 = 4;

/// The rows that depths were decided for, until the steps of these depths.
///
/// A decision takes [`LAG`] steps to hold. Where a crowd has joined meanwhile,
/// whoever plans drafts nothing until the depth has been decided anew: a step of a
/// crowd at the depth of one request can take as long as ten others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Crowd {
    /// Of the next steps' depths, the next first.
    decided_for: [u32; LAG as usize],
}

impl Crowd {
    /// Whether the next step's `decodes` rows are one.
    pub fn is_met(self, decodes: u32) -> bool {
        decodes > self.decided_for[0].max(1).saturating_mul(TIMES)
    }

    /// The next step begins. In it a depth is decided for the rows that decode
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
        // Nothing was decided yet: as for one row.
        assert!(!met(4, 1) && met(5, 3));
        // For one row, for three, for twelve.
        assert!(!met(4, 12) && met(13, 48) && met(49, 0));
        assert!(!met(192, 0) && met(5, 0));
    }
}
