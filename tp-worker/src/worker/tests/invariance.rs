//! A request's results do not depend on how it is run.

use lockstep_types::Dtype;
use lockstep_types::{
    sampling::{LogprobParams, SamplingParams},
    step::{PlanPart, SlotExtend, SlotOpen, StepPlan},
};

use super::{
    goldens::goldens,
    support::{Request, Scheduler, config, open},
};
use crate::worker::local::{LocalGroup, LocalOptions};

/// Returns greedy and sampled requests, some with penalties and prompt log-probabilities.
fn mixed() -> Vec<Request> {
    let goldens = goldens();
    let request = |(i, golden): (usize, &super::goldens::Golden)| {
        let mut request = Request::greedy(&golden.prompt_ids, 12);
        request.logprobs = LogprobParams {
            output: true,
            top: 3,
            prompt_start: (i % 3 == 0).then_some(i as u32),
        };
        if i % 2 == 1 {
            request.sampling = SamplingParams {
                temperature: 1.5,
                top_p: 0.95,
                repetition_penalty: 1.1,
                presence_penalty: 0.5,
                seed: i as u64,
                ..request.sampling
            };
        }
        request
    };
    goldens.iter().take(12).enumerate().map(request).collect()
}

#[test]
fn chunked_whole_single_and_batched_are_bit_identical() {
    let requests = mixed();
    for dtype in [Dtype::Float32, Dtype::Bfloat16] {
        let mut expected = None;
        for page_size in [1, 16, 64] {
            let config = config(2, page_size, dtype);
            let group = LocalGroup::start(&config, &LocalOptions::default()).unwrap();
            let mut step = 0;
            for (chunk, batch) in [(usize::MAX, 1), (usize::MAX, 12), (7, 12), (33, 5)] {
                let mut scheduler = Scheduler::new(&group, &mut step, &config, chunk, batch);
                let found = scheduler.run(&requests).unwrap();
                match &expected {
                    None => expected = Some(found),
                    Some(expected) => {
                        let equal = *expected == found;
                        assert!(
                            equal,
                            "{dtype:?}, pages of {page_size}, chunks of {chunk}, {batch} at once"
                        );
                    }
                }
            }
        }
    }
}

fn plan(step: u64, opens: Vec<SlotOpen>, extend: SlotExtend) -> StepPlan {
    StepPlan {
        step,
        parts: vec![PlanPart {
            opens,
            extends: vec![extend],
            ..PlanPart::default()
        }],
        ..StepPlan::default()
    }
}

/// A request with a prefix that another slot left in the cache continues as if nothing had
/// happened. So does a request that was retracted and opened again with its output.
#[test]
fn cached_prefixes_and_reopened_requests_are_bit_identical() {
    let config = config(1, 16, Dtype::Float32);
    let group = LocalGroup::start(&config, &LocalOptions::default()).unwrap();
    let mut request = Request::greedy(&goldens()[1].prompt_ids, 10);
    request.sampling = SamplingParams {
        temperature: 1.2,
        frequency_penalty: 0.3,
        seed: 5,
        ..request.sampling
    };
    let mut step = 0;
    let mut scheduler = Scheduler::new(&group, &mut step, &config, usize::MAX, 1);
    let expected = scheduler
        .run(std::slice::from_ref(&request))
        .unwrap()
        .remove(0);
    assert!(expected.tokens.len() > 5);

    let prompt = request.prompt.len() as u32;
    assert!(prompt > 16);
    let whole = SlotExtend {
        slot: 3,
        prefill_len: prompt,
        sample: true,
        new_pages: vec![7, 5, 2, 4],
        ..SlotExtend::default()
    };
    let first = group
        .step(plan(step + 1, vec![open(3, &request)], whole))
        .unwrap();
    assert_eq!(first.outputs[0][0].token_ids, expected.tokens[..1]);
    // Another slot shares the full first page.
    let shared = SlotOpen {
        cached_len: 16,
        drafted: true,
        ..open(4, &request)
    };
    let extend = SlotExtend {
        slot: 4,
        prefill_len: prompt - 16,
        sample: true,
        new_pages: vec![7, 9, 10],
        ..SlotExtend::default()
    };
    let second = group.step(plan(step + 2, vec![shared], extend)).unwrap();
    assert_eq!(second.outputs[0][0].logprobs, first.outputs[0][0].logprobs);
    // A third slot's request has been retracted after three tokens.
    let mut again = open(5, &request);
    again.token_ids.extend(&expected.tokens[..3]);
    let extend = SlotExtend {
        slot: 5,
        prefill_len: prompt + 3,
        sample: true,
        new_pages: vec![20, 21, 22, 23],
        ..SlotExtend::default()
    };
    let third = group.step(plan(step + 3, vec![again], extend)).unwrap();
    assert_eq!(third.outputs[0][0].token_ids, expected.tokens[3..4]);
    assert_eq!(third.outputs[0][0].logprobs, expected.logprobs[3..4]);
}
