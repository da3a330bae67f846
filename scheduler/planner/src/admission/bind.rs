//! Choice of the DP rank that a request runs in.

use std::cmp::Reverse;

use crate::{dp_rank::DpRank, request::RequestState};

/// Excess of running requests from which a DP rank is not chosen for its prefix. The limit is
/// one and a half times the fewest that an open DP rank runs, plus this number. Example: if the
/// fewest is 10, the limit is 19. Without a limit a prefix of all requests, such as a system
/// prompt, would bring all of them to the DP rank that computed the prefix first.
const UNBALANCED: usize = 4;

/// Returns true if a request may run in a DP rank. A request that names no DP rank may run in
/// any.
pub(super) fn allows(request: &RequestState, dp_rank: usize) -> bool {
    let named = request.rest.data_parallel_rank;
    named.is_none_or(|named| named as usize == dp_rank)
}

/// Chooses a DP rank for a waiting request, among open DP ranks that the request may run in.
/// The first criterion is the longest cached prefix, the second the lowest load, the last the
/// lowest number.
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
