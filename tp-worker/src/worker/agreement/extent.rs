//! The size of a step's pass, as all ranks know it before the pass begins.

use lockstep_backend::{Backend, PassKey, World, WorldRows};
use lockstep_model::Transformer;
use lockstep_types::step::StepPlan;

/// The size of a step's pass, equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All ranks have the same batch, of this size.
    Own(PassKey),
    /// DP ranks have told each other the sizes of their batches. No batch is larger than this.
    Counted(PassKey),
    /// No DP rank brings more than `most`, which follows from the plan alone. All ranks repeat
    /// the recorded pass of `size`.
    Padded {
        /// The largest batch that a DP rank may bring.
        most: PassKey,
        /// The size of each DP rank's part of the pass.
        size: PassKey,
    },
}

impl Extent {
    /// Returns the extent of a plan whose rows all decode with at most `drafts` drafts. `holds`
    /// finds the recorded pass with room for the largest batch. Returns `None` if the plan has
    /// other rows, or if no recorded pass is large enough.
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

    /// Returns the size of the largest batch that the pass has room for. Passes are prepared by
    /// this size.
    pub fn key(self) -> PassKey {
        match self {
            Self::Own(key) | Self::Counted(key) | Self::Padded { most: key, .. } => key,
        }
    }

    /// Returns true if the rows of a step of this size travel with its pass.
    pub fn carries_rows<B: Backend>(self, target: &Transformer<B>) -> bool {
        target.takes_notes() && !matches!(self, Self::Counted(_))
    }

    /// Returns the number of tokens of a DP rank's part.
    pub fn tokens(self) -> usize {
        match self {
            Self::Own(key) | Self::Counted(key) | Self::Padded { size: key, .. } => key.tokens,
        }
    }

    /// Returns the extent in the form that a model's pass takes. `counted` are the rows that DP
    /// ranks have told each other.
    pub fn world(self, counted: &WorldRows) -> Option<World<'_>> {
        match self {
            Self::Own(_) => None,
            Self::Counted(_) => Some(World::Counted(counted)),
            Self::Padded { size, .. } => Some(World::Padded(size)),
        }
    }
}
