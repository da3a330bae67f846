//! Drafts that are verified: acceptance equals the reference's, and texts stay.

use std::collections::BTreeMap;

use lockstep_types::{DraftKv, Dtype, EngineConfig, ModelConfig, SpeculationConfig};
use serde::Deserialize;

use super::support::{Generated, Request, Scheduler, config, repository};
use crate::worker::local::{LocalGroup, LocalOptions};

#[derive(Deserialize)]
struct Goldens {
    prompts: Vec<Golden>,
}

#[derive(Deserialize)]
pub(super) struct Golden {
    pub prompt_ids: Vec<u32>,
    output_ids: Vec<u32>,
    /// Accepted drafts per round, by drafter and depth.
    accepted: BTreeMap<String, Accepted>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Accepted {
    ByDepth(BTreeMap<String, Vec<u32>>),
    Tree(Vec<u32>),
}

pub(super) fn goldens() -> Vec<Golden> {
    let text = std::fs::read_to_string(repository().join("tests/fixtures/goldens.json")).unwrap();
    serde_json::from_str::<Goldens>(&text).unwrap().prompts
}

/// Returns `config` with an algorithm and its draft from the demo family.
pub(super) fn speculating(
    mut config: EngineConfig,
    algorithm: &str,
    shape: [usize; 3],
) -> EngineConfig {
    let [num_steps, topk, num_draft_tokens] = shape;
    let target: &ModelConfig = &config.model;
    let folder = |name: &str| repository().join("models").join(name);
    let (draft, draft_kv) = match algorithm {
        "EAGLE" => (
            lockstep_model_folder::draft::eagle(&folder("lockstep-demo-7m-eagle"), target),
            DraftKv::Pairs,
        ),
        "EAGLE3" => (
            lockstep_model_folder::draft::eagle3(&folder("lockstep-demo-7m-eagle3"), target),
            DraftKv::Pairs,
        ),
        "DFLASH" => (
            lockstep_model_folder::draft::dflash(&folder("lockstep-demo-7m-dflash"), target),
            DraftKv::Tokens,
        ),
        "NEXTN" => (
            lockstep_model_folder::draft::nextn(None, target),
            DraftKv::Pairs,
        ),
        _ => (
            lockstep_model_folder::draft::whole_model(&folder("lockstep-demo-1m-draft"), target),
            DraftKv::Tokens,
        ),
    };
    config.speculation = SpeculationConfig {
        algorithm: Some(algorithm.to_owned()),
        draft: Some(draft.unwrap()),
        draft_kv,
        num_steps,
        topk,
        num_draft_tokens,
        max_speculative_num_draft_tokens: num_draft_tokens,
        ..SpeculationConfig::none()
    };
    // Steps write beyond the text, so there are more pages.
    config.kv.num_pages *= 2;
    config
}

fn requests(goldens: &[Golden]) -> Vec<Request> {
    let greedy = |golden: &Golden| Request::greedy(&golden.prompt_ids, 64);
    goldens.iter().map(greedy).collect()
}

fn run(
    config: &EngineConfig,
    chunk: usize,
    requests: &[Request],
    depths: &[u32],
) -> Vec<Generated> {
    let group = LocalGroup::start(config, &LocalOptions::default()).unwrap();
    let mut step = 0;
    let mut scheduler = Scheduler::new(&group, &mut step, config, chunk, 40);
    if !depths.is_empty() {
        let most = config.speculation.num_steps as u32;
        scheduler.draft_steps = depths.iter().map(|depth| *depth.min(&most)).collect();
    }
    scheduler.run(requests).unwrap()
}

fn check(algorithm: &str, key: &str, tp_size: usize) {
    let goldens = goldens();
    for depth in [1, 3, 7] {
        let plain = config(tp_size, 16, Dtype::Float32);
        let config = speculating(plain, algorithm, [depth, 1, depth + 1]);
        let found = run(&config, 64, &requests(&goldens), &[]);
        for (at, (golden, found)) in goldens.iter().zip(&found).enumerate() {
            assert_eq!(
                found.tokens, golden.output_ids,
                "{algorithm} {depth}, prompt {at}"
            );
            let Accepted::ByDepth(accepted) = &golden.accepted[key] else {
                panic!("{key} has depths");
            };
            let expected = &accepted[&depth.to_string()];
            assert_eq!(
                &found.accepted, expected,
                "{algorithm} {depth}, prompt {at}"
            );
        }
    }
}

#[test]
fn eagle3_accepts_what_the_reference_accepts() {
    check("EAGLE3", "eagle3", 1);
}

#[test]
fn eagle_accepts_what_the_reference_accepts() {
    check("EAGLE", "eagle", 2);
}

#[test]
fn a_standalone_draft_accepts_what_the_reference_accepts() {
    check("STANDALONE", "draft", 2);
}

#[test]
fn eagle3_trees_accept_what_the_reference_accepts() {
    let goldens = goldens();
    let config = speculating(config(2, 16, Dtype::Float32), "EAGLE3", [3, 4, 16]);
    let found = run(&config, 64, &requests(&goldens), &[]);
    for (at, (golden, found)) in goldens.iter().zip(&found).enumerate() {
        assert_eq!(found.tokens, golden.output_ids, "prompt {at}");
        let Accepted::Tree(expected) = &golden.accepted["eagle3_tree_topk4_steps3_total16"] else {
            panic!("a tree has one shape");
        };
        assert_eq!(&found.accepted, expected, "prompt {at}");
    }
}

/// Whatever the depth of each step, tokens and log-probabilities equal those without
/// speculation.
#[test]
fn depths_that_change_leave_texts_alone() {
    let goldens = goldens();
    let mut requests = requests(&goldens);
    for (at, request) in requests.iter_mut().enumerate() {
        request.sampling.temperature = [0.0, 0.7, 1.3][at % 3];
        request.sampling.seed = at as u64;
        request.sampling.frequency_penalty = [0.0, 0.4][at % 2];
    }
    for dtype in [Dtype::Float32, Dtype::Bfloat16] {
        let plain = run(&config(2, 16, dtype), 64, &requests, &[]);
        for (algorithm, shape) in [
            ("EAGLE3", [5, 1, 6]),
            ("EAGLE", [3, 3, 9]),
            ("STANDALONE", [4, 2, 8]),
        ] {
            let config = speculating(config(2, 1, dtype), algorithm, shape);
            let found = run(&config, 17, &requests, &[3, 0, 1, 5, 2, 0, 0, 4]);
            for (at, (plain, found)) in plain.iter().zip(&found).enumerate() {
                assert_eq!(found.tokens, plain.tokens, "{algorithm}, prompt {at}");
                assert_eq!(found.logprobs, plain.logprobs, "{algorithm}, prompt {at}");
            }
        }
    }
}
