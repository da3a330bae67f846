//! Ways to verify that keep the distribution of texts, but not each text.

use lockstep_config::args::VerificationArg;
use lockstep_types::Dtype;
use lockstep_types::{request::Request, sampling::SamplingParams};

use crate::{
    goldens::GOLDENS,
    load::idle,
    oracle::{compare, golden_answers},
    requests::golden,
    setup::{Algorithm, Form, Setup, Shape},
};

const MODES: [(VerificationArg, Shape); 3] = [
    (VerificationArg::Rejection, Shape::chain(4)),
    (VerificationArg::Rejection, Shape::TREE),
    (VerificationArg::Block, Shape::chain(4)),
];

/// Returns every mode with the drafters that draft in its shape: `first`, and DFLASH.
fn modes(first: Algorithm) -> impl Iterator<Item = (VerificationArg, Shape, Algorithm)> {
    MODES.into_iter().flat_map(move |(mode, shape)| {
        let each = [first, Algorithm::Dflash].into_iter();
        let drafts = each.filter(move |algorithm| algorithm.shapes([shape]).next().is_some());
        drafts.map(move |algorithm| (mode, shape, algorithm))
    })
}

#[test]
fn at_temperature_zero_every_mode_is_greedy() {
    let expected = golden_answers(Form::of_ranks(1));
    for (mode, shape, algorithm) in modes(Algorithm::Eagle3) {
        let setup = Setup {
            verification: Some(mode),
            ..Setup::drafting(Dtype::Float32, 1, algorithm, shape)
        };
        let mut engine = setup.start();
        let found = engine.run(GOLDENS.iter().map(golden).collect()).unwrap();
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            compare(&format!("{setup:?}, prompt {at}"), found, expected);
        }
        assert!(engine.speculation().accepted_tokens > 0, "{setup:?}");
        idle(&mut engine);
    }
}

/// A text depends on its request and on its drafts, and drafts depend on the text alone.
#[test]
fn company_changes_no_sampled_text() {
    let request = |(at, text)| {
        let mut request = golden(text);
        request.generation.sampling = SamplingParams {
            temperature: 1.0,
            seed: at,
            ..SamplingParams::default()
        };
        request
    };
    let requests: Vec<Request> = (0u64..)
        .zip(GOLDENS.iter().step_by(3))
        .map(request)
        .collect();
    for (mode, shape, algorithm) in modes(Algorithm::Standalone) {
        let setup = Setup {
            verification: Some(mode),
            ..Setup::drafting(Dtype::Float32, 1, algorithm, shape)
        };
        let mut engine = setup.start();
        let together = engine.run(requests.clone()).unwrap();
        for (at, request) in requests.iter().enumerate() {
            let alone = engine.run(vec![request.clone()]).unwrap();
            compare(&format!("{setup:?}, prompt {at}"), &alone[0], &together[at]);
        }
        assert!(engine.speculation().accepted_tokens > 0, "{setup:?}");
        idle(&mut engine);
    }
}
