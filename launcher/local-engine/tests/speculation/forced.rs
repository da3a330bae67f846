//! Text that a constraint forces is drafted, shows in no text, and is counted apart.

use std::sync::{Arc, Mutex};

use lockstep_adaptive::{AdaptiveConfig, Digest, Moment, PolicyFactory, Seen};
use lockstep_config::args::VerificationArg;
use lockstep_devices::Registry;
use lockstep_local_engine::{Completion, LocalEngine, LocalOptions};
use lockstep_types::{
    Dtype,
    constraint::{Constraint, ConstraintKind, Whitespace},
    request::{FinishReason, Request},
    sampling::SamplingParams,
};
use serde_json::json;

use crate::{
    goldens::GOLDENS,
    load::idle,
    oracle::{Oracle, compare},
    policies::Policy,
    requests::golden,
    setup::{Algorithm, Setup, Shape},
};

/// A form whose fields are these, each true or false.
fn form(fields: &[&str]) -> Constraint {
    let value = |field: &&str| (field.to_string(), json!({"type": "boolean"}));
    let properties: serde_json::Map<_, _> = fields.iter().map(value).collect();
    let form = json!({"type": "object", "properties": properties, "required": fields,
        "additionalProperties": false});
    Constraint {
        whitespace: Whitespace::Compact,
        ..Constraint::new(ConstraintKind::JsonSchema, form.to_string())
    }
}

fn request(constraint: Constraint, seed: u64, temperature: f32) -> Request {
    let mut request = golden(&GOLDENS[seed as usize % GOLDENS.len()]);
    request.max_new_tokens = 160;
    request.generation.logprobs = Default::default();
    request.generation.sampling = SamplingParams {
        temperature,
        seed,
        stop_token_ids: vec![2],
        ..SamplingParams::default()
    };
    request.generation.constraint = Some(Arc::new(constraint));
    request
}

/// Returns a request for a form at each of several temperatures.
fn forms(fields: &[&str]) -> Vec<Request> {
    let numbered = [0.0, 1.0, 2.0].into_iter().zip(0..);
    let request = |(temperature, seed)| request(form(fields), seed, temperature);
    numbered.map(request).collect()
}

/// Runs requests one after the other, and returns their answers and the passes that they took.
fn alone(engine: &mut LocalEngine, requests: &[Request]) -> (Vec<Completion>, u64) {
    let before = engine.load().counters.decode_rows;
    let answers = requests
        .iter()
        .map(|request| engine.run(vec![request.clone()]).unwrap().remove(0))
        .collect();
    (answers, engine.load().counters.decode_rows - before)
}

/// A form takes far fewer passes than it has tokens, without a drafter and in other ways to verify,
/// at every temperature. Digits are tokens of their own, so there is one way to spell a number.
#[test]
fn a_form_takes_few_passes() {
    let requests = forms(&["27182818284590452353", "31415926535897932384"]);
    let plain = Setup::plain(Dtype::Float32, 1);
    let expected = Oracle::default().answers(plain.form(), &requests);
    for (algorithm, verification) in [
        (Algorithm::JumpForward, None),
        // Where drafts are sampled, they give way only to forced text of the whole depth.
        (Algorithm::Standalone, Some(VerificationArg::Rejection)),
        (Algorithm::Standalone, Some(VerificationArg::Block)),
    ] {
        let setup = Setup {
            verification,
            overlap: false,
            ..Setup::drafting(Dtype::Float32, 1, algorithm, Shape::chain(7))
        };
        let mut engine = setup.start();
        let (found, passes) = alone(&mut engine, &requests);
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let finish = found.finish.as_ref().unwrap();
            assert_eq!(finish.outcome, Ok(FinishReason::Stop));
            // Ways that accept by chance keep the law of a text, and greedy texts.
            if verification.is_none() || at == 0 {
                compare(&format!("form {at}, {verification:?}"), found, expected);
            }
        }
        let tokens: usize = found.iter().map(|answer| answer.token_ids.len()).sum();
        let least = if verification.is_none() { 3 } else { 2 };
        assert!(
            least * passes < tokens as u64,
            "{passes} passes, {tokens} tokens"
        );
        let counted = engine.speculation();
        assert!(2 * counted.accepted_forced_tokens > tokens as u64);
        if algorithm == Algorithm::JumpForward {
            assert_eq!(counted.forced_tokens, counted.draft_tokens);
            assert_eq!(counted.accepted_forced_tokens, counted.accepted_tokens);
        }
        idle(&mut engine);
    }
}

/// Every drafter, chains and trees, ranks that share requests and ranks that do not, and depths
/// that change with each step.
#[test]
fn forced_drafts_join_those_of_every_drafter() {
    let mut requests = forms(&["escalated", "by_2026"]);
    requests.push(golden(&GOLDENS[5]));
    let mut oracle = Oracle::default();
    let cases = [
        (Algorithm::Eagle3, Shape::TREE, (2, 1), None),
        (Algorithm::Eagle, Shape::chain(4), (2, 2), None),
        (
            Algorithm::Standalone,
            Shape::chain(5),
            (1, 1),
            Some(Policy::Restless),
        ),
        (Algorithm::Ngram, Shape::TREE, (1, 1), None),
        (
            Algorithm::Dflash,
            Shape::chain(5),
            (2, 1),
            Some(Policy::Restless),
        ),
        (Algorithm::JumpForward, Shape::chain(3), (2, 2), None),
    ];
    for (algorithm, shape, (tp, dp), policy) in cases {
        let setup = Setup {
            dp,
            policy,
            ..Setup::drafting(Dtype::Float32, tp, algorithm, shape)
        };
        let expected = oracle.answers(setup.form(), &requests);
        let (registry, _) = Policy::Restless.watched();
        let mut engine = match policy {
            Some(Policy::Restless) => setup.start_with(registry),
            _ => setup.start(),
        };
        let found = engine.run(requests.clone()).unwrap();
        let what = format!("{algorithm:?} {shape:?} {tp} {dp}");
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            compare(&format!("request {at}, {what}"), found, expected);
        }
        let counted = engine.speculation();
        assert!(counted.accepted_forced_tokens > 9, "{what}: {counted:?}");
        assert!(counted.accepted_forced_tokens <= counted.forced_tokens);
        if algorithm != Algorithm::JumpForward {
            let own = counted.draft_tokens - counted.forced_tokens;
            assert!(own > 0, "{what}: {counted:?}");
        }
        idle(&mut engine);
    }
}

/// A draft model that is the target drafts what the target says. So it does behind forced text,
/// whose tokens it did not draft: what it drafted in their place is forgotten.
#[test]
fn a_draft_model_goes_on_behind_forced_text() {
    let expression = r"so (.|\n){12} and then (.|\n){12} and so on (.|\n){40}";
    let requests: Vec<Request> = (0..4)
        .map(|seed| {
            request(
                Constraint::new(ConstraintKind::Regex, expression),
                seed,
                0.0,
            )
        })
        .collect();
    let plain = Setup::plain(Dtype::Float32, 1);
    let expected = Oracle::default().answers(plain.form(), &requests);
    let setup = Setup {
        overlap: false,
        ..Setup::drafting(Dtype::Float32, 1, Algorithm::Itself, Shape::chain(5))
    };
    let mut engine = setup.start();
    let (found, _) = alone(&mut engine, &requests);
    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
        compare(&format!("request {at}"), found, expected);
    }
    let counted = engine.speculation();
    let own = counted.draft_tokens - counted.forced_tokens;
    let accepted = counted.accepted_tokens - counted.accepted_forced_tokens;
    assert!(
        counted.accepted_forced_tokens > 0 && own > 50,
        "{counted:?}"
    );
    // What is not accepted would break the constraint, or stands behind such a token.
    assert!(10 * accepted > 9 * own, "{counted:?}");
}

/// A policy that stays at a depth, and remembers what it was shown.
#[derive(Debug, Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Seen>>>);

impl PolicyFactory for Recorder {
    fn name(&self) -> &str {
        "recorder"
    }

    fn summary(&self) -> &str {
        "for tests"
    }

    fn build(&self, _: &AdaptiveConfig) -> Box<dyn lockstep_adaptive::Policy> {
        Box::new(self.clone())
    }
}

impl lockstep_adaptive::Policy for Recorder {
    fn decide(&mut self, moment: &Moment<'_>) -> u32 {
        self.0.lock().unwrap().push(*moment.seen);
        moment.decided
    }

    fn digest(&self, _: &mut Digest) {}
}

/// Policies are shown rows with forced drafts apart from all others.
#[test]
fn policies_are_shown_forced_drafts_apart() {
    for shape in [Shape::chain(4), Shape::TREE] {
        let setup = Setup {
            policy: Some(Policy::Restless),
            overlap: false,
            ..Setup::drafting(Dtype::Float32, 1, Algorithm::Eagle3, shape)
        };
        let mut config = setup.config();
        let adaptive = config.speculation.adaptive.as_mut().unwrap();
        adaptive.policy = "recorder".to_owned();
        adaptive.initial_depth = shape.steps as u32;
        let recorder = Recorder::default();
        let options = LocalOptions {
            registry: Registry::builtin().with_policy(recorder.clone()),
            ..LocalOptions::default()
        };
        let mut engine = LocalEngine::start(&config, &options).unwrap();
        let mut requests = forms(&["17", "2026"]);
        requests.push(golden(&GOLDENS[3]));
        // The last step's counts come with a step after it, which drafts nothing.
        let mut last = golden(&GOLDENS[4]);
        last.generation.max_draft_steps = Some(0);
        requests.push(last);
        alone(&mut engine, &requests);
        let counted = engine.speculation().clone();
        let seen = recorder.0.lock().unwrap();
        let sum = |count: fn(&Seen) -> u64| seen.iter().map(count).sum::<u64>();
        let forced = sum(|seen| seen.forced_accepted.into());
        let own = sum(Seen::drafts_accepted);
        assert!(sum(|seen| seen.forced_rows.into()) > 4, "{shape:?}");
        assert!(forced >= counted.accepted_forced_tokens, "{shape:?}");
        assert!(counted.accepted_forced_tokens > 4 && own > 0, "{shape:?}");
        assert_eq!(own + forced, counted.accepted_tokens, "{shape:?}");
        // Each row runs alone, so a step has either forced drafts or drafts that count.
        assert!(
            seen.iter()
                .all(|seen| seen.forced_rows == 0 || seen.drafts_accepted() == 0)
        );
    }
}
