//! Steps on the wire.

use lockstep_adaptive::DepthRange;
use lockstep_types::step::{
    PlanPart, RankResult, SlotExtend, SlotOpen, SlotOutput, StageTimes, StepDigests, StepPlan,
};

use crate::{WireError, mirror::mirror, pb::lockstep as pb};

mirror!(try StepPlan {
    step, draft_steps, depth_range: filled, parts: try_each
});
mirror!(try PlanPart { closes, opens: try_each, extends: each });
mirror!(try SlotOpen {
    slot, token_ids, prompt_len, cached_len, drafted, sampling: given, logprobs: filled,
    max_draft_steps
});
mirror!(SlotExtend {
    slot,
    prefill_len,
    sample,
    new_pages
});
mirror!(RankResult {
    step,
    digests: filled,
    outputs: each,
    forward_us,
    stages: filled,
    agreed_depth,
    expected_us
});
mirror!(StageTimes {
    draft_us,
    verify_us,
    extend_us
});
mirror!(DepthRange { least, most });
mirror!(StepDigests { tensor, world });
mirror!(SlotOutput {
    slot,
    token_ids,
    logprobs: each,
    prompt_logprobs: each,
    draft_depth,
    draft_tokens
});
