//! A request whose logits are not numbers fails alone.

use lockstep_planner::{
    Millis, Planner, PlannerConfig, RequestId,
    sim::{SimGroup, SimModel},
};
use lockstep_types::{
    request::{ErrorKind, FinishReason, Request},
    sampling::SamplingParams,
};

fn request(token: u32) -> Request {
    let endless = SamplingParams {
        ignore_eos: true,
        ..SamplingParams::default()
    };
    Request {
        generation: endless.into(),
        ..Request::new(vec![token; 40], 12)
    }
}

#[test]
fn a_row_without_a_token_ends_its_request_and_no_other() {
    let config = PlannerConfig {
        page_size: 4,
        num_pages: 200,
        ..PlannerConfig::default()
    };
    let mut planner = Planner::new(config.clone()).expect("a valid configuration");
    let mut worker = SimGroup::new(&config, SimModel { vocab_size: 100 }, true);
    for id in 0..3 {
        planner
            .submit(Millis(0), RequestId(id), request(id as u32))
            .expect("accepted");
    }
    let mut results = std::collections::VecDeque::new();
    let mut ends = Vec::new();
    let mut poisoned = None;
    loop {
        while let Some(plan) = planner.plan() {
            let mut result = worker.execute(&plan).expect("a sound plan");
            // Request 1 is the second to be opened; from its third token on
            // its slot brings none, as a worker that met a NaN answers.
            if let [_, open, ..] = plan.parts[0].opens.as_slice() {
                poisoned = Some(open.slot);
            }
            if plan.step > 3 {
                for output in &mut result.outputs[0] {
                    if Some(output.slot) == poisoned {
                        output.token_ids.clear();
                    }
                }
            }
            results.push_back(result);
        }
        let Some(result) = results.pop_front() else {
            break;
        };
        planner
            .complete(Millis(0), result)
            .expect("the engine goes on");
        ends.extend(
            planner
                .take_outputs()
                .filter_map(|(id, output)| Some((id, output.finish?))),
        );
    }
    assert_eq!(ends.len(), 3);
    for (id, finish) in ends {
        match finish.outcome {
            Err(error) => assert_eq!((id, error.kind), (RequestId(1), ErrorKind::Internal)),
            Ok(reason) => {
                assert_ne!(id, RequestId(1));
                assert_eq!(
                    (reason, finish.usage.completion_tokens),
                    (FinishReason::Length, 12)
                );
            }
        }
    }
    planner.check_integrity().expect("balanced books");
    assert_eq!(planner.load().counters.failed, 1);
    assert_eq!(planner.load().kv_tokens_used, 0);
}
