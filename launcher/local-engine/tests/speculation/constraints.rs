//! Constrained outputs are the same with drafts, and of their languages.

use std::sync::{Arc, LazyLock};

use lockstep_config::args::VerificationArg;
use lockstep_devices::Registry;
use lockstep_local_engine::{Completion, LocalEngine, LocalOptions, MaskPlace};
use lockstep_text::Tokenizer;
use lockstep_types::{
    Dtype,
    constraint::{Constraint, ConstraintKind, Reasoning, Whitespace},
    request::{FinishReason, Request},
    sampling::{LogprobParams, SamplingParams},
};
use serde_json::{Value, json};

use crate::{
    cuda::alone,
    goldens::GOLDENS,
    load::{idle, run},
    oracle::{Oracle, compare},
    policies::Policy,
    requests::{Job, golden},
    setup::{Algorithm, Form, Layers, Setup, Shape, root},
};

/// Languages whose outputs end soon, even if they are random, each with a check of an output.
struct Language {
    constraint: Arc<Constraint>,
    holds: fn(&str) -> bool,
}

static LANGUAGES: LazyLock<Vec<Language>> = LazyLock::new(|| {
    let short = json!({"type": "string", "maxLength": 6});
    let person = json!({"type": "object", "properties": {"name": short,
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2}},
        "required": ["name", "age", "tags"], "additionalProperties": false});
    let compact = Constraint {
        whitespace: Whitespace::Compact,
        ..Constraint::new(ConstraintKind::JsonSchema, person.to_string())
    };
    let choice = json!(["yes", "yes, of course", "no"]).to_string();
    let reasoned = Constraint {
        after: Some(Reasoning::new(None, ".")),
        ..Constraint::new(ConstraintKind::Regex, "[ab]{2,9}")
    };
    let pairs = "root ::= pair (\", \" pair){0,3}\npair ::= [a-c] \"=\" [0-9]{1,2}";
    let pairs = lockstep_constraint::lark(pairs).unwrap();
    let tag = |begin: &str, words: Value| {
        json!({"begin": begin, "end": "</f>",
            "content": {"type": "json_schema", "json_schema": {"enum": words}}})
    };
    let thought = json!({"type": "tag", "begin": "<t>", "end": "</t>",
        "content": {"type": "any_text", "max_chars": 8}});
    let tags = json!({"format": {"type": "sequence", "elements": [thought, {
        "type": "triggered_tags", "triggers": ["<f="], "at_least_one": true,
        "stop_after_first": true,
        "tags": [tag("<f=a>", json!([1, 12])), tag("<f=b>", json!([true]))]}]}});
    let language = |constraint: Constraint, holds| Language {
        constraint: Arc::new(constraint),
        holds,
    };
    vec![
        language(compact.clone(), is_person),
        language(
            Constraint {
                whitespace: Whitespace::Bounded,
                ..compact
            },
            is_person,
        ),
        language(
            Constraint::new(ConstraintKind::Regex, r"-?\d{1,9}(\.\d{1,3})?"),
            |text| text.parse::<f64>().is_ok(),
        ),
        language(Constraint::new(ConstraintKind::Choice, choice), |text| {
            ["yes", "yes, of course", "no"].contains(&text)
        }),
        language(Constraint::new(ConstraintKind::Lark, pairs), |text| {
            let pairs: Vec<_> = text.split(", ").collect();
            pairs.len() <= 4 && pairs.iter().all(|pair| is_pair(pair))
        }),
        language(
            Constraint::new(ConstraintKind::StructuralTag, tags.to_string()),
            are_tags,
        ),
        language(reasoned, |text| {
            let (_, answer) = text.split_once('.').unwrap_or_default();
            let answer = answer.trim_start();
            (2..10).contains(&answer.len()) && answer.bytes().all(|byte| b"ab".contains(&byte))
        }),
    ]
});

fn are_tags(text: &str) -> bool {
    let behind = text.strip_prefix("<t>").unwrap_or_default();
    let (thought, call) = behind.split_once("</t>").unwrap_or_default();
    let calls = ["<f=a>1</f>", "<f=a>12</f>", "<f=b>true</f>"];
    thought.chars().count() <= 8 && calls.contains(&call)
}

fn is_pair(text: &str) -> bool {
    let (name, number) = text.split_once('=').unwrap_or_default();
    ["a", "b", "c"].contains(&name)
        && (1..=2).contains(&number.len())
        && number.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_person(text: &str) -> bool {
    let Ok(Value::Object(fields)) = serde_json::from_str(text) else {
        return false;
    };
    let tags = fields["tags"].as_array().is_some_and(|tags| {
        tags.len() <= 2 && tags.iter().all(|tag| *tag == "red" || *tag == "green")
    });
    let name = fields["name"]
        .as_str()
        .is_some_and(|name| name.chars().count() <= 6);
    fields.len() == 3 && name && tags && fields["age"].as_u64().is_some_and(|age| age <= 130)
}

static TOKENIZER: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::load(&root().join("models/lockstep-demo-7m")).unwrap());

/// Returns the constraint of a random request; a quarter of the requests has one.
pub fn some(seed: u64) -> Option<Arc<Constraint>> {
    let number = seed as usize / 4 % LANGUAGES.len();
    let constraint = || LANGUAGES[number].constraint.clone();
    seed.is_multiple_of(4).then(constraint)
}

/// Requests of every language at every temperature, among unconstrained ones.
fn jobs(count: usize) -> Vec<Job> {
    let temperatures = [0.0, 1.0, 2.0];
    let constrained = (0..count).map(|at| {
        let mut request = golden(&GOLDENS[at % GOLDENS.len()]);
        request.max_new_tokens = 120;
        request.generation.sampling = SamplingParams {
            temperature: temperatures[at / LANGUAGES.len() % 3],
            seed: at as u64,
            stop_token_ids: vec![2],
            ..SamplingParams::default()
        };
        request.generation.constraint = Some(LANGUAGES[at % LANGUAGES.len()].constraint.clone());
        request
    });
    let free = (0..4).map(|at| golden(&GOLDENS[7 * at]));
    let requests = constrained.chain(free).enumerate();
    let job = |(at, request)| Job {
        request,
        arrival: at % 5,
        patience: None,
    };
    requests.map(job).collect()
}

/// Checks every output that ended by itself, and returns their number.
fn judge(what: &str, jobs: &[Job], found: &[Completion]) -> usize {
    let mut ended = 0;
    for (at, (job, found)) in jobs.iter().zip(found).enumerate() {
        let Some(constraint) = &job.request.generation.constraint else {
            continue;
        };
        let finish = found.finish.as_ref().unwrap();
        if finish.outcome != Ok(FinishReason::Stop) {
            assert_eq!(finish.outcome, Ok(FinishReason::Length), "{what}: {at}");
            continue;
        }
        ended += 1;
        let (last, tokens) = found.token_ids.split_last().unwrap();
        assert_eq!(*last, 2, "{what}: {at}");
        let bytes = tokens
            .iter()
            .map(|token| TOKENIZER.token_bytes(*token).unwrap());
        let bytes = bytes.collect::<Vec<_>>().concat();
        // Free text may be anything.
        let text = String::from_utf8_lossy(&bytes);
        let language = LANGUAGES
            .iter()
            .find(|own| Arc::ptr_eq(&own.constraint, constraint));
        assert!((language.unwrap().holds)(&text), "{what}: {at}: {text}");
    }
    ended
}

fn requests(jobs: &[Job]) -> impl Iterator<Item = &Request> {
    jobs.iter().map(|job| &job.request)
}

/// Every drafter, chains and trees, one rank and several, one DP rank and two, with a depth that
/// changes in every step.
#[test]
fn constrained_texts_stay_the_same_with_drafts() {
    let jobs = jobs(3 * LANGUAGES.len());
    let mut oracle = Oracle::default();
    let mut accepted = 0;
    for (at, algorithm) in Algorithm::ALL.into_iter().enumerate() {
        let shapes = algorithm.shapes([Shape::chain(5), Shape::TREE]);
        for (turn, shape) in shapes.enumerate() {
            let (tp, dp) = [(1, 1), (2, 1), (2, 2)][(at + turn) % 3];
            let setup = Setup {
                dp,
                policy: (turn + at / 2 == 1).then_some(Policy::Restless),
                ..Setup::drafting(Dtype::Float32, tp, algorithm, shape)
            };
            let expected = oracle.answers(setup.form(), requests(&jobs));
            let (registry, _) = Policy::Restless.watched();
            let mut engine = setup.start_with(registry);
            let what = format!("{setup:?}");
            let found = run(&what, &mut engine, &jobs, |_| {});
            for (job, (found, expected)) in found.iter().zip(&expected).enumerate() {
                compare(&format!("job {job}, {what}"), found, expected);
            }
            assert!(judge(&what, &jobs, &found) >= 10, "{what}");
            accepted += engine.speculation().accepted_tokens;
            idle(&mut engine);
        }
    }
    assert!(accepted > 300, "{accepted}");
}

/// Constrained requests change no bit of others, and are not changed by them.
#[test]
fn neighbours_of_constrained_requests_do_not_notice() {
    let jobs = jobs(2 * LANGUAGES.len());
    let mut oracle = Oracle::default();
    let form = Form::of_ranks(1);
    let together = oracle.answers(form, requests(&jobs));
    for (at, (alone, together)) in oracle.alone(form, &jobs).iter().zip(&together).enumerate() {
        compare(&format!("request {at}"), together, alone);
    }
}

/// A request that is retracted in the middle of its constrained text, and of a tree of drafts,
/// goes on where it was.
#[test]
fn retracted_outputs_keep_their_constraints() {
    let jobs = jobs(3 * LANGUAGES.len());
    let expected = Oracle::default().answers(Form::of_ranks(1), requests(&jobs));
    let mut ended = 0;
    for setup in [
        Setup::plain(Dtype::Float32, 1),
        Setup::drafting(Dtype::Float32, 1, Algorithm::Ngram, Shape::TREE),
    ] {
        let setup = Setup {
            page: 4,
            tokens: 480,
            care: 0,
            ..setup
        };
        let mut engine = setup.start_with(Registry::builtin());
        let what = format!("{setup:?}");
        let found = run(&what, &mut engine, &jobs, |_| {});
        assert!(engine.load().counters.retractions > 0, "{what}");
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            compare(&format!("job {at}, {what}"), found, expected);
        }
        ended += judge(&what, &jobs, &found);
        idle(&mut engine);
    }
    assert!(ended >= 20, "{ended}");
}

/// Modes that accept by chance read the constrained distribution: no draft that breaks a
/// constraint is taken, and greedy texts are those without drafts.
#[test]
fn other_ways_to_verify_keep_constraints() {
    let jobs = jobs(3 * LANGUAGES.len());
    let expected = Oracle::default().answers(Form::of_ranks(1), requests(&jobs));
    for (verification, shape) in [
        (VerificationArg::Rejection, Shape::chain(4)),
        (VerificationArg::Rejection, Shape::TREE),
        (VerificationArg::Block, Shape::chain(4)),
    ] {
        let setup = Setup {
            verification: Some(verification),
            ..Setup::drafting(Dtype::Float32, 1, Algorithm::Standalone, shape)
        };
        let mut engine = setup.start_with(Registry::builtin());
        let what = format!("{setup:?}");
        let found = run(&what, &mut engine, &jobs, |_| {});
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            if jobs[at].request.generation.sampling.temperature == 0.0 {
                compare(&format!("job {at}, {what}"), found, expected);
            }
        }
        assert!(judge(&what, &jobs, &found) >= 10, "{what}");
        assert!(engine.speculation().accepted_tokens > 0, "{what}");
        idle(&mut engine);
    }
}

/// A tree that is small, since fake GPUs are slow.
const TREE: Shape = Shape {
    steps: 2,
    topk: 2,
    tokens: 4,
};

/// Short constrained requests at temperatures 0, 1 and 2, for GPUs, and one that is free.
fn few_jobs() -> Vec<Job> {
    let mut jobs = jobs(2);
    jobs.truncate(3);
    for (at, job) in jobs.iter_mut().enumerate() {
        job.request.max_new_tokens = 8;
        job.request.generation.sampling.temperature = at as f32;
        job.request.generation.logprobs = LogprobParams::default();
    }
    jobs
}

/// Answers on a fake GPU, the number of accepted drafts, and that of retractions.
pub fn on_gpus(setup: &Setup, jobs: &[Job]) -> (Vec<Completion>, u64, u64) {
    let _alone = alone(3);
    let setup = Setup {
        gpus: true,
        chunk: Some(64),
        running: 8,
        tokens: setup.tokens.min(1024),
        ..setup.clone()
    };
    let (registry, _) = Policy::Restless.watched();
    let mut engine = setup.start_with(registry);
    let found = run("on GPUs", &mut engine, jobs, |_| {});
    let accepted = engine.speculation().accepted_tokens;
    let retractions = engine.load().counters.retractions;
    idle(&mut engine);
    (found, accepted, retractions)
}

/// On GPUs, which draft and choose by themselves, the host drafts for constrained requests, and it
/// chooses for them unless masks are the device's.
#[test]
fn constrained_texts_stay_the_same_on_gpus() {
    let jobs = few_jobs();
    let (expected, _, _) = on_gpus(&Setup::plain(Dtype::Float32, 1), &jobs);
    let mut all = 0;
    for (shape, policy, masks) in [
        (Shape::chain(3), Some(Policy::Restless), MaskPlace::Host),
        (TREE, None, MaskPlace::Host),
        (Shape::chain(3), Some(Policy::Restless), MaskPlace::Device),
        (TREE, None, MaskPlace::Device),
    ] {
        let setup = Setup {
            policy,
            masks,
            ..Setup::drafting(Dtype::Float32, 1, Algorithm::Eagle3, shape)
        };
        let (found, accepted, _) = on_gpus(&setup, &jobs);
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            compare(&format!("job {at}, {shape:?}, {masks:?}"), found, expected);
        }
        judge("on GPUs", &jobs, &found);
        all += accepted;
    }
    assert!(all > 0);
}

/// A device that chooses by masks gives the host's texts: of every language, beside neighbours that
/// have none, with drafts, and after retractions, which make the states of constraints again.
#[test]
fn masks_on_the_device_give_the_same_texts() {
    let mut jobs = jobs(LANGUAGES.len());
    jobs.truncate(LANGUAGES.len() + 3);
    for (at, job) in jobs.iter_mut().enumerate() {
        job.arrival = 0;
        job.request.max_new_tokens = 64;
        job.request.generation.sampling.temperature = (at % 3) as f32;
        job.request.generation.logprobs = LogprobParams::default();
    }
    let plain = Setup {
        layers: Layers::Random,
        ..Setup::plain(Dtype::Float32, 1)
    };
    let (expected, _, _) = on_gpus(&plain, &jobs);
    let drafting = Setup::drafting(Dtype::Float32, 1, Algorithm::Ngram, Shape::chain(3));
    for (setup, drafts) in [(plain, false), (drafting, true)] {
        let setup = Setup {
            layers: Layers::Random,
            masks: MaskPlace::Device,
            page: 4,
            tokens: 300,
            care: 0,
            ..setup
        };
        let (found, accepted, retractions) = on_gpus(&setup, &jobs);
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            compare(&format!("job {at}, drafts: {drafts}"), found, expected);
        }
        assert!(judge("masks on the device", &jobs, &found) > 0);
        assert_eq!((retractions > 0, accepted > 0), (true, drafts));
    }
}

/// A place that no rank can serve is refused with the remedy.
#[test]
fn masks_without_a_gpu_are_refused() {
    let setup = Setup {
        masks: MaskPlace::Device,
        ..Setup::plain(Dtype::Float32, 1)
    };
    let options = LocalOptions {
        masks: Some(setup.masks),
        ..LocalOptions::default()
    };
    let Err(error) = LocalEngine::start(&setup.config(), &options) else {
        panic!("processors take no masks");
    };
    let error = error.to_string();
    assert!(error.contains("LOCKSTEP_CONSTRAINT_MASKS"), "{error}");
}
