//! Tests of recovery from a state that admission should not let arise: pages are taken away
//! from the planner.

use lockstep_types::{
    request::{ErrorKind, Request},
    step::{SlotOutput, StepPlan, StepResult},
};

use crate::{Millis, Planner, PlannerConfig, RequestId};

/// Makes a planner with `requests` prompts of 40 tokens, computed in steps of `budget` tokens;
/// the first step is done.
fn under_way(requests: u64, budget: u32) -> Planner {
    under_way_in(1, requests, budget)
}

/// Like [`under_way`], with the requests in the last of `dp_size` DP ranks. Steps overlap if
/// there are several.
fn under_way_in(dp_size: u32, requests: u64, budget: u32) -> Planner {
    let mut planner = Planner::new(PlannerConfig {
        dp_size,
        page_size: 4,
        kv_groups: 2,
        num_pages: 1 + 24,
        chunked_prefill_size: Some(budget),
        overlap: dp_size > 1,
        radix_cache: false,
        ..PlannerConfig::default()
    })
    .unwrap();
    for id in 0..requests {
        let request = Request {
            data_parallel_rank: Some(dp_size - 1),
            ..Request::new(vec![id as u32; 40], 5)
        };
        planner.submit(Millis(0), RequestId(id), request).unwrap();
    }
    let step = planner.plan().unwrap().step;
    let result = StepResult {
        step,
        outputs: vec![Vec::new(); dp_size as usize],
        ..StepResult::default()
    };
    planner.complete(Millis(0), result).unwrap();
    planner
}

fn take_all_pages(planner: &mut Planner, group: usize) -> Vec<u32> {
    let pool = planner.ranks[0].kv.pools().of_group(group);
    std::iter::from_fn(|| pool.alloc()).collect()
}

fn give_back(planner: &mut Planner, group: usize, taken: &[u32]) {
    let pool = planner.ranks[0].kv.pools().of_group(group);
    taken.iter().for_each(|page| pool.release(*page));
}

#[test]
fn the_last_gives_its_pages_to_the_first() {
    let mut planner = under_way(2, 36);
    // The budget admits the second request beside the rest of the first.
    let plan = planner.plan().unwrap();
    assert_eq!(
        (plan.parts[0].opens.len(), plan.parts[0].extends.len()),
        (1, 2)
    );
    let sampled = SlotOutput {
        slot: plan.parts[0].extends[0].slot,
        token_ids: vec![7],
        ..SlotOutput::default()
    };
    let result = StepResult {
        step: plan.step,
        outputs: vec![vec![sampled]],
        ..StepResult::default()
    };
    planner.complete(Millis(0), result).unwrap();
    // The planner sees both requests in the middle of their prompts, and all pages are gone.
    for index in planner.ranks[0].batch.running() {
        let request = &mut planner.requests[index];
        request.prefill_end = request.kv.planned() + 8;
    }
    let taken = take_all_pages(&mut planner, 1);
    let plan = planner.plan().expect("the first goes on");
    assert_eq!(plan.parts[0].extends.len(), 1);
    assert_eq!(plan.parts[0].closes.len(), 1);
    assert_eq!(planner.load().counters.retractions, 1);
    give_back(&mut planner, 1, &taken);
    planner.check_integrity().unwrap();
}

/// The prompts of one DP rank hold all its pages half way, while the other DP rank works.
#[test]
fn a_dp_rank_that_is_stuck_does_not_wait_for_the_others_to_end() {
    let mut planner = under_way_in(2, 2, 36);
    let other = Request {
        data_parallel_rank: Some(0),
        ..Request::new(vec![9; 40], 5)
    };
    planner.submit(Millis(0), RequestId(9), other).unwrap();
    let plan = planner.plan().unwrap();
    let rows = |plan: &StepPlan| [0, 1].map(|at: usize| plan.parts[at].extends.len());
    assert_eq!(rows(&plan), [1, 2]);
    let sampled = SlotOutput {
        slot: plan.parts[1].extends[0].slot,
        token_ids: vec![7],
        ..SlotOutput::default()
    };
    for index in planner.ranks[1].batch.running() {
        let request = &mut planner.requests[index];
        request.prefill_end = request.kv.planned() + 8;
    }
    let pool = planner.ranks[1].kv.pools().of_group(0);
    let taken: Vec<u32> = std::iter::from_fn(|| pool.alloc()).collect();
    // The step in flight may still bring pages back to the DP rank that is stuck.
    let next = planner.plan().expect("the other goes on");
    assert_eq!(rows(&next), [1, 0]);
    let result = StepResult {
        step: plan.step,
        outputs: vec![Vec::new(), vec![sampled]],
        ..StepResult::default()
    };
    planner.complete(Millis(0), result).unwrap();
    let plan = planner.plan().expect("both go on");
    assert_eq!(rows(&plan), [1, 1]);
    assert_eq!(plan.parts[1].closes.len(), 1);
    assert_eq!(planner.load().counters.retractions, 1);
    let pool = planner.ranks[1].kv.pools().of_group(0);
    taken.iter().for_each(|page| pool.release(*page));
    planner.check_integrity().unwrap();
}

/// Every group must have pages: one without any is enough.
#[test]
fn alone_and_without_pages_it_ends_with_an_error() {
    for group in [0, 1] {
        let mut planner = under_way(1, 8);
        let taken = take_all_pages(&mut planner, group);
        assert_eq!(planner.load().leaked_pages, taken.len() as u64);
        assert_eq!(planner.plan(), None);
        let (_, output) = planner.take_outputs().next().expect("it ended");
        let error = output.finish.unwrap().outcome.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal);
        give_back(&mut planner, group, &taken);
        planner.check_integrity().unwrap();
        assert!(planner.is_idle());
    }
}
