//! Steps whose tokens the device chooses have the results of the host's sampler.

use std::sync::Arc;

use lockstep_collective::Single;
use lockstep_speculation::DrafterRegistry;
use lockstep_types::{
    Dtype, EngineConfig, Verification,
    sampling::{LogprobParams, SamplingParams},
    step::{PlanPart, RankResult, StepPlan},
};

use super::{
    counting::{Counting, Counts},
    speculation::speculating,
    support::{Request, config, cpu, open, row},
};
use crate::worker::{Worker, WorkerOptions};

/// Runs a prompt's step, then one step at each of `depths`, for `requests`. The device chooses
/// tokens if `chooses`. Returns the results, and the device's operations.
fn steps(
    config: &EngineConfig,
    requests: &[Request],
    depths: &[u32],
    chooses: bool,
) -> (Vec<RankResult>, Counts) {
    let counts = Arc::default();
    let backend = Counting {
        device: cpu(config, Box::new(Single::new())),
        counts: Arc::clone(&counts),
        vocab: if chooses { config.model.vocab_size } else { 0 },
        control: None,
    };
    let options = WorkerOptions {
        drafters: &DrafterRegistry::builtin(),
        weight_cache: None,
        progress: &mut |_| {},
    };
    let mut worker = Worker::load(config, 0, backend, options).unwrap();
    counts.lock().unwrap().clear();
    let slots = 0..requests.len() as u32;
    let pages = |slot| (6 * slot + 1..6 * slot + 7).collect::<Vec<_>>();
    let extends = |first: bool| {
        slots
            .clone()
            .zip(requests)
            .map(move |(slot, request)| match first {
                true => row(slot, request.prompt.len() as u32, true, &pages(slot)),
                false => row(slot, 0, true, &[]),
            })
    };
    let opens = slots
        .clone()
        .zip(requests)
        .map(|(slot, request)| open(slot, request));
    let prompts = PlanPart {
        opens: opens.collect(),
        extends: extends(true).collect(),
        ..PlanPart::default()
    };
    let decodes = depths.iter().map(|depth| {
        let extends = extends(false).collect();
        (
            *depth,
            PlanPart {
                extends,
                ..PlanPart::default()
            },
        )
    });
    let plans = std::iter::once((0, prompts)).chain(decodes).zip(1..);
    let results = plans.map(|((draft_steps, part), step)| {
        let plan = StepPlan {
            step,
            draft_steps,
            parts: vec![part],
            ..StepPlan::default()
        };
        worker.step(&plan).unwrap()
    });
    let results = results.collect();
    let counts = counts.lock().unwrap().clone();
    (results, counts)
}

/// Returns requests that are greedy, sampled in several ways, with penalties, and with
/// log-probabilities.
fn requests() -> Vec<Request> {
    let plain = SamplingParams {
        stop_token_ids: vec![2],
        ..SamplingParams::default()
    };
    let ways = [
        SamplingParams::greedy(),
        SamplingParams {
            seed: 4,
            ..plain.clone()
        },
        SamplingParams {
            temperature: 0.8,
            top_k: 30,
            top_p: 0.9,
            min_p: 0.02,
            seed: 5,
            ..plain.clone()
        },
        // The host chooses its first tokens, the device the others.
        SamplingParams {
            min_new_tokens: 3,
            seed: 6,
            ..plain.clone()
        },
        SamplingParams {
            repetition_penalty: 1.3,
            seed: 7,
            ..plain
        },
    ];
    let text = [5, 60, 7, 300, 9, 7, 60, 7];
    let request = |sampling| Request {
        sampling,
        logprobs: LogprobParams::default(),
        ..Request::greedy(&text, 64)
    };
    let mut requests: Vec<Request> = ways.into_iter().map(request).collect();
    requests.push(Request::greedy(&text, 64));
    requests
}

fn same(config: &EngineConfig, requests: &[Request], depths: &[u32]) -> Counts {
    let (wanted, host) = steps(config, requests, depths, false);
    let (found, device) = steps(config, requests, depths, true);
    let brought = |results: &[RankResult]| {
        let each = results.iter();
        let each = each.map(|result| (result.digests, result.outputs.clone()));
        each.collect::<Vec<_>>()
    };
    assert_eq!(brought(&found), brought(&wanted));
    let tokens = wanted.iter().flat_map(|result| &result.outputs);
    let tokens: usize = tokens.map(|output| output.token_ids.len()).sum();
    let drafts = depths.iter().any(|depth| *depth > 0);
    assert!(
        !drafts || tokens > requests.len() * (depths.len() + 1),
        "some are accepted"
    );
    assert!(host.contains_key("gather_to_host") && !host.contains_key("choose"));
    device
}

#[test]
fn tokens_that_the_device_chooses_are_the_samplers() {
    let plain = config(1, 16, Dtype::Float32);
    let all = same(&plain, &requests(), &[0, 0, 0, 0]);
    assert_eq!((all["choose"], all["gather_to_host"]), (5, 5));
    assert_eq!(all["outcomes"], 5);
    // If no request needs the host, the host sees no logits.
    let device = same(&plain, &requests()[..3], &[0, 0]);
    assert_eq!(device["choose"], 3);
    assert!(!device.contains_key("gather_to_host"));
    // If all requests need the host, the device is asked, and chooses nothing.
    let hosts = same(&plain, &requests()[4..], &[0, 0]);
    assert_eq!(hosts["gather_to_host"], 3);
    assert!(!hosts.contains_key("outcomes"));
}

#[test]
fn so_are_those_of_chains_and_trees() {
    for shape in [[3, 1, 4], [3, 2, 6]] {
        let drafting = speculating(config(1, 16, Dtype::Float32), "STANDALONE", shape);
        same(&drafting, &requests(), &[3, 3, 0, 3, 3, 3]);
    }
}

/// Modes that reject drafts by chance sample more than one token per row.
#[test]
fn drafts_that_are_verified_by_ratios_are_the_hosts() {
    for verification in [Verification::Rejection, Verification::Block] {
        let mut drafting = speculating(config(1, 16, Dtype::Float32), "STANDALONE", [3, 1, 4]);
        drafting.speculation.verification = verification;
        same(&drafting, &requests(), &[3, 3, 0, 3]);
    }
}
