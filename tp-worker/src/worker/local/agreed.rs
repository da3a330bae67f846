//! Joining the results of a group's ranks.

use lockstep_types::step::{RankResult, StepResult};

use crate::worker::WorkerError;

/// Joins the results of the leads of all DP ranks. Every rank must have the digests of its
/// lead, and every lead the digest that all ranks share.
pub(super) fn agreed(
    results: Vec<RankResult>,
    attn_tp_size: usize,
) -> Result<StepResult, WorkerError> {
    for (rank, result) in results.iter().enumerate() {
        let lead = rank - rank % attn_tp_size;
        for (peer, same_dp_rank) in [(0, lead == 0), (lead, true)] {
            let ours = results[peer].digests;
            if let Some(difference) = ours.difference(result.digests, same_dp_rank) {
                return Err(WorkerError::Diverged {
                    step: result.step,
                    ranks: (peer, rank),
                    difference,
                });
            }
        }
    }
    Ok(StepResult::join(results.into_iter().step_by(attn_tp_size)))
}

#[cfg(test)]
mod tests {
    use lockstep_types::step::StepDigests;

    use super::*;

    #[test]
    fn ranks_that_differ_in_a_digest_that_they_share_are_named() {
        let result = |tensor, world| RankResult {
            step: 3,
            digests: StepDigests { tensor, world },
            ..RankResult::default()
        };
        assert!(agreed(vec![result(1, 2), result(1, 2)], 2).is_ok());
        let joined = agreed(vec![result(1, 2), result(3, 2)], 1).unwrap();
        assert_eq!(joined.outputs.len(), 2, "a part for each DP rank");
        for (others, attn_tp_size, ranks, which) in [
            (
                [(1, 2), (1, 2), (4, 2)],
                4,
                "0 and 3",
                "the ranks of a DP rank",
            ),
            ([(1, 2), (1, 4), (1, 2)], 4, "0 and 2", "all ranks"),
            // DP ranks of two ranks each.
            (
                [(1, 2), (3, 2), (4, 2)],
                2,
                "2 and 3",
                "the ranks of a DP rank",
            ),
            ([(1, 2), (3, 5), (3, 5)], 2, "0 and 2", "all ranks"),
        ] {
            let others = others.map(|(tensor, world)| result(tensor, world));
            let all = [result(1, 2)].into_iter().chain(others).collect();
            let error = agreed(all, attn_tp_size).unwrap_err();
            let text = error.to_string();
            for part in [&format!("ranks {ranks} diverged in step 3"), which] {
                assert!(text.contains(part), "{text}");
            }
        }
    }
}
