use lockstep_types::step::{SlotOutput, StepDigests};

use super::*;

type Streams = Vec<crate::worker_link::WorkerCommands>;

fn group(size: u32) -> (WorkerGroup, Streams) {
    group_of(size, 1)
}

fn group_of(size: u32, dp_size: usize) -> (WorkerGroup, Streams) {
    let mut group = WorkerGroup::new(&ParallelConfig {
        tp_size: size as usize,
        dp_size,
        ep_size: 1,
        nnodes: 1,
        dist_init_addr: String::new(),
        threads_per_rank: 1,
        tokenizer_managers: 1,
        collectives: Default::default(),
    });
    let mut streams = Vec::new();
    for rank in 0..size {
        let (link, stream) = WorkerLink::new();
        streams.push(stream);
        let hello = WorkerHello {
            rank,
            ..Default::default()
        };
        let all = group.attach(&hello, link).expect("a free rank");
        assert_eq!(all, rank + 1 == size);
    }
    (group, streams)
}

fn result(step: u64, tensor: u64) -> RankResult {
    with_digests(step, tensor, 0)
}

fn with_digests(step: u64, tensor: u64, world: u64) -> RankResult {
    RankResult {
        step,
        digests: StepDigests { tensor, world },
        ..Default::default()
    }
}

fn plan(step: u64) -> StepPlan {
    StepPlan {
        step,
        ..Default::default()
    }
}

#[test]
fn a_step_is_done_when_every_rank_answered() {
    let (mut group, _streams) = group(2);
    group.send(plan(1)).expect("sent");
    group.send(plan(2)).expect("sent");
    let mut take = |rank, result| {
        let answered = group.take_result(rank, result).expect("fine");
        (answered.result.is_some(), answered.everywhere)
    };
    // Rank 0's tokens count; rank 1 only confirms.
    assert_eq!(take(0, result(1, 5)), (true, false));
    assert_eq!(take(0, result(2, 6)), (true, false));
    assert_eq!(take(1, result(1, 5)), (false, true));
    assert_eq!(group.oldest().expect("in flight").1, [1]);
    assert_eq!(group.done_everywhere(), 1);
    let last = group.take_result(1, result(2, 6)).expect("fine");
    assert!(last.everywhere && group.oldest().is_none());
}

/// DP rank 0 has ranks 0 and 1, and DP rank 1 has ranks 2 and 3.
#[test]
fn the_leads_of_all_dp_ranks_bring_a_step() {
    let (mut group, _streams) = group_of(4, 2);
    group.send(plan(1)).expect("sent");
    let lead = |slot, tensor| RankResult {
        outputs: vec![SlotOutput {
            slot,
            ..SlotOutput::default()
        }],
        ..result(1, tensor)
    };
    let mut take = |rank, result| group.take_result(rank, result).expect("fine");
    assert_eq!(take(1, result(1, 5)), Answered::default());
    assert_eq!(take(2, lead(7, 6)), Answered::default());
    let Answered { result: joined, .. } = take(0, lead(8, 5));
    let outputs = joined.expect("both leads have answered").outputs;
    let slots = outputs.iter().map(|part| part[0].slot);
    assert_eq!(slots.collect::<Vec<_>>(), [8, 7]);
    let last = take(3, result(1, 6));
    assert!(last.everywhere && last.result.is_none());
}

#[test]
fn dp_ranks_are_compared_by_what_all_ranks_share() {
    for (rank, other, ranks, which) in [
        (
            1,
            with_digests(1, 6, 7),
            "0 and 1",
            "the ranks of a DP rank",
        ),
        (
            3,
            with_digests(1, 5, 7),
            "2 and 3",
            "the ranks of a DP rank",
        ),
        (3, with_digests(1, 6, 8), "0 and 3", "what all ranks share"),
    ] {
        let (mut group, _streams) = group_of(4, 2);
        group.send(plan(1)).expect("sent");
        group.take_result(0, with_digests(1, 5, 7)).expect("fine");
        group.take_result(2, with_digests(1, 6, 7)).expect("fine");
        let error = group.take_result(rank, other).expect_err("diverged");
        for part in [&format!("ranks {ranks} diverged in step 1"), which] {
            assert!(error.contains(part), "{error}");
        }
    }
}

#[test]
fn rank_0_does_not_run_away_from_a_rank_that_hangs() {
    let (mut group, _streams) = group(2);
    let mut step = 0;
    while group.takes_plans() {
        step += 1;
        group.send(plan(step)).expect("sent");
        group.take_result(0, result(step, 0)).expect("fine");
    }
    assert_eq!(step, MAX_AHEAD as u64);
    group.take_result(1, result(1, 0)).expect("fine");
    assert!(group.takes_plans());
}

#[test]
fn different_digests_are_a_divergence_that_names_both_ranks() {
    for (other, which) in [
        (with_digests(1, 6, 7), "what the ranks of a DP rank share"),
        (with_digests(1, 5, 8), "what all ranks share"),
    ] {
        let (mut group, _streams) = group(2);
        group.send(plan(1)).expect("sent");
        group.take_result(1, with_digests(1, 5, 7)).expect("fine");
        let error = group.take_result(0, other).expect_err("diverged");
        for part in ["ranks 1 and 0 diverged in step 1", which] {
            assert!(error.contains(part), "{error}");
        }
    }
}

#[test]
fn results_come_in_order_and_ranks_attach_once() {
    let (mut group, _streams) = group(1);
    group.send(plan(1)).expect("sent");
    assert!(group.take_result(0, result(2, 0)).is_err());
    let hello = WorkerHello::default();
    assert!(group.attach(&hello, WorkerLink::new().0).is_err());
    let hello = WorkerHello {
        rank: 9,
        ..Default::default()
    };
    assert!(group.attach(&hello, WorkerLink::new().0).is_err());
}
