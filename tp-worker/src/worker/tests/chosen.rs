//! Steps whose tokens the device chooses have the results of the host's sampler.

use std::sync::Arc;

use lockstep_collective::Single;
use lockstep_speculation::DrafterRegistry;
use lockstep_types::{
    Dtype, EngineConfig, Verification,
    constraint::{Constraint, ConstraintKind},
    sampling::{LogprobParams, SamplingParams},
    step::{PlanPart, RankResult, SlotOutput, StepDigests, StepPlan},
};

use super::{
    counting::{Counting, Counts},
    speculation::speculating,
    support::{Request, config, cpu, open, row},
};
use crate::worker::{MaskPlace, Worker, WorkerOptions};

/// The ways in which tokens are chosen.
#[derive(Clone, Copy)]
enum Chooser {
    Host,
    /// The device, but for constrained requests.
    Device,
    /// The device, by masks where requests are constrained.
    Masks,
}

/// Runs a prompt's step, then one step at each of `depths`, for `requests`, all of which have the
/// constraint. Returns the results, and the device's operations.
fn steps(
    config: &EngineConfig,
    (requests, constraint): (&[Request], Option<&Arc<Constraint>>),
    depths: &[u32],
    chooser: Chooser,
) -> (Vec<RankResult>, Counts) {
    let chooses = !matches!(chooser, Chooser::Host);
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
    if matches!(chooser, Chooser::Masks) {
        worker.set_mask_place(MaskPlace::Device).unwrap();
    }
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
    let opens = slots.clone().zip(requests).map(|(slot, request)| {
        let mut open = open(slot, request);
        open.generation.constraint = constraint.cloned();
        open
    });
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
        let result = worker.step(&plan).unwrap();
        if config.speculation.algorithm.is_some() {
            (0..requests.len()).for_each(|slot| look_ahead(&mut worker, slot));
        }
        result
    });
    let results = results.collect();
    let counts = counts.lock().unwrap().clone();
    (results, counts)
}

/// Waits until a slot's constraint, if it has one, can walk along drafts.
fn look_ahead(worker: &mut Worker<Counting>, slot: usize) {
    while let Some((constraint, _)) = worker.slots.constraint(slot)
        && constraint.ahead().is_none()
    {
        std::thread::yield_now();
    }
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

fn brought(results: &[RankResult]) -> Vec<(StepDigests, Vec<SlotOutput>)> {
    let each = results.iter();
    each.map(|result| (result.digests, result.outputs.clone()))
        .collect()
}

fn same(config: &EngineConfig, requests: &[Request], depths: &[u32]) -> Counts {
    let requests = (requests, None);
    let (wanted, host) = steps(config, requests, depths, Chooser::Host);
    let (found, device) = steps(config, requests, depths, Chooser::Device);
    assert_eq!(brought(&found), brought(&wanted));
    let tokens = wanted.iter().flat_map(|result| &result.outputs);
    let tokens: usize = tokens.map(|output| output.token_ids.len()).sum();
    let drafts = depths.iter().any(|depth| *depth > 0);
    assert!(
        !drafts || tokens > requests.0.len() * (depths.len() + 1),
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

/// With masks on the device the host sees no logits of constrained requests. The results are the
/// host's, with drafts that the constraint forbids, allows and forces.
#[test]
fn devices_choose_from_masked_rows_with_drafts() {
    let plain = config(1, 16, Dtype::Float32);
    let constraint = Constraint::new(
        ConstraintKind::Regex,
        "([a-z]{1,3} (and so on|and so forth)[.] ){2,9}",
    );
    let constraint = Arc::new(constraint);
    for (shape, depths) in [
        (None, vec![0, 0, 0, 0]),
        (Some([3, 1, 4]), vec![3, 3, 0, 3, 3, 1, 3]),
        (Some([3, 2, 6]), vec![3, 3, 0, 3, 3, 1, 3]),
    ] {
        let config = match shape {
            Some(shape) => speculating(plain.clone(), "STANDALONE", shape),
            None => plain.clone(),
        };
        let all = requests();
        let jobs = (&all[..3], Some(&constraint));
        let (wanted, host) = steps(&config, jobs, &depths, Chooser::Device);
        let (found, device) = steps(&config, jobs, &depths, Chooser::Masks);
        assert_eq!(brought(&found), brought(&wanted), "{shape:?}");
        let passes = depths.len() + 1;
        // A drafter that is a model has logits of its own for the host.
        let gathered = device.get("gather_to_host").copied().unwrap_or(0);
        assert_eq!(host["gather_to_host"], passes + gathered);
        assert!(!host.contains_key("mask"));
        assert_eq!((device["mask"], device["choose"]), (passes, passes));
        let cut = |results: &[RankResult]| -> u64 {
            results
                .iter()
                .map(|result| result.constraints.cut_drafts)
                .sum()
        };
        let outputs = wanted.iter().flat_map(|result| &result.outputs);
        let accepted: usize = outputs.map(|output| output.token_ids.len() - 1).sum();
        assert_eq!(accepted > 0, shape.is_some(), "{shape:?}");
        assert_eq!(
            (cut(&found), cut(&found) > 0),
            (cut(&wanted), shape.is_some())
        );
    }
}
