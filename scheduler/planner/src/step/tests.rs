//! The way out of a state that admission should not let arise: pages are
//! taken away under the planner's hands.

use lockstep_proto::{
    request::{ErrorKind, Request},
    sampling::{LogprobParams, SamplingParams},
    step::StepResult,
};

use crate::{Millis, Planner, PlannerConfig, RequestId};

/// Two prompts under way, 8 of 40 tokens each in, and no page left.
fn stuck(requests: u64) -> Planner {
    let mut planner = Planner::new(PlannerConfig {
        page_size: 4,
        num_pages: 1 + 24,
        chunked_prefill_size: Some(8),
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
        };
        planner.submit(Millis(0), RequestId(id), request).unwrap();
    }
    let step = planner.plan().unwrap().step;
    let result = StepResult {
        step,
        ..StepResult::default()
    };
    planner.complete(Millis(0), result).unwrap();
    planner
}

#[test]
fn the_last_gives_its_pages_to_the_first() {
    let mut planner = stuck(2);
    let mut taken = Vec::new();
    let plan = planner.plan().unwrap();
    assert_eq!(plan.extends.len(), 1, "the budget is one chunk");
    let result = StepResult {
        step: plan.step,
        ..StepResult::default()
    };
    planner.complete(Millis(0), result).unwrap();
    // The second prompt starts once the first is nearly in; give it a slot now.
    planner.config.chunked_prefill_size = Some(32);
    let plan = planner.plan().unwrap();
    assert_eq!(plan.opens.len(), 1);
    planner.config.chunked_prefill_size = Some(8);
    planner.flight.reset();
    for index in planner.running.clone() {
        let entry = &mut planner.table[index];
        (entry.rows_in_flight, entry.samples_in_flight) = (0, 0);
        entry.prefill_end = entry.planned + 8;
        entry.committed = entry.planned;
    }
    while let Some(page) = planner.kv.pool.alloc() {
        taken.push(page);
    }
    let plan = planner.plan().expect("the first goes on");
    assert_eq!(plan.extends.len(), 1);
    assert_eq!(plan.closes.len(), 1);
    assert_eq!(planner.load().counters.retractions, 1);
    taken.iter().for_each(|page| planner.kv.pool.release(*page));
    planner.check_integrity().unwrap();
}

#[test]
fn alone_and_without_pages_it_ends_with_an_error() {
    let mut planner = stuck(1);
    let taken: Vec<u32> = std::iter::from_fn(|| planner.kv.pool.alloc()).collect();
    assert_eq!(planner.plan(), None);
    let (_, output) = planner.take_outputs().next().expect("it ended");
    let error = output.finish.unwrap().outcome.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Internal);
    taken.iter().for_each(|page| planner.kv.pool.release(*page));
    planner.check_integrity().unwrap();
    assert!(planner.is_idle());
}
