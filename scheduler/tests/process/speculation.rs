//! Tests of speculation as a frontend sees it: the same texts, and the counts of speculation.

use std::sync::Arc;

use lockstep_planner::sim::{SimModel, run_alone};
use lockstep_types::{Algorithm, Algorithms, Capabilities, DraftKv};

use crate::fixture::{Scheduler, args, request};

/// Algorithm that drafts pairs, for simulated workers.
#[derive(Debug)]
struct Pairs;

impl Algorithm for Pairs {
    fn name(&self) -> &str {
        "PAIRS"
    }

    fn summary(&self) -> &str {
        "the simulated worker's own drafts"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            draft_kv: DraftKv::Pairs,
            supports_tree: true,
            carries_hidden_states: true,
            adaptive: true,
            ..Capabilities::default()
        }
    }
}

#[tokio::test]
async fn texts_stay_and_counts_add_up() {
    let mut algorithms = Algorithms::default();
    algorithms.add(Arc::new(Pairs));
    let mut args = args(1);
    args.speculation.speculative_algorithm = Some("PAIRS".to_owned());
    args.speculation.speculative_num_steps = Some(3);
    args.speculation.speculative_eagle_topk = Some(2);
    args.speculation.speculative_num_draft_tokens = Some(6);
    let (scheduler, mut frontend) = Scheduler::start_with(&args, &algorithms).attached().await;
    let mut requests: Vec<_> = (0..12u32)
        .map(|n| request(&vec![n % 3; 10 + n as usize * 5], 20 + n))
        .collect();
    requests[4].generation.max_draft_steps = Some(0);
    requests[5].generation.max_draft_steps = Some(1);
    for (number, request) in (0..).zip(&requests) {
        frontend.submit(number, request.clone()).await;
    }
    let outputs = frontend.finish(requests.len()).await;
    let model = SimModel {
        vocab_size: scheduler.engine.model.vocab_size as u32,
    };
    let context = scheduler.engine.server.context_length as u32;
    let (mut proposed, mut accepted) = (vec![0; 3], vec![0; 3]);
    for (number, request) in (0..).zip(&requests) {
        let output = &outputs[&number];
        let alone = run_alone(model, context, request);
        assert_eq!(output.token_ids, alone.token_ids, "request {number}");
        let finish = output.finish.as_ref().expect("ended");
        let told = finish.speculation.as_ref();
        assert_eq!(told.is_some(), number != 4, "request {number}");
        let Some(told) = told else { continue };
        let steps = request.generation.max_draft_steps.unwrap_or(3) as usize;
        assert!(told.proposed.len() <= steps, "request {number}");
        for (sums, list) in [
            (&mut proposed, &told.proposed),
            (&mut accepted, &told.accepted),
        ] {
            for (sum, count) in sums.iter_mut().zip(list) {
                *sum += u64::from(*count);
            }
        }
    }
    let load = frontend.load().await;
    assert_eq!((load.kv_tokens_used, load.leaked_pages), (0, 0));
    let counted = load.speculation.expect("it speculates");
    assert_eq!((counted.proposed, counted.accepted), (proposed, accepted));
}

#[tokio::test]
async fn without_speculation_nothing_is_counted() {
    let (_scheduler, mut frontend) = Scheduler::serving(&args(1)).await;
    frontend.submit(1, request(&[1, 2, 3], 4)).await;
    let outputs = frontend.finish(1).await;
    let finish = outputs[&1].finish.as_ref().expect("ended");
    assert_eq!(finish.speculation, None);
    assert_eq!(frontend.load().await.speculation, None);
}
