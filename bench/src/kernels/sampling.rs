//! The choice of a token from a row of logits, on one thread as on rank 0.

use lockstep_devices::Clock;
use lockstep_sampling::{Request, Sampler, TokenHistory};
use lockstep_types::sampling::SamplingParams;

use super::line::Line;
use super::setup::{Setup, fill};
use super::shape::Shape;
use crate::roofline::{Traffic, Work};

/// Calls timed together.
const CALLS: usize = 64;

/// Adds lines for some ways of choosing.
pub fn measure(setup: &Setup, shape: &Shape, lines: &mut Vec<Line>) -> anyhow::Result<()> {
    let alone = Setup {
        clock: Clock::for_threads(1),
        threads: 1,
        ..*setup
    };
    let mask = mask(shape.vocab);
    let mut logits = vec![0.0; shape.vocab];
    fill(&mut logits);
    logits.iter_mut().for_each(|logit| *logit *= 10.0);
    let history = TokenHistory::default();
    let mut sampler = Sampler::new(shape.vocab);
    for (way, params, constrained) in &ways() {
        let mut position = 0;
        let mut failed = None;
        let times = alone.time(CALLS, || {
            position += 1;
            let request = Request {
                params,
                history: &history,
                position,
                allowed: constrained.then_some(&mask[..]),
            };
            if let Err(error) = sampler.sample(&logits, request) {
                failed = Some(error);
            }
        });
        if let Some(error) = failed {
            return Err(error.into());
        }
        lines.push(Line {
            kernel: "sample, 1 thread".to_owned(),
            shape: shape.name.clone(),
            format: "f32",
            size: format!("{} logits, {way}", shape.vocab),
            tokens: 1,
            times,
            work: Work {
                bytes: (4 * shape.vocab) as f64,
                operations: 0.0,
            },
            arithmetics: &[],
            traffic: Traffic::Cached,
        });
    }
    Ok(())
}

/// Ways of choosing: their names and parameters, and whether a constraint holds.
fn ways() -> [(&'static str, SamplingParams, bool); 6] {
    let random = SamplingParams {
        temperature: 0.8,
        seed: 1,
        ..SamplingParams::greedy()
    };
    let nucleus = SamplingParams {
        top_p: 0.95,
        ..random.clone()
    };
    let few = SamplingParams {
        top_k: 40,
        ..random.clone()
    };
    [
        ("greedy", SamplingParams::greedy(), false),
        ("greedy, constrained", SamplingParams::greedy(), true),
        ("temperature 0.8", random.clone(), false),
        ("temperature 0.8, constrained", random, true),
        ("temperature 0.8, top-p 0.95", nucleus, false),
        ("temperature 0.8, top-k 40", few, false),
    ]
}

/// A mask of `vocab` tokens as within a JSON string: most tokens are allowed, and no word is whole.
fn mask(vocab: usize) -> Vec<u32> {
    let words = 0..vocab.div_ceil(32) as u32;
    words.map(|word| !(1 << (word % 32))).collect()
}
