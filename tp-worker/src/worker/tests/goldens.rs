//! The demo model against the goldens of Hugging Face transformers.

use std::fs;

use lockstep_types::Dtype;
use lockstep_types::sampling::LogprobParams;

use super::support::{Request, Scheduler, config, repository};
use crate::worker::local::{LocalGroup, LocalOptions};

#[derive(serde::Deserialize)]
pub struct Goldens {
    pub prompts: Vec<Golden>,
}

#[derive(serde::Deserialize)]
pub struct Golden {
    pub prompt_ids: Vec<u32>,
    pub output_ids: Vec<u32>,
}

#[derive(serde::Deserialize)]
struct Measured {
    prompts: Vec<Logprobs>,
}

#[derive(serde::Deserialize)]
struct Logprobs {
    prompt_logprobs: Vec<f32>,
    output_logprobs: Vec<f32>,
    top2_logit_gaps: Vec<f32>,
    bf16_max_logit_error: f32,
}

fn read<T: serde::de::DeserializeOwned>(name: &str) -> T {
    let text = fs::read(repository().join("tests/fixtures").join(name)).unwrap();
    serde_json::from_slice(&text).unwrap()
}

pub fn goldens() -> Vec<Golden> {
    read::<Goldens>("goldens.json").prompts
}

fn requests(goldens: &[Golden]) -> Vec<Request> {
    let request = |golden: &Golden| Request {
        logprobs: LogprobParams {
            output: true,
            top: 2,
            prompt_start: Some(0),
        },
        ..Request::greedy(&golden.prompt_ids, 64)
    };
    goldens.iter().map(request).collect()
}

/// Tokens equal the goldens, and log-probabilities equal them within 0.001, for every number of
/// ranks, page size, chunking and batching.
#[test]
fn float32_equals_the_goldens() {
    let goldens = goldens();
    let measured = read::<Measured>("demo_logprobs.json").prompts;
    let requests = requests(&goldens);
    for (tp_size, page_size, chunk, batch) in
        [(1, 16, usize::MAX, 40), (2, 1, 32, 17), (4, 64, 50, 40)]
    {
        let config = config(tp_size, page_size, Dtype::Float32);
        let group = LocalGroup::start(&config, &LocalOptions::default()).unwrap();
        let mut step = 0;
        let mut scheduler = Scheduler::new(&group, &mut step, &config, chunk, batch);
        let generated = scheduler.run(&requests).unwrap();
        for ((golden, measured), found) in goldens.iter().zip(&measured).zip(&generated) {
            assert_eq!(found.tokens, golden.output_ids);
            let close = |found: &lockstep_types::sampling::TokenLogprob, expected: &f32| {
                let error = (found.logprob.unwrap() - expected).abs();
                assert!(error < 1e-3, "{found:?} instead of {expected}");
            };
            assert_eq!(found.logprobs.len(), measured.output_logprobs.len());
            for (found, expected) in found.logprobs.iter().zip(&measured.output_logprobs) {
                close(found, expected);
                assert_eq!(found.top[0].0, found.token_id);
            }
            let (first, rest) = found.prompt_logprobs.split_first().unwrap();
            assert_eq!(
                (first.token_id, first.logprob),
                (golden.prompt_ids[0], None)
            );
            assert_eq!(rest.len(), measured.prompt_logprobs.len());
            for (i, (found, expected)) in rest.iter().zip(&measured.prompt_logprobs).enumerate() {
                assert_eq!(found.token_id, golden.prompt_ids[i + 1]);
                close(found, expected);
            }
        }
    }
}

/// In bf16 a text may leave the golden only where the reference's two best tokens lie closer
/// than twice the reference's own bf16 error.
#[test]
fn bfloat16_equals_the_goldens_where_the_margin_is_clear() {
    let goldens = goldens();
    let measured = read::<Measured>("demo_logprobs.json").prompts;
    let config = config(2, 16, Dtype::Bfloat16);
    let group = LocalGroup::start(&config, &LocalOptions::default()).unwrap();
    let mut step = 0;
    let mut scheduler = Scheduler::new(&group, &mut step, &config, usize::MAX, 40);
    let generated = scheduler.run(&requests(&goldens)).unwrap();
    let mut equal = 0;
    for ((golden, measured), found) in goldens.iter().zip(&measured).zip(&generated) {
        let expected = &golden.output_ids;
        match (0..expected.len()).find(|i| found.tokens.get(*i) != Some(&expected[*i])) {
            None => equal += 1,
            Some(i) => {
                let gap = measured.top2_logit_gaps[i];
                assert!(
                    gap < 2.0 * measured.bf16_max_logit_error,
                    "token {i}, gap {gap}"
                );
            }
        }
    }
    assert!(
        equal > goldens.len() / 2,
        "only {equal} of {} equal",
        goldens.len()
    );
}
