//! A policy for tests that decides on another depth in every step.

use lockstep_adaptive::{AdaptiveConfig, BatchSlot, Digest, Moment, Policy, PolicyFactory, Tier};
use lockstep_types::SpeculationConfig;

const NAME: &str = "turns";

/// Goes through all candidate depths from the deepest to the shallowest, then begins again.
#[derive(Debug, Clone, Copy, Default)]
pub struct Turns {
    /// A step in which the policy decides as in the step after. Where only some ranks have
    /// `astray`, they differ from the others from that step on.
    pub astray: Option<u64>,
}

/// Returns an adaptive configuration with every depth of `speculation`, decided by [`Turns`].
pub(super) fn config(speculation: &SpeculationConfig) -> AdaptiveConfig {
    let depths: Vec<u32> = (0..=speculation.num_steps as u32).collect();
    let tier = |depth: &u32| Tier {
        depth: *depth,
        tokens: speculation.draft_tokens_at(*depth as usize) as u32,
    };
    let tiers = depths.iter().map(tier).collect();
    AdaptiveConfig::new(NAME, 0, tiers, vec![BatchSlot::new(1, depths)])
}

impl PolicyFactory for Turns {
    fn name(&self) -> &str {
        NAME
    }

    fn summary(&self) -> &str {
        "another depth in every step"
    }

    fn reads_costs(&self) -> bool {
        false
    }

    fn build(&self, _config: &AdaptiveConfig) -> Box<dyn Policy> {
        Box::new(*self)
    }
}

impl Policy for Turns {
    fn decide(&mut self, moment: &Moment<'_>) -> u32 {
        let count = moment.candidates.len();
        let astray = usize::from(self.astray == Some(moment.step));
        let turn = (moment.step as usize + astray) % count;
        moment.candidates[count - 1 - turn]
    }

    fn digest(&self, _digest: &mut Digest) {}
}
