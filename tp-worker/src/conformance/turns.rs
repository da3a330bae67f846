//! A policy that decides on another depth in every step.

use lockstep_adaptive::{AdaptiveConfig, BatchSlot, Digest, Moment, Policy, PolicyFactory, Tier};
use lockstep_types::SpeculationConfig;

/// Goes through all candidates, the deepest after the shallowest.
#[derive(Debug)]
pub(super) struct Turns;

/// Every depth of `speculation`, by turns.
pub(super) fn config(speculation: &SpeculationConfig) -> AdaptiveConfig {
    let depths: Vec<u32> = (0..=speculation.num_steps as u32).collect();
    let tier = |depth: &u32| Tier {
        depth: *depth,
        tokens: speculation.draft_tokens_at(*depth as usize) as u32,
    };
    let tiers = depths.iter().map(tier).collect();
    AdaptiveConfig::new(Turns.name(), 0, tiers, vec![BatchSlot::new(1, depths)])
}

impl PolicyFactory for Turns {
    fn name(&self) -> &str {
        "turns"
    }

    fn summary(&self) -> &str {
        "another depth in every step"
    }

    fn reads_costs(&self) -> bool {
        false
    }

    fn build(&self, _config: &AdaptiveConfig) -> Box<dyn Policy> {
        Box::new(Self)
    }
}

impl Policy for Turns {
    fn decide(&mut self, moment: &Moment<'_>) -> u32 {
        let count = moment.candidates.len();
        let turn = moment.step as usize % count;
        moment.candidates[count - 1 - turn]
    }

    fn digest(&self, _digest: &mut Digest) {}
}
