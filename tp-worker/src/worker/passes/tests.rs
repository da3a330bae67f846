use lockstep_model::CollectiveStep;

use super::*;

fn limits(requests: usize, tokens: usize) -> StepLimits {
    StepLimits {
        requests,
        tokens,
        positions: 500,
        verified: 1,
        max_commit: 1,
        draft_nodes: 1,
        branches: false,
    }
}

fn schedule(width: usize) -> Schedule {
    let step = CollectiveStep {
        kind: CollectiveKind::AllReduce,
        axis: Axis::World,
        rows: CountedRows::DpRank,
        width,
    };
    Schedule {
        tokens: vec![step; 3],
        logit_tokens: vec![step; 2],
        block: vec![],
        block_rows: 4,
    }
}

/// Sizes that are the largest of several DP ranks' batches have a pass too.
#[test]
fn the_batches_of_all_dp_ranks_have_a_pass() {
    let registry = PassRegistry::prepare(&limits(5, 24), &schedule(8), 2);
    let batches = || {
        (1..=5).flat_map(|requests| {
            let lengths = move |max_q_len| {
                let least = max_q_len + requests - 1;
                (least..=requests * max_q_len).map(move |tokens| (requests, tokens, max_q_len))
            };
            (1..=24).flat_map(lengths)
        })
    };
    let batches: Vec<_> = batches().filter(|(_, tokens, _)| *tokens <= 24).collect();
    for (at, one) in batches.iter().enumerate() {
        for other in &batches[at..] {
            let key = PassKey {
                requests: one.0.max(other.0),
                tokens: one.1.max(other.1),
                max_q_len: one.2.max(other.2),
            };
            assert!(registry.find(key).is_ok(), "{one:?} and {other:?}");
        }
    }
}

/// Ranks that would run other collectives have other digests.
#[test]
fn digests_tell_axes_and_rows_apart() {
    let of = |change: fn(&mut CollectiveStep)| {
        let mut schedule = schedule(8);
        change(&mut schedule.tokens[0]);
        let registry = PassRegistry::prepare(&limits(2, 8), &schedule, 2);
        registry.digest(&[]).unwrap()
    };
    let plain = of(|_| {});
    assert_ne!(plain, of(|step| step.axis = Axis::Attention));
    assert_ne!(plain, of(|step| step.rows = CountedRows::World));
    assert_ne!(plain, of(|step| step.kind = CollectiveKind::ReduceScatter));
}

/// Every batch within the limits has a pass that covers it.
#[test]
fn every_batch_has_a_pass() {
    let registry = PassRegistry::prepare(&limits(7, 300), &schedule(8), 1);
    for requests in 1..=7 {
        for max_q_len in 1..=300 {
            for others in 0..requests {
                // `others` rows are as long as the longest; the rest have one token.
                let tokens = max_q_len * (1 + others) + requests - 1 - others;
                let batch = PassKey {
                    requests,
                    tokens,
                    max_q_len,
                };
                let found = registry.find(batch);
                assert_eq!(found.is_ok(), tokens <= 300, "{batch}");
            }
        }
    }
    let idle = PassKey {
        requests: 0,
        tokens: 0,
        max_q_len: 0,
    };
    assert!(registry.find(idle).is_ok());
    let many = PassKey {
        requests: 8,
        tokens: 8,
        max_q_len: 1,
    };
    assert_eq!(registry.find(many), Err(PlanError::NoPass(many)));
}

#[test]
fn digests_tell_models_and_limits_apart() {
    let base = PassRegistry::prepare(&limits(7, 300), &schedule(8), 1);
    assert_eq!(
        base.digest(&[]).unwrap(),
        PassRegistry::prepare(&limits(7, 300), &schedule(8), 1)
            .digest(&[])
            .unwrap()
    );
    assert_ne!(
        base.digest(&[]).unwrap(),
        PassRegistry::prepare(&limits(7, 300), &schedule(9), 1)
            .digest(&[])
            .unwrap()
    );
    assert_ne!(
        base.digest(&[]).unwrap(),
        PassRegistry::prepare(&limits(8, 300), &schedule(8), 1)
            .digest(&[])
            .unwrap()
    );
    let digests: std::collections::BTreeSet<_> = base.passes.values().map(|p| p.digest).collect();
    assert_eq!(digests.len(), base.len());

    let tiers = |tokens: u32| {
        let depth = tokens - 1;
        base.digest(&[Tier { depth, tokens }])
    };
    // 7 rows of 42 tokens are 294 of 300.
    assert_ne!(tiers(42).unwrap(), tiers(41).unwrap());
    let error = tiers(43).unwrap_err().to_string();
    assert!(
        error.contains("depth 42") && error.contains("301 tokens"),
        "{error}"
    );
}
