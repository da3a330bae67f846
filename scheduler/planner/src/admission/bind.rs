//! Which DP rank a request runs in.

use std::cmp::Reverse;

use crate::{dp_rank::DpRank, request::RequestState};

/// A DP rank that runs half as many requests more than the one with fewest, and
/// so many, is not chosen for its prefix. One that all requests share, such as a
/// system prompt, would otherwise bring all of them where it was computed first.
const UNBALANCED: usize = 4;

/// Whether a request may run in a DP rank: in any, unless it names one.
pub(super) fn allows(request: &RequestState, dp_rank: usize) -> bool {
    let named = request.rest.data_parallel_rank;
    named.is_none_or(|named| named as usize == dp_rank)
}

/// The DP rank that a waiting request is bound to, of those that it may run in and
/// that let requests in: where most of its prefix is cached, then where least is
/// to be done, then the first.
pub(super) fn choose(ranks: &mut [DpRank], request: &RequestState) -> Option<usize> {
    if let [only] = ranks {
        return only.is_open().then_some(0);
    }
    let open = |at: usize, rank: &DpRank| allows(request, at) && rank.is_open();
    let running = (0..).zip(&*ranks).filter(|(at, rank)| open(*at, rank));
    let fewest = running.map(|(_, rank)| rank.batch.len()).min()?;
    let balanced = fewest + fewest / 2 + UNBALANCED;
    let all = (0..).zip(ranks).filter(|(at, rank)| open(*at, rank));
    let best = all.map(|(at, rank)| {
        let cached = match rank.batch.len() <= balanced {
            true => rank.kv.match_len(request),
            false => 0,
        };
        (Reverse(cached), rank.load(), at)
    });
    best.min().map(|(.., at)| at)
}
