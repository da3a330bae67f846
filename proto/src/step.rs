//! Steps on the wire.

use lockstep_adaptive::DepthRange;
use lockstep_types::{
    ConstraintWork,
    generation::GenerationParams,
    step::{
        PlanPart, RankResult, SlotExtend, SlotOpen, SlotOutput, StageTimes, StateKeep, StepDigests,
        StepPlan,
    },
};

use crate::{WireError, mirror::mirror, pb::lockstep as pb};

mirror!(try StepPlan {
    step, draft_steps, depth_range: filled, parts: try_each
});
mirror!(try PlanPart { closes, opens: try_each, extends: each });
mirror!(SlotExtend {
    slot,
    prefill_len,
    sample,
    new_pages,
    keeps: each
});
mirror!(StateKeep { position, state });
mirror!(RankResult {
    step,
    digests: filled,
    outputs: each,
    forward_us,
    stages: filled,
    agreed_depth,
    expected_us,
    constraints: filled
});
mirror!(StageTimes {
    draft_us,
    verify_us,
    extend_us
});
mirror!(ConstraintWork {
    masks,
    mask_us,
    waits,
    wait_us,
    compiles,
    cache_hits,
    failures,
    cut_drafts
});
mirror!(DepthRange { least, most });
mirror!(StepDigests { tensor, world });
mirror!(SlotOutput {
    slot,
    token_ids,
    logprobs: each,
    prompt_logprobs: each,
    draft_depth,
    draft_tokens,
    forced_tokens,
    accepted_forced_tokens
});

impl TryFrom<pb::SlotOpen> for SlotOpen {
    type Error = WireError;
    fn try_from(mut wire: pb::SlotOpen) -> Result<Self, WireError> {
        let adapter = wire.adapter.take().map(TryInto::try_into);
        Ok(Self {
            generation: GenerationParams {
                adapter: adapter.transpose()?,
                ..wire.take_generation()?
            },
            slot: wire.slot,
            token_ids: wire.token_ids,
            prompt_len: wire.prompt_len,
            cached_len: wire.cached_len,
            drafted: wire.drafted,
            state: wire.state,
            restore: wire.restore,
        })
    }
}

impl From<SlotOpen> for pb::SlotOpen {
    fn from(open: SlotOpen) -> Self {
        let SlotOpen {
            slot,
            token_ids,
            prompt_len,
            cached_len,
            drafted,
            state,
            restore,
            generation: params,
        } = open;
        let wire = Self {
            slot,
            token_ids,
            prompt_len,
            cached_len,
            drafted,
            state,
            restore,
            adapter: params.adapter.map(Into::into),
            ..Self::default()
        };
        wire.with_generation(params)
    }
}
