//! Rolling digests of everything that happened to a worker.

use lockstep_adaptive::{DepthRange, Digest};
use lockstep_types::step::{PlanPart, SlotExtend, SlotOpen, StateKeep, StepDigests, StepPlan};

/// Digests by which ranks are compared after every step: see [`StepDigests`].
#[derive(Debug)]
pub struct Digests {
    /// Digest of plans, drafts and tokens, which the ranks of a DP rank share.
    pub tensor: Digest,
    /// Digest of what all ranks share: numbers of steps and of draft steps, and sizes of
    /// passes.
    pub world: Digest,
}

impl Digests {
    /// Makes digests of nothing.
    pub fn new() -> Self {
        Self {
            tensor: Digest::new(),
            world: Digest::new(),
        }
    }

    /// Takes in a plan and the part of the rank's own DP rank.
    pub fn plan(&mut self, plan: &StepPlan, part: &PlanPart) {
        take_plan(&mut self.tensor, plan);
        take_part(&mut self.tensor, part);
        self.world.word(plan.step);
        self.world.word(u64::from(plan.draft_steps));
    }

    /// Returns the digests so far.
    pub fn values(&self) -> StepDigests {
        StepDigests {
            tensor: self.tensor.value(),
            world: self.world.value(),
        }
    }
}

/// Takes in a plan without its parts; each DP rank follows one of these. Structs are taken
/// apart without `..`, here and below, so that a new field does not compile until it is taken
/// in too.
fn take_plan(digest: &mut Digest, plan: &StepPlan) {
    let StepPlan {
        step,
        draft_steps,
        depth_range,
        parts: _,
    } = plan;
    digest.word(*step);
    digest.word(u64::from(*draft_steps));
    let DepthRange { least, most } = depth_range;
    digest.word(u64::from(*least) << 32 | u64::from(*most));
}

fn take_part(digest: &mut Digest, part: &PlanPart) {
    let PlanPart {
        closes,
        opens,
        extends,
    } = part;
    digest.list(closes);
    digest.word(opens.len() as u64);
    opens.iter().for_each(|open| take_open(digest, open));
    digest.word(extends.len() as u64);
    extends
        .iter()
        .for_each(|extend| take_extend(digest, extend));
}

fn take_open(digest: &mut Digest, open: &SlotOpen) {
    let SlotOpen {
        slot,
        token_ids,
        prompt_len,
        cached_len,
        drafted,
        state,
        restore,
        generation,
    } = open;
    digest.word(u64::from(*slot));
    digest.list(token_ids);
    digest.word(u64::from(*prompt_len));
    digest.word(u64::from(*cached_len));
    digest.word(u64::from(*drafted));
    digest.word(number(*state));
    digest.word(number(*restore));
    generation.digest(digest);
}

fn take_extend(digest: &mut Digest, extend: &SlotExtend) {
    let SlotExtend {
        slot,
        prefill_len,
        sample,
        new_pages,
        keeps,
    } = extend;
    digest.word(u64::from(*slot) << 32 | u64::from(*prefill_len));
    digest.word(u64::from(*sample));
    digest.list(new_pages);
    digest.word(keeps.len() as u64);
    for StateKeep { position, state } in keeps {
        digest.word(u64::from(*position) << 32 | u64::from(*state));
    }
}

/// Returns a number that tells `None` from every `u32`.
fn number(of: Option<u32>) -> u64 {
    of.map_or(u64::MAX, u64::from)
}

#[cfg(test)]
mod tests;
