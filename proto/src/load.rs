//! Waiting requests, as reported for one DP rank.

use lockstep_types::share_of_dp_rank;

use crate::pb::lockstep::{DpRankLoad, GetLoadResponse};

/// Requests that wait for one DP rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Number of requests.
    pub requests: u64,
    /// Tokens of the requests.
    pub tokens: u64,
    /// Number of the requests that had begun.
    pub retracted: u64,
}

impl GetLoadResponse {
    /// Returns the requests that wait for DP rank `at` alone, and its share of those that may
    /// begin in any DP rank. The sums over all DP ranks are the server's figures.
    pub fn waiting_at(&self, at: usize) -> Waiting {
        let part = |all: u64, of: fn(&DpRankLoad) -> u64| {
            let bound: u64 = self.dp_ranks.iter().map(of).sum();
            let own = self.dp_ranks.get(at).map_or(0, of);
            own + share_of_dp_rank(all.saturating_sub(bound), at, self.dp_ranks.len())
        };
        Waiting {
            requests: part(self.waiting_requests.into(), |rank| {
                rank.waiting_requests.into()
            }),
            tokens: part(self.waiting_tokens, |rank| rank.waiting_tokens),
            retracted: part(self.retracted_requests.into(), |rank| {
                rank.retracted_requests.into()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_bound_is_told_where_it_is_and_the_rest_in_equal_parts() {
        let rank = |waiting_requests, waiting_tokens, retracted_requests| DpRankLoad {
            waiting_requests,
            waiting_tokens,
            retracted_requests,
            ..DpRankLoad::default()
        };
        let load = GetLoadResponse {
            waiting_requests: 9,
            waiting_tokens: 100,
            retracted_requests: 2,
            dp_ranks: vec![rank(0, 0, 0), rank(6, 70, 2)],
            ..GetLoadResponse::default()
        };
        let waiting = |requests, tokens, retracted| Waiting {
            requests,
            tokens,
            retracted,
        };
        assert_eq!(load.waiting_at(0), waiting(2, 15, 0));
        assert_eq!(load.waiting_at(1), waiting(7, 85, 2));
    }
}
