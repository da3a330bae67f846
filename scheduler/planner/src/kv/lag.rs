//! The drafter's keys and values, which may lag behind the target's.

use crate::{DraftKv, PlannerConfig};

/// Most tokens at the end of a cached prefix that are computed again, or one page if that is
/// more, so that the request drafts with its whole prefix.
const RECOMPUTED: u32 = 64;

/// Rules by which a drafter takes in positions that it has missed.
#[derive(Debug)]
pub(super) struct DrafterLag {
    draft_kv: DraftKv,
    page_size: u32,
    pause_window: u32,
    left_by_draft_model: u32,
}

/// The drafter's keys and values of one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drafted {
    /// Number of leading positions that certainly have the drafter's keys and values, without a
    /// hole. It may be less than the target's number.
    pub(super) len: u32,
    /// True if the cached prefix has the drafter's keys and values too, or if there is no cached
    /// prefix.
    pub(super) prefix: bool,
}

impl Drafted {
    /// Returns the state of a request without a cached prefix.
    pub const NONE: Self = Self {
        len: 0,
        prefix: true,
    };

    /// Returns the state of a request with a cached prefix of `len` tokens. `whole` says if the
    /// prefix has the drafter's keys and values too.
    pub fn of_prefix(len: u32, whole: bool) -> Self {
        Self {
            len: if whole { len } else { 0 },
            prefix: whole,
        }
    }
}

impl DrafterLag {
    pub fn new(config: &PlannerConfig) -> Self {
        Self {
            draft_kv: config.draft_kv,
            page_size: config.page_size,
            pause_window: config.pause_window,
            left_by_draft_model: config.reserve.left_by_draft_model(),
        }
    }

    /// Returns true if a request computes the last `missing` pages of its cached prefix again,
    /// which lack the drafter's KV. They must be few, and the drafter must be at work:
    /// `pauses` says that the request's step drafts nothing.
    pub fn recomputes(&self, missing: usize, pauses: bool) -> bool {
        let few = (RECOMPUTED / self.page_size).max(1) as usize;
        let rests = pauses && self.pause_window > 0;
        !rests && missing > 0 && missing <= few
    }

    /// Takes in the result of a prefill chunk of the positions from `stood` to `to`. `pauses`
    /// says that its step drafted nothing. The positions that the drafter leaves then are taken
    /// in with the next chunk, or when it drafts again.
    pub fn prefill(&self, drafted: &mut Drafted, stood: u32, to: u32, pauses: bool) {
        let left = match self.left_by_drafter() {
            left if to - stood <= left => left,
            _ => 0,
        };
        if self.is_in_reach(drafted, stood, pauses) {
            drafted.len = drafted.len.max(to.saturating_sub(left));
        }
    }

    /// Takes in the result of a decode row that moved the request from `stood` to `to`.
    /// `pauses` says that its step drafted nothing. A drafter that has paused takes in the
    /// missed positions when it drafts again, as far as its window reaches. Positions further
    /// back stay a hole for good.
    pub fn decode(&self, drafted: &mut Drafted, stood: u32, to: u32, pauses: bool) {
        if self.is_in_reach(drafted, stood, pauses) {
            let left = self.left_by_drafter();
            drafted.len = drafted.len.max(to.saturating_sub(left));
        }
    }

    /// Returns true if a step lets the drafter take in all positions that a request has missed.
    /// The step found the request at `stood`; `pauses` says that it drafted nothing.
    fn is_in_reach(&self, drafted: &Drafted, stood: u32, pauses: bool) -> bool {
        let reach = self.pause_window.saturating_add(self.left_by_drafter());
        let behind = stood.saturating_sub(drafted.len);
        drafted.prefix && (self.pause_window == 0 || !pauses && behind <= reach)
    }

    /// Returns the number of positions that a drafter may leave to its next pass.
    fn left_by_drafter(&self) -> u32 {
        match self.draft_kv {
            // They are a short piece of a prompt, or the last positions that a step committed.
            DraftKv::Tokens => self.left_by_draft_model,
            DraftKv::None | DraftKv::Pairs => 0,
        }
    }
}
