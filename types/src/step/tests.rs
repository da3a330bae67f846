use super::*;

#[test]
fn either_digest_tells_ranks_apart_and_is_named() {
    let ours = StepDigests {
        tensor: 5,
        world: 7,
    };
    assert_eq!(ours.difference(ours, true), None);
    let tensor = StepDigests { tensor: 6, ..ours };
    let world = StepDigests { world: 8, ..ours };
    for (other, text) in [
        (
            tensor,
            "what the ranks of a DP rank share are 0000000000000005 and 0000000000000006",
        ),
        (
            world,
            "what all ranks share are 0000000000000007 and 0000000000000008",
        ),
    ] {
        let difference = ours.difference(other, true).map(|d| d.to_string());
        assert_eq!(difference, Some(format!("the digests of {text}")));
    }
    // Other DP ranks have other requests.
    assert_eq!(ours.difference(tensor, false), None);
    assert!(ours.difference(world, false).is_some());
}

#[test]
fn what_a_device_drafted_is_no_part_of_the_pass() {
    let seen = StageTimes {
        draft_us: 5,
        verify_us: 100,
        extend_us: 7,
    };
    for (drafted, draft_us, verify_us) in [(0, 5, 100), (30, 35, 70), (100, 105, 0), (900, 105, 0)]
    {
        let mut told = seen;
        told.count_as_drafting(drafted);
        let expected = StageTimes {
            draft_us,
            verify_us,
            ..seen
        };
        assert_eq!(told, expected);
    }
}

/// All DP ranks wait for the slowest one, wherever it stands. The time of each stage is the
/// longest over the DP ranks.
#[test]
fn a_result_is_as_late_as_its_slowest_lead() {
    let times = |draft_us, verify_us, extend_us| StageTimes {
        draft_us,
        verify_us,
        extend_us,
    };
    let lead = |slot: u32, forward_us: u64, stages: StageTimes| RankResult {
        step: 7,
        outputs: vec![SlotOutput {
            slot,
            ..SlotOutput::default()
        }],
        forward_us,
        stages,
        agreed_depth: Some(3),
        expected_us: 11,
        ..RankResult::default()
    };
    let leads = [
        lead(4, 20, times(9, 10, 1)),
        lead(2, 50, times(5, 40, 2)),
        lead(6, 30, times(1, 20, 8)),
    ];
    for first in 0..leads.len() {
        let mut leads = leads.clone();
        leads.rotate_left(first);
        let joined = StepResult::join(leads.clone());
        let outputs = leads.into_iter().map(|lead| lead.outputs).collect();
        let expected = StepResult {
            step: 7,
            outputs,
            forward_us: 50,
            stages: times(9, 40, 8),
            agreed_depth: Some(3),
            expected_us: 11,
        };
        assert_eq!(joined, expected);
    }
}

#[test]
fn the_bounds_of_a_part_hold_for_all_dp_ranks() {
    let row = |slot, prefill_len| SlotExtend {
        slot,
        prefill_len,
        sample: true,
        new_pages: vec![slot + 7],
        keeps: vec![StateKeep {
            position: 16,
            state: slot,
        }],
    };
    let busy = PlanPart {
        closes: vec![3],
        extends: vec![row(0, 0), row(1, 9), row(2, 0)],
        ..PlanPart::default()
    };
    let most = busy.bounds(4);
    let expected = PartBounds {
        requests: 3,
        tokens: 5 + 9 + 5,
        longest: 9,
    };
    assert_eq!(most, expected);
    assert_eq!(busy.bounds(11).longest, 12);
    assert_eq!(PlanPart::default().bounds(4), PartBounds::default());
    for larger in [
        PartBounds {
            requests: 4,
            ..most
        },
        PartBounds { tokens: 20, ..most },
        PartBounds {
            longest: 10,
            ..most
        },
    ] {
        assert!(!most.hold(larger) && larger.hold(most));
    }
    // If all rows decode, the plan alone tells the largest part.
    let decoding = |rows: u32| PlanPart {
        extends: (0..rows).map(|slot| row(slot, 0)).collect(),
        ..PlanPart::default()
    };
    let decodes = |parts: &[PlanPart]| {
        let parts = parts.to_vec();
        let plan = StepPlan {
            parts,
            ..StepPlan::default()
        };
        plan.decodes(2)
    };
    let largest = PartBounds {
        requests: 3,
        tokens: 9,
        longest: 3,
    };
    let idle = PlanPart::default();
    assert_eq!(
        decodes(&[idle.clone(), decoding(3), decoding(1)]),
        Some(largest)
    );
    assert_eq!(decodes(&[decoding(1), busy.clone()]), None);
    assert_eq!(decodes(&[idle.clone(), idle]), None);
    let mut silent = decoding(1);
    silent.extends[0].sample = false;
    assert_eq!(decodes(&[silent]), None);
    // Other DP ranks learn the sizes and nothing else.
    let plan = StepPlan {
        step: 5,
        draft_steps: 4,
        parts: vec![busy.clone(), PlanPart::default(), busy.clone()],
        ..StepPlan::default()
    };
    let told = plan.for_dp_rank(2);
    assert_eq!((told.step, told.draft_steps), (5, 4));
    assert_eq!(told.parts[1..], plan.parts[1..]);
    let part = &told.parts[0];
    assert_eq!(part.bounds(4), most);
    assert!(part.closes.is_empty());
    let is_bare = |row: &SlotExtend| row.new_pages.is_empty() && row.keeps.is_empty();
    assert!(part.extends.iter().all(is_bare));
}

#[test]
fn the_parts_of_a_result_stand_in_order_and_the_slowest_counts() {
    let lead = |slot, forward_us, draft_us, verify_us| RankResult {
        step: 5,
        outputs: vec![SlotOutput {
            slot,
            ..SlotOutput::default()
        }],
        forward_us,
        stages: StageTimes {
            draft_us,
            verify_us,
            extend_us: 1,
        },
        agreed_depth: Some(2),
        expected_us: 9,
        ..RankResult::default()
    };
    let joined = StepResult::join([lead(7, 30, 10, 20), lead(8, 35, 5, 30)]);
    let slots = joined.outputs.iter().map(|part| part[0].slot);
    assert_eq!(slots.collect::<Vec<_>>(), [7, 8]);
    assert_eq!((joined.step, joined.forward_us), (5, 35));
    let stages = joined.stages;
    assert_eq!(
        (stages.draft_us, stages.verify_us, stages.extend_us),
        (10, 30, 1)
    );
    assert_eq!((joined.agreed_depth, joined.expected_us), (Some(2), 9));
}
