//! Drafts by a model's own layers change no bit: with experts, with latent attention, beside
//! recurrent layers, and of several layers in turn.

use serde::Deserialize;

use lockstep_local_engine::Completion;
use lockstep_types::{Dtype, request::Request, sampling::SamplingParams};

use crate::{
    goldens::{self, Hybrid},
    same::assert_same_output,
    setup::{Setup, cached, reported, request, root, together},
};

const MODELS: [&str; 6] = [
    "glm4_moe",
    "deepseek_v3",
    "glm4_moe_lite",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
];
/// Models with three draft layers, and with two.
const IN_TURN: [(&str, usize); 2] = [("glm4_moe_three", 3), ("deepseek_v3_two", 2)];
/// Tokens of the longest prompt.
const PROMPT: u32 = 70;

fn setup(model: &str, tp: usize) -> Setup {
    Setup {
        model: format!("tests/fixtures/nextn/{model}"),
        running: 4,
        tokens: 2048,
        ..Setup::random("", Dtype::Float32, tp)
    }
}

/// More requests than slots; pairs of them begin alike.
fn requests() -> Vec<Request> {
    let text = |number: u32| -> Vec<u32> {
        let stem = (0..PROMPT - 7 * (number / 2)).map(|at| 3 + (at * 31 + number / 2) % 320);
        stem.chain([100 + number]).collect()
    };
    let one = |number| {
        let mut request = reported(&text(number), 40, SamplingParams::greedy(), None);
        request.generation.sampling.ignore_eos = true;
        request
    };
    (0..6).map(one).collect()
}

/// Answers without cached prefixes, and again with them.
fn answers(setup: &Setup) -> [Vec<Completion>; 2] {
    let mut engine = setup.start();
    [(); 2].map(|()| together(&mut engine, requests()))
}

fn accepted(answers: &[Completion]) -> u32 {
    let finishes = answers.iter().filter_map(|answer| answer.finish.as_ref());
    let drafts = finishes.filter_map(|finish| finish.speculation.as_ref());
    drafts.map(|drafts| drafts.accepted_tokens()).sum()
}

/// Steps, branches and verified tokens of drafts, tokens of a page, and those of a chunk.
type Drafts = ([usize; 3], usize, Option<i64>);

/// Compares answers with drafts and without, with cached prefixes and without.
fn change_no_bit(model: &str, tp: usize, drafts: &[Drafts]) {
    let [expected, _] = answers(&setup(model, tp));
    let mut taken = 0;
    for (own_drafts, page, chunk) in drafts {
        let setup = Setup {
            own_drafts: Some(*own_drafts),
            page: *page,
            chunk: *chunk,
            ..setup(model, tp)
        };
        let [cold, warm] = answers(&setup);
        for (found, expected) in cold.iter().chain(&warm).zip(expected.iter().cycle()) {
            assert_same_output(&format!("{setup:?}"), found, expected);
        }
        assert!(warm.iter().all(|answer| cached(answer) > 0), "{setup:?}");
        taken += accepted(&cold) + accepted(&warm);
    }
    assert!(taken > 0, "{model} on {tp} ranks accepts no draft");
}

#[test]
fn drafts_of_the_own_layer_change_no_bit() {
    for model in MODELS {
        change_no_bit(model, 1, &[([3, 1, 4], 16, Some(24)), ([3, 2, 6], 1, None)]);
        change_no_bit(
            model,
            2,
            &[([1, 1, 2], 16, Some(7)), ([4, 4, 12], 16, None)],
        );
    }
}

/// Drafts are shallower than there are layers, as deep, and deeper.
#[test]
fn drafts_of_several_layers_change_no_bit() {
    for (model, layers) in IN_TURN {
        let (deep, wide) = ([layers + 2, 1, layers + 3], [layers + 1, 2, 8]);
        change_no_bit(model, 1, &[(deep, 16, Some(24)), (wide, 1, None)]);
        change_no_bit(model, 2, &[([1, 1, 2], 16, Some(7)), (deep, 16, None)]);
    }
}

/// Answers and accepted drafts of a plain construction with several layers.
#[derive(Deserialize)]
struct Golden {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    ids: Vec<u32>,
    written: Vec<u32>,
    accepted: Vec<u32>,
}

/// Chunks and accepted tokens go through every layer: as many drafts are accepted in as many
/// rounds as where the whole text is computed for each draft. That is so on two ranks too.
#[test]
fn several_layers_accept_what_the_reference_accepts() {
    for (model, layers) in IN_TURN {
        let golden = root()
            .join("tests/fixtures/nextn")
            .join(model)
            .join("golden.json");
        let golden = std::fs::read(golden).expect("a golden");
        let Golden { prompts } = serde_json::from_slice(&golden).expect("a golden");
        for (tp, chunk) in [(1, None), (2, Some(7))] {
            let setup = Setup {
                own_drafts: Some([layers + 2, 1, layers + 3]),
                chunk,
                radix: false,
                ..setup(model, tp)
            };
            let requests = prompts.iter().map(|prompt| {
                let most = prompt.written.len() as u32;
                let mut request = reported(&prompt.ids, most, SamplingParams::greedy(), None);
                request.generation.sampling.ignore_eos = true;
                request
            });
            let answers = together(&mut setup.start(), requests.collect());
            for (prompt, answer) in prompts.iter().zip(answers) {
                assert_eq!(answer.token_ids, prompt.written, "{setup:?}");
                let drafts = answer.finish.and_then(|finish| finish.speculation);
                let drafts = drafts.expect("figures of drafts");
                let expected = (prompt.accepted.len(), prompt.accepted.iter().sum());
                let found = (drafts.verify_steps as usize, drafts.accepted_tokens());
                assert_eq!(found, expected, "{setup:?}, {} tokens", prompt.ids.len());
            }
        }
    }
}

/// A trained hybrid on two ranks writes what the reference writes, and accepts as many drafts of
/// its own layer in as many rounds, for each depth that the reference has.
#[test]
fn the_demo_hybrid_writes_its_goldens() {
    let prompts = goldens::hybrid();
    for steps in [1, 3, 7] {
        let setup = Setup {
            model: "models/lockstep-demo-8m-hybrid".into(),
            running: 4,
            tokens: 2048,
            own_drafts: Some([steps, 1, steps + 1]),
            ..Setup::demo(Dtype::Float32, 2)
        };
        writes_goldens(&setup, &prompts, &steps.to_string());
    }
}

/// Compares answers with goldens, and the figures of their drafts with those that the reference has
/// for `steps`.
fn writes_goldens(setup: &Setup, prompts: &[Hybrid], steps: &str) {
    let one = |prompt: &Hybrid| {
        let ids = &prompt.golden.prompt_ids;
        reported(ids, goldens::MAX_NEW, SamplingParams::greedy(), None)
    };
    let requests = prompts.iter().map(one).collect();
    let answers = together(&mut setup.start(), requests);
    for (Hybrid { golden, accepted }, answer) in prompts.iter().zip(answers) {
        assert_eq!(answer.token_ids, golden.output_ids);
        let first = answer.logprobs.first().expect("log-probabilities");
        for (token, logprob) in &golden.first_top5 {
            let found = first.top.iter().find(|(found, _)| found == token);
            let (_, found) = found.expect("one of the likeliest tokens");
            assert!((found - logprob).abs() < 1e-2, "{token}: {found} {logprob}");
        }
        let drafts = answer.finish.and_then(|finish| finish.speculation);
        let drafts = drafts.expect("figures of drafts");
        let rounds = &accepted[steps];
        assert_eq!(drafts.verify_steps as usize, rounds.len(), "{steps} steps");
        // Neither count is cut at the end of the text.
        let sum: u32 = rounds.iter().sum();
        assert_eq!(drafts.accepted_tokens(), sum, "{steps} steps");
    }
}

/// The device drafts with a layer of latent attention, chooses, and moves the latents of accepted
/// nodes. Its passes have at most 64 tokens, so that all have the same bits.
#[test]
fn drafts_of_the_own_layer_change_no_token_on_gpus() {
    let _order = lockstep_fake_cuda::order_of_threads(3);
    let greedy = SamplingParams {
        ignore_eos: true,
        ..SamplingParams::greedy()
    };
    let text =
        |number: u32| -> Vec<u32> { (0..19).map(|at| 3 + (at * 31 + number) % 320).collect() };
    let requests = || (0..2).map(|number| request(&text(number), 14, greedy.clone()));
    // With several layers the host drafts, and the device runs their passes.
    for (model, shapes) in [
        ("deepseek_v3", &[[3, 1, 4], [3, 2, 6]][..]),
        ("deepseek_v3_two", &[[3, 1, 4]]),
    ] {
        let setup = Setup {
            chunk: Some(2 * 16),
            running: 2,
            tokens: 512,
            context: 128,
            ..setup(model, 1)
        };
        let expected = together(&mut setup.start_on_gpus(), requests().collect());
        let mut taken = 0;
        for own_drafts in shapes {
            let setup = Setup {
                own_drafts: Some(*own_drafts),
                ..setup.clone()
            };
            let found = together(&mut setup.start_on_gpus(), requests().collect());
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(found.token_ids, expected.token_ids, "{setup:?}");
            }
            taken += accepted(&found);
        }
        assert!(taken > 0, "no draft of {model} is accepted");
    }
}
