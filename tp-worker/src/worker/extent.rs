//! How large a step's pass is, as all ranks know it before it begins.

use lockstep_backend::{PassKey, World, WorldRows};
use lockstep_types::step::StepPlan;

/// How large a step's pass is, alike on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All ranks have the same batch, of this size.
    Own(PassKey),
    /// DP ranks have told each other what they bring, at most this.
    Counted(PassKey),
    /// No DP rank brings more than `most`, which the plan alone says, and all repeat the
    /// recorded pass of `size`.
    Padded {
        /// The most that one brings.
        most: PassKey,
        /// Of each DP rank's part of the pass.
        size: PassKey,
    },
}

impl Extent {
    /// That of a plan whose rows all decode, with at most `drafts` drafts, where a pass is
    /// recorded that `holds` the most that comes of it.
    pub fn padded(
        plan: &StepPlan,
        drafts: u32,
        holds: impl FnOnce(PassKey) -> Option<PassKey>,
    ) -> Option<Self> {
        let most = plan.decodes(drafts)?;
        let most = PassKey {
            requests: most.requests as usize,
            tokens: most.tokens as usize,
            max_q_len: most.longest as usize,
        };
        holds(most).map(|size| Self::Padded { most, size })
    }

    /// The size of the largest batch that it has room for, by which passes are prepared.
    pub fn key(self) -> PassKey {
        match self {
            Self::Own(key) | Self::Counted(key) | Self::Padded { most: key, .. } => key,
        }
    }

    /// Tokens of a DP rank's part.
    pub fn tokens(self) -> usize {
        match self {
            Self::Own(key) | Self::Counted(key) | Self::Padded { size: key, .. } => key.tokens,
        }
    }

    /// As a model's pass takes it; `counted` is what DP ranks have told each other.
    pub fn world(self, counted: &WorldRows) -> Option<World<'_>> {
        match self {
            Self::Own(_) => None,
            Self::Counted(_) => Some(World::Counted(counted)),
            Self::Padded { size, .. } => Some(World::Padded(size)),
        }
    }
}
