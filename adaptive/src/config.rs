//! Resolved configuration of adaptive depth.

use serde::{Deserialize, Serialize};

/// Values that follow from `--speculative-adaptive` and its file. Fractions are in millionths:
/// the file's decimals, exactly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdaptiveConfig {
    /// The registered name of the policy.
    pub policy: String,
    /// Depth of the first steps; one of [`Self::tiers`].
    pub initial_depth: u32,
    /// All depths that may be run, ascending: those of all slots.
    pub tiers: Vec<Tier>,
    /// Candidates by batch size, ascending; the first one begins at 1.
    pub slots: Vec<BatchSlot>,
    /// Weight of the newest batch in a moving average.
    pub ema_alpha: u32,
    /// Batches between two decisions.
    pub update_interval: u32,
    /// Batches before the first decision.
    pub warmup_batches: u32,
    /// Batches in the moving window of `throughput_aware`.
    pub window_size: u32,
    /// Gain over the present depth that `throughput_aware` asks of another one.
    pub switch_hysteresis: u32,
    /// Part of a token's work in a pass that DP ranks share, in 65,536ths: MLP and output head.
    /// The other part is attention's projections, on the token's own DP rank. `shared_part`
    /// decides how long a pass lasts if DP ranks' loads differ; with one DP rank it has no effect.
    pub shared_part: u32,
}

/// A depth, and the number of tokens that are verified per request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tier {
    /// Draft steps.
    pub depth: u32,
    /// Tokens of one request in a verification, its last known token included.
    pub tokens: u32,
}

/// Candidates for batches from one size up to the next slot's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchSlot {
    /// The smallest batch, in rows that decode.
    pub from: u32,
    /// Depths that may be chosen, ascending.
    pub depths: Vec<u32>,
    /// Added to the threshold of going deeper.
    pub up_hysteresis: i32,
    /// Added to the threshold of going less deep.
    pub down_hysteresis: i32,
    /// Depths above this many times the accepted drafts are left; 0 = never.
    pub ceiling_coeff: u32,
}

impl AdaptiveConfig {
    /// Makes a configuration with SGLang's defaults for everything else. All of a pass counts
    /// as shared.
    pub fn new(policy: &str, initial_depth: u32, tiers: Vec<Tier>, slots: Vec<BatchSlot>) -> Self {
        Self {
            policy: policy.to_owned(),
            initial_depth,
            tiers,
            slots,
            ema_alpha: 200_000,
            update_interval: 5,
            warmup_batches: 10,
            window_size: 20,
            switch_hysteresis: 100_000,
            shared_part: 1 << 16,
        }
    }

    /// Returns the slot of a batch of `decodes` rows.
    pub fn slot(&self, decodes: u32) -> Option<&BatchSlot> {
        let slots = self.slots.iter();
        slots
            .take_while(|slot| slot.from <= decodes.max(1))
            .last()
            .or(self.slots.first())
    }

    /// Returns the greatest depth of all.
    pub fn max_depth(&self) -> u32 {
        self.tiers.last().map_or(0, |tier| tier.depth)
    }

    /// Returns all depths as bits, see [`Row::depths`](crate::Row::depths).
    pub fn depths(&self) -> u32 {
        let bit = |tier: &Tier| 1u32.checked_shl(tier.depth).unwrap_or(0);
        self.tiers.iter().map(bit).fold(0, |all, bit| all | bit)
    }
}

impl BatchSlot {
    /// Makes a slot with SGLang's defaults for everything else.
    pub fn new(from: u32, depths: Vec<u32>) -> Self {
        Self {
            from,
            depths,
            up_hysteresis: 0,
            down_hysteresis: -250_000,
            ceiling_coeff: 0,
        }
    }
}
