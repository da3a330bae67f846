//! How deep the next step drafts.

use lockstep_adaptive::{Agreed, Crowd, DepthRange};

use crate::PlannerConfig;

/// The rule for how deep plans ask to draft: what the workers have agreed on, and
/// what limits it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PlanDepth {
    agreed: Agreed,
    /// Draft steps at the most, whatever is agreed.
    most: u32,
    range: DepthRange,
    /// What joins before a decision holds; where the depth adapts.
    crowd: Option<Crowd>,
    /// Of the step that is being planned.
    steps: u32,
}

impl PlanDepth {
    /// Nothing is agreed on yet.
    pub fn new(config: &PlannerConfig) -> Self {
        Self {
            agreed: Agreed::new(config.initial_depth),
            most: config.reserve.steps,
            range: DepthRange::default(),
            crowd: config.adapts.then(Crowd::default),
            steps: 0,
        }
    }

    /// So many draft steps at the most from the next plan on.
    pub fn set_most(&mut self, most: u32) {
        self.most = most;
    }

    /// What an operator allows from the next plan on.
    pub fn set_range(&mut self, range: DepthRange) {
        self.range = range;
    }

    /// A step is planned in which so many rows decode. It asks for what was agreed,
    /// or for nothing: of any other depth nobody has said that all ranks can run it.
    pub fn begin(&mut self, decodes: impl FnOnce() -> u32) {
        self.steps = self.agreed.depth().min(self.most);
        let may_pause = self.range.least == 0;
        if may_pause && self.crowd.is_some_and(|crowd| crowd.is_met(decodes())) {
            self.steps = 0;
        }
    }

    /// Draft steps of the step that is being planned.
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// The step goes off; so many rows decode after it.
    pub fn launch(&mut self, decode_next: impl FnOnce() -> u32) -> (u32, DepthRange) {
        self.agreed.begin();
        if let Some(crowd) = &mut self.crowd {
            crowd.begin(decode_next());
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

    /// Plans a step of so many rows; its draft steps.
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
        // The new group's first depth was decided for nobody.
        depth.reset();
        assert_eq!(step(&mut depth, 32, 32), 0);
    }

    #[test]
    fn a_depth_that_does_not_adapt_or_is_pinned_stays() {
        let mut fixed = depth(false);
        assert_eq!(step(&mut fixed, 40, 40), 7);
        // A pin is agreed on first, as any other depth is.
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
