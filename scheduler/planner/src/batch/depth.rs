//! How deep the next step drafts.

use lockstep_adaptive::{Agreed, DepthRange, LAG};

use crate::PlannerConfig;

/// A depth that was decided for so many rows is taken back where more than so
/// many times as many decode: it is about to be decided anew, and a single step at
/// a depth that was meant for one request can take as long as ten others.
const OUTGROWN: u32 = 4;

/// What the workers have agreed on, and what limits it.
#[derive(Debug)]
pub(super) struct Depth {
    agreed: Agreed,
    /// Draft steps at the most, whatever is agreed.
    most: u32,
    range: DepthRange,
    adapts: bool,
    /// Rows for which the depths of the next [`LAG`] steps were decided, the next
    /// first: those that decoded after the step of the decision.
    decided_for: [u32; LAG as usize],
    /// Of the step that is being planned.
    steps: u32,
}

impl Depth {
    pub fn new(config: &PlannerConfig) -> Self {
        Self {
            agreed: Agreed::new(config.initial_depth),
            most: config.reserve.steps,
            range: DepthRange::default(),
            adapts: config.adapts,
            decided_for: [0; LAG as usize],
            steps: 0,
        }
    }

    pub fn set_most(&mut self, most: u32) {
        self.most = most;
    }

    pub fn set_range(&mut self, range: DepthRange) {
        self.range = range;
    }

    /// A step is planned in which so many rows decode.
    ///
    /// Where a crowd joins, which a decision takes [`LAG`] steps to answer, its
    /// verification is no larger than the one that was decided.
    pub fn begin(&mut self, decodes: impl FnOnce() -> u32) {
        self.steps = self.agreed.depth().min(self.most);
        if !self.adapts {
            return;
        }
        let (decodes, decided_for) = (decodes(), self.decided_for[0].max(1));
        if decodes > decided_for.saturating_mul(OUTGROWN) {
            let tokens = decided_for.saturating_mul(self.steps.saturating_add(1));
            let fits = (tokens / decodes).saturating_sub(1);
            self.steps = fits.max(self.range.least).min(self.steps);
        }
    }

    /// Draft steps of the step that is being planned.
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// The step goes off; so many rows decode after it.
    pub fn launch(&mut self, decode_next: impl FnOnce() -> u32) -> (u32, DepthRange) {
        self.agreed.begin();
        if self.adapts {
            self.decided_for.rotate_left(1);
            self.decided_for[LAG as usize - 1] = decode_next();
        }
        (self.steps, self.range)
    }

    /// What was decided in `step`.
    pub fn decide(&mut self, step: u64, depth: u32) {
        self.agreed.decide(step, depth);
    }

    /// A new group begins.
    pub fn reset(&mut self) {
        self.agreed.reset();
        self.decided_for = [0; LAG as usize];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReserveConfig;

    fn depth(adapts: bool) -> Depth {
        let config = PlannerConfig {
            initial_depth: 7,
            reserve: ReserveConfig {
                steps: 7,
                ..ReserveConfig::none()
            },
            adapts,
            ..PlannerConfig::default()
        };
        Depth::new(&config)
    }

    /// Plans and answers a step of so many rows; its draft steps.
    fn step(depth: &mut Depth, decodes: u32, decode_next: u32) -> u32 {
        depth.begin(|| decodes);
        depth.launch(|| decode_next).0
    }

    #[test]
    fn a_crowd_is_not_met_with_the_depth_of_one_request() {
        let mut depth = depth(true);
        for (decodes, next) in [(0, 1), (1, 1), (1, 4)] {
            assert_eq!(step(&mut depth, decodes, next), 7);
        }
        // Decided for one row: eight tokens, of which four rows get two each, but
        // they are not so many more.
        assert_eq!(step(&mut depth, 4, 12), 7);
        // For four of now twelve the same; for one, they would be a crowd.
        assert_eq!(step(&mut depth, 12, 48), 7);
        assert_eq!(step(&mut depth, 49, 49), 1);
        assert_eq!(step(&mut depth, 4 * 48 + 1, 200), 0);
    }

    #[test]
    fn a_depth_that_does_not_adapt_or_is_pinned_stays() {
        let mut fixed = depth(false);
        assert_eq!(step(&mut fixed, 40, 40), 7);
        let mut pinned = depth(true);
        pinned.set_range(DepthRange { least: 3, most: 3 });
        assert_eq!(step(&mut pinned, 40, 40), 3);
        pinned.set_most(2);
        assert_eq!(step(&mut pinned, 40, 40), 2);
    }
}
