//! The way out of a state that admission should not let arise: pages are
//! taken away under the planner's hands.

use lockstep_types::{
    request::{ErrorKind, Request},
    sampling::{LogprobParams, SamplingParams},
    step::{SlotOutput, StepResult},
};

use crate::{Millis, Planner, PlannerConfig, RequestId};

/// Prompts of 40 tokens, in steps of `budget`; the first step is done.
fn under_way(requests: u64, budget: u32) -> Planner {
    let mut planner = Planner::new(PlannerConfig {
        page_size: 4,
        num_pages: 1 + 24,
        chunked_prefill_size: Some(budget),
        overlap: false,
        radix_cache: false,
        ..PlannerConfig::default()
    })
    .unwrap();
    for id in 0..requests {
        let request = Request {
            trace_id: String::new(),
            input_ids: vec![id as u32; 40],
            sampling: SamplingParams::default(),
            logprobs: LogprobParams::default(),
            max_new_tokens: 5,
            priority: 0,
            timeout_ms: None,
            max_draft_steps: None,
        };
        planner.submit(Millis(0), RequestId(id), request).unwrap();
    }
    let step = planner.plan().unwrap().step;
    let result = StepResult {
        step,
        outputs: vec![Vec::new()],
        ..StepResult::default()
    };
    planner.complete(Millis(0), result).unwrap();
    planner
}

fn take_all_pages(planner: &mut Planner) -> Vec<u32> {
    let pool = planner.kv.pool();
    std::iter::from_fn(|| pool.alloc()).collect()
}

fn give_back(planner: &mut Planner, taken: &[u32]) {
    let pool = planner.kv.pool();
    taken.iter().for_each(|page| pool.release(*page));
}

#[test]
fn the_last_gives_its_pages_to_the_first() {
    let mut planner = under_way(2, 36);
    // The budget lets the second in beside the rest of the first.
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
    // Both stand in the middle of their prompts, as far as the planner knows,
    // and all pages are gone.
    for index in planner.batch.running() {
        let request = &mut planner.requests[index];
        request.prefill_end = request.kv.planned() + 8;
    }
    let taken = take_all_pages(&mut planner);
    let plan = planner.plan().expect("the first goes on");
    assert_eq!(plan.parts[0].extends.len(), 1);
    assert_eq!(plan.parts[0].closes.len(), 1);
    assert_eq!(planner.load().counters.retractions, 1);
    give_back(&mut planner, &taken);
    planner.check_integrity().unwrap();
}

#[test]
fn alone_and_without_pages_it_ends_with_an_error() {
    let mut planner = under_way(1, 8);
    let taken = take_all_pages(&mut planner);
    assert_eq!(planner.load().leaked_pages, taken.len() as u64);
    assert_eq!(planner.plan(), None);
    let (_, output) = planner.take_outputs().next().expect("it ended");
    let error = output.finish.unwrap().outcome.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Internal);
    give_back(&mut planner, &taken);
    planner.check_integrity().unwrap();
    assert!(planner.is_idle());
}
