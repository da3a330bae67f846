//! How the depth may adapt, resolved.

use serde::{Deserialize, Serialize};

/// What `--speculative-adaptive` and its file come to. Fractions are in
/// millionths: the file's decimals, exactly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdaptiveConfig {
    /// The registered name of the policy.
    pub policy: String,
    /// The depth of the first steps; one of [`Self::tiers`].
    pub initial_depth: u32,
    /// Every depth that may be run, ascending: those of all slots.
    pub tiers: Vec<Tier>,
    /// Candidates by batch size, ascending; the first one begins at 1.
    pub slots: Vec<BatchSlot>,
    /// Weight of the newest batch in a moving average.
    pub ema_alpha: u32,
    /// Batches between two decisions.
    pub update_interval: u32,
    /// Batches before the first decision.
    pub warmup_batches: u32,
    /// Batches in a moving window, `throughput_aware`.
    pub window_size: u32,
    /// How much better than the present depth another one must be,
    /// `throughput_aware`.
    pub switch_hysteresis: u32,
    /// Of what a token takes of a pass, the part of 65,536 that DP ranks share: MLP
    /// and output head, against attention's projections on its own DP rank. It tells
    /// how long a pass lasts where their loads differ; one DP rank has no use for it.
    pub shared_part: u32,
}

/// A depth, and what a request has verified at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tier {
    /// Draft steps.
    pub depth: u32,
    /// Tokens of one request in a verification, its last known one included.
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
    /// Depths beyond so many times what is accepted are left; 0 = never.
    pub ceiling_coeff: u32,
}

impl AdaptiveConfig {
    /// With SGLang's defaults for everything else, and all of a pass for shared.
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

    /// The slot of a batch.
    pub fn slot(&self, decodes: u32) -> Option<&BatchSlot> {
        let slots = self.slots.iter();
        slots
            .take_while(|slot| slot.from <= decodes.max(1))
            .last()
            .or(self.slots.first())
    }

    /// The greatest depth of all.
    pub fn max_depth(&self) -> u32 {
        self.tiers.last().map_or(0, |tier| tier.depth)
    }

    /// Every depth as a bit, see [`Row::depths`](crate::Row::depths).
    pub fn depths(&self) -> u32 {
        let bit = |tier: &Tier| 1u32.checked_shl(tier.depth).unwrap_or(0);
        self.tiers.iter().map(bit).fold(0, |all, bit| all | bit)
    }
}

impl BatchSlot {
    /// With SGLang's defaults for everything else.
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
