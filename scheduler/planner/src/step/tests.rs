//! The way out of a state that admission should not let arise: pages are
//! taken away under the planner's hands.

use lockstep_types::{
    request::{ErrorKind, Request},
    sampling::{LogprobParams, SamplingParams},
    step::StepResult,
};

use crate::{Millis, Planner, PlannerConfig, RequestId};

/// Prompts of 40 tokens; 8 of the first are in.
fn under_way(requests: u64) -> Planner {
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
            max_draft_steps: None,
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
    let mut planner = under_way(2);
    // A wider budget lets the second in beside the rest of the first.
    planner.config.chunked_prefill_size = Some(36);
    let plan = planner.plan().unwrap();
    assert_eq!((plan.opens.len(), plan.extends.len()), (1, 2));
    // Both stand in the middle of their prompts, as far as the planner knows,
    // and all pages are gone.
    planner.flight.reset();
    for index in planner.running.clone() {
        let entry = &mut planner.table[index];
        (entry.rows_in_flight, entry.samples_in_flight) = (0, 0);
        entry.committed = entry.planned;
        entry.prefill_end = entry.planned + 8;
    }
    let taken: Vec<u32> = std::iter::from_fn(|| planner.kv.pool.alloc()).collect();
    let plan = planner.plan().expect("the first goes on");
    assert_eq!(plan.extends.len(), 1);
    assert_eq!(plan.closes.len(), 1);
    assert_eq!(planner.load().counters.retractions, 1);
    taken.iter().for_each(|page| planner.kv.pool.release(*page));
    planner.check_integrity().unwrap();
}

#[test]
fn alone_and_without_pages_it_ends_with_an_error() {
    let mut planner = under_way(1);
    let taken: Vec<u32> = std::iter::from_fn(|| planner.kv.pool.alloc()).collect();
    assert_eq!(planner.plan(), None);
    let (_, output) = planner.take_outputs().next().expect("it ended");
    let error = output.finish.unwrap().outcome.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Internal);
    taken.iter().for_each(|page| planner.kv.pool.release(*page));
    planner.check_integrity().unwrap();
    assert!(planner.is_idle());
}
