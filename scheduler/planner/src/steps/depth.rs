//! Depth of the next step's drafts.

use lockstep_adaptive::{Agreed, Crowd, DepthRange};

use crate::PlannerConfig;

/// Rule for the depth of plans: the depth that the workers have agreed on, within limits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PlanDepth {
    agreed: Agreed,
    /// Most draft steps, whatever is agreed.
    most: u32,
    range: DepthRange,
    /// Rows that join before a decision holds; `None` if the depth is fixed.
    crowd: Option<Crowd>,
    /// Draft steps of the step that is being planned.
    steps: u32,
}

impl PlanDepth {
    /// Makes the rule for a group that has agreed on nothing yet.
    pub fn new(config: &PlannerConfig) -> Self {
        Self {
            agreed: Agreed::new(config.initial_depth),
            most: config.reserve.steps,
            range: DepthRange::default(),
            crowd: config.adapts.then(Crowd::default),
            steps: 0,
        }
    }

    /// Sets the most draft steps from the next plan on.
    pub fn set_most(&mut self, most: u32) {
        self.most = most;
    }

    /// Sets the depths that an operator allows from the next plan on.
    pub fn set_range(&mut self, range: DepthRange) {
        self.range = range;
    }

    /// Begins the plan of a step in which `decodes` rows decode. The step asks for the agreed
    /// depth, or for 0 if a crowd is met. It never asks for another depth, because all ranks
    /// are known to run only the agreed one.
    pub fn begin(&mut self, decodes: impl FnOnce() -> u32) {
        self.steps = self.agreed.depth().min(self.most);
        let may_pause = self.range.least == 0;
        if may_pause && self.crowd.is_some_and(|crowd| crowd.is_met(decodes())) {
            self.steps = 0;
        }
    }

    /// Returns the draft steps of the step that is being planned.
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// Notes that the step is sent. `decode_next` is the number of rows that decode after it.
    /// Returns the step's draft steps and the depths that an operator allows.
    pub fn launch(&mut self, decode_next: impl FnOnce() -> u32) -> (u32, DepthRange) {
        self.agreed.begin();
        if let Some(crowd) = &mut self.crowd {
            crowd.begin(decode_next());
        }
        (self.steps, self.range)
    }

    /// Takes in the depth that was decided in `step`.
    pub fn decide(&mut self, step: u64, depth: u32) {
        self.agreed.decide(step, depth);
    }

    /// Begins a new group.
    pub fn reset(&mut self) {
        self.agreed.reset();
        self.crowd = self.crowd.map(|_| Crowd::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReserveConfig;

    fn depth(adapts: bool) -> PlanDepth {
        let config = PlannerConfig {
            initial_depth: 7,
            reserve: ReserveConfig {
                steps: 7,
                ..ReserveConfig::none()
            },
            adapts,
            ..PlannerConfig::default()
        };
        PlanDepth::new(&config)
    }

    /// Plans a step of `decodes` rows. Returns its draft steps.
    fn step(depth: &mut PlanDepth, decodes: u32, decode_next: u32) -> u32 {
        depth.begin(|| decodes);
        depth.launch(|| decode_next).0
    }

    #[test]
    fn a_crowd_is_not_met_with_the_depth_of_one_request() {
        let mut depth = depth(true);
        for (decodes, next, drafts) in [(0, 1, 7), (1, 32, 7), (32, 32, 0), (32, 32, 7)] {
            assert_eq!(step(&mut depth, decodes, next), drafts);
        }
        // The new group's first depth was decided for no rows.
        depth.reset();
        assert_eq!(step(&mut depth, 32, 32), 0);
    }

    #[test]
    fn a_depth_that_does_not_adapt_or_is_pinned_stays() {
        let mut fixed = depth(false);
        assert_eq!(step(&mut fixed, 40, 40), 7);
        // A pin takes effect when the ranks have agreed on it, like any other depth.
        let mut pinned = depth(true);
        pinned.set_range(DepthRange { least: 3, most: 3 });
        assert_eq!(step(&mut pinned, 40, 40), 7);
        pinned.decide(1, 3);
        assert_eq!(step(&mut pinned, 40, 40), 7);
        assert_eq!(step(&mut pinned, 40, 40), 3);
        pinned.set_most(2);
        assert_eq!(step(&mut pinned, 40, 40), 2);
    }
}
