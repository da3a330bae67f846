//! Helpers for the tests of several files.

use crate::{
    AdaptiveConfig, BatchSlot, Costs, Loads, LongPrompts, Moment, POSITIONS, Policies, Policy,
    Seen, Tier,
};

/// Returns a configuration with depths 0, 1, 3, 5 and 7 as chains, whatever the batch.
pub(crate) fn config() -> AdaptiveConfig {
    let tier = |depth| Tier {
        depth,
        tokens: depth + 1,
    };
    let tiers = [0, 1, 3, 5, 7].map(tier).to_vec();
    AdaptiveConfig::new("static", 3, tiers, vec![slot(1, &[0, 1, 3, 5, 7])])
}

/// Returns a slot with SGLang's default thresholds.
pub(crate) fn slot(from: u32, depths: &[u32]) -> BatchSlot {
    BatchSlot::new(from, depths.to_vec())
}

/// Returns the statistics of a step in which each row of a chain accepted so many drafts.
pub(crate) fn accepted(depth: u32, rows: &[u32]) -> Seen {
    let mut seen = Seen {
        depth,
        decodes: rows.len() as u32,
        ..Seen::default()
    };
    seen.tokens = seen.decodes * (depth + 1);
    for row in rows {
        seen.count(depth, *row);
    }
    seen
}

/// A policy, and everything that the decider would tell it.
pub(crate) struct Driver {
    pub policy: Box<dyn Policy>,
    pub costs: Costs,
    pub depth: u32,
    pub candidates: Vec<u32>,
    pub loads: Loads,
    pub long_prompts: LongPrompts,
    step: u64,
}

impl Driver {
    pub fn new(name: &str, config: &AdaptiveConfig, profile: &[Seen]) -> Self {
        let policies = Policies::builtin();
        let factory = policies
            .find(name)
            .expect("a policy that comes with the crate");
        Self {
            policy: factory.build(config),
            costs: Costs::new(config, profile),
            depth: config.initial_depth,
            candidates: config.tiers.iter().map(|tier| tier.depth).collect(),
            loads: Loads::EVEN,
            long_prompts: LongPrompts::default(),
            step: 0,
        }
    }

    /// Shows the policy a step of one rank. Keeps and returns the decided depth.
    pub fn show(&mut self, seen: &Seen) -> u32 {
        self.show_ranks(seen, [seen.decodes, seen.decodes, 0])
    }

    /// Shows the policy a step of several ranks. The numbers are the rows of the rank with
    /// most, the rows of all ranks, and how many of these have joined.
    pub fn show_ranks(&mut self, seen: &Seen, [rows, all_rows, joined]: [u32; 3]) -> u32 {
        self.step += 1;
        self.depth = self.policy.decide(&Moment {
            step: self.step,
            depth: seen.depth,
            decided: self.depth,
            seen,
            seen_rows: rows,
            seen_taken: seen.taken(),
            rows,
            all_rows,
            joined,
            loads: self.loads,
            long_prompts: self.long_prompts,
            candidates: &self.candidates,
            costs: &self.costs,
        });
        self.depth
    }

    /// Shows the policy the same step `times` times.
    pub fn show_times(&mut self, times: usize, seen: &Seen) -> u32 {
        (0..times).fold(self.depth, |_, _| self.show(seen))
    }
}

/// Returns the counts of a batch so large that they are exact. At each position, `hazards[at]`
/// thousandths of the rows at risk accept the draft.
pub(crate) fn exact(depth: u32, decodes: u32, hazards: &[u32; POSITIONS]) -> Seen {
    let mut seen = Seen {
        depth,
        decodes,
        tokens: decodes * (depth + 1),
        ..Seen::default()
    };
    let mut left = decodes;
    for (at, hazard) in hazards.iter().enumerate().take(depth as usize) {
        seen.at_risk[at] = left;
        left = left * hazard / 1000;
        seen.accepted[at] = left;
    }
    seen
}
