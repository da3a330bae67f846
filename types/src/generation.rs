//! Parameters by which a request's tokens are generated.

use std::sync::Arc;

use lockstep_adaptive::Digest;

use crate::{
    adapter::Adapter,
    constraint::Constraint,
    sampling::{LogprobParams, SamplingParams},
};

/// Everything that workers need to know of a request's generation, beside its tokens. The
/// planner hands it from the request to the slot as a whole.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationParams {
    /// Sampling of its tokens.
    pub sampling: SamplingParams,
    /// Log-probabilities to report.
    pub logprobs: LogprobParams,
    /// Most draft steps; 0 = no speculation; `None` = as the plans say.
    pub max_draft_steps: Option<u32>,
    /// Language that the output belongs to; `None` = the output is free.
    pub constraint: Option<Arc<Constraint>>,
    /// Adapter that computes its tokens beside the model; `None` = the model alone.
    pub adapter: Option<Adapter>,
}

impl From<SamplingParams> for GenerationParams {
    /// Returns the parameters of a request that asks for nothing but this sampling.
    fn from(sampling: SamplingParams) -> Self {
        Self {
            sampling,
            ..Self::default()
        }
    }
}

impl GenerationParams {
    /// Folds all fields into a digest by which ranks are compared. Structs are taken apart
    /// without `..`, here and in the fields' own digests, so that a new field does not compile
    /// until it is folded in too.
    pub fn digest(&self, digest: &mut Digest) {
        let Self {
            sampling,
            logprobs,
            max_draft_steps,
            constraint,
            adapter,
        } = self;
        sampling.digest(digest);
        logprobs.digest(digest);
        digest.option(*max_draft_steps);
        digest.word(u64::from(constraint.is_some()));
        if let Some(constraint) = constraint {
            constraint.digest(digest);
        }
        digest.word(u64::from(adapter.is_some()));
        if let Some(adapter) = adapter {
            adapter.digest(digest);
        }
    }
}
