use super::StepLimits;
use crate::{ScheduleConfig, SchedulePolicy, SpeculationConfig};

fn schedule(max_prefill_tokens: usize, chunked_prefill_size: Option<usize>) -> ScheduleConfig {
    ScheduleConfig {
        max_running_requests: 64,
        max_queued_requests: 1,
        max_queued_tokens: 1,
        max_prefill_tokens,
        chunked_prefill_size,
        policy: SchedulePolicy::Fcfs,
        priorities: false,
        overlap: true,
    }
}

#[test]
fn prompts_of_a_step() {
    // (--max-prefill-tokens, --chunked-prefill-size, context, tokens)
    for (most, chunk, context, tokens) in [
        (1024, Some(512), 4096, 512),
        (512, Some(512), 4096, 512),
        (256, Some(512), 4096, 256),
        (16_384, None, 4096, 16_384),
        (1024, None, 4096, 4096),
        (4096, None, 4096, 4096),
    ] {
        let found = StepLimits::prefill_tokens(most, chunk, context);
        assert_eq!(found, tokens, "{most} {chunk:?} {context}");
    }
}

#[test]
fn tokens_of_a_step_and_of_its_drafts() {
    let limits = |speculation: &SpeculationConfig| {
        StepLimits::new(&schedule(1024, Some(512)), speculation, 1000)
    };
    let plain = StepLimits {
        requests: 64,
        tokens: 512 + 64,
        positions: 1004,
        verified: 1,
        max_commit: 1,
        draft_nodes: 1,
        branches: false,
    };
    assert_eq!(limits(&SpeculationConfig::none()), plain);
    assert_eq!(plain.draft_tokens(), 576 + 128);
    let mut tree = SpeculationConfig {
        algorithm: Some("EAGLE".into()),
        num_steps: 3,
        topk: 4,
        num_draft_tokens: 8,
        max_speculative_num_draft_tokens: 8,
        ..SpeculationConfig::none()
    };
    let drafting = StepLimits {
        requests: 64,
        tokens: 512 + 64 * 8,
        // A step writes 3 levels of 4, and the unseen step has committed 4.
        positions: 1000 + 12 + 4,
        verified: 8,
        max_commit: 4,
        draft_nodes: 13,
        branches: true,
    };
    assert_eq!(limits(&tree), drafting);
    assert_eq!(drafting.draft_tokens(), 1024 + 128);
    (tree.num_steps, tree.topk) = (8, 16);
    assert_eq!(limits(&tree).draft_tokens(), 64 * 129, "nodes of all trees");
    tree.topk = 1;
    assert!(!limits(&tree).branches, "a chain");
}

#[test]
fn what_belongs_to_no_dp_rank_is_told_in_equal_parts() {
    for (all, dp_size, expected) in [
        (5, 1, &[5][..]),
        (5, 2, &[3, 2]),
        (0, 2, &[0, 0]),
        (7, 4, &[2, 2, 2, 1]),
        (1, 3, &[1, 0, 0]),
    ] {
        let parts = (0..dp_size).map(|at| crate::share_of_dp_rank(all, at, dp_size));
        assert_eq!(parts.collect::<Vec<_>>(), expected, "{all} {dp_size}");
    }
}

#[test]
fn a_dp_rank_has_its_share_of_requests_and_of_a_chunk() {
    for (dp_size, requests, chunk) in [
        (1, 64, 512),
        (2, 32, 256),
        (3, 21, 170),
        (64, 1, 8),
        (100, 1, 5),
        (1000, 1, 1),
    ] {
        let all = schedule(1024, Some(512));
        let own = all.of_dp_rank(dp_size);
        assert_eq!(own.max_running_requests, requests, "{dp_size}");
        assert_eq!(own.chunked_prefill_size, Some(chunk), "{dp_size}");
        let rest = ScheduleConfig {
            max_running_requests: 64,
            chunked_prefill_size: Some(512),
            ..own
        };
        assert_eq!(rest, all, "all else is for each of them");
        let whole = schedule(1024, None).of_dp_rank(dp_size);
        assert_eq!(whole.chunked_prefill_size, None);
    }
}
