//! Limits of reasoning are positions of an output: the same with any drafts.

use std::sync::{Arc, LazyLock};

use lockstep_config::args::VerificationArg;
use lockstep_devices::Registry;
use lockstep_local_engine::{Completion, MaskPlace};
use lockstep_text::Tokenizer;
use lockstep_types::{
    Dtype,
    constraint::{Constraint, ConstraintKind, Reasoning},
    request::FinishReason,
    sampling::{LogprobParams, SamplingParams},
};

use crate::{
    constraints::on_gpus,
    goldens::GOLDENS,
    load::{idle, run},
    oracle::{Oracle, compare},
    policies::Policy,
    requests::{Job, golden},
    setup::{Algorithm, Form, Setup, Shape, root},
};

/// The mark that ends reasoning. The demo model spells it by several tokens.
const CLOSE: &str = "</t>";
/// Most tokens of an output.
const MOST: u32 = 40;
/// A limit that no output reaches.
const NEVER: u32 = 1000;

static TOKENIZER: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::load(&root().join("models/lockstep-demo-7m")).unwrap());

fn limited(limit: u32, open: Option<&str>, part: Constraint) -> Arc<Constraint> {
    let after = Some(Reasoning {
        limit: Some(limit),
        ..Reasoning::new(open, CLOSE)
    });
    Arc::new(Constraint { after, ..part })
}

fn anything() -> Constraint {
    Constraint::new(ConstraintKind::Anything, "")
}

fn job(at: usize, constraint: Option<Arc<Constraint>>) -> Job {
    let mut request = golden(&GOLDENS[at % GOLDENS.len()]);
    request.max_new_tokens = MOST;
    request.generation.sampling = SamplingParams {
        temperature: (at % 3) as f32 / 2.0,
        seed: at as u64,
        stop_token_ids: vec![2],
        ..SamplingParams::default()
    };
    request.generation.constraint = constraint;
    Job {
        request,
        arrival: at % 4,
        patience: None,
    }
}

/// Requests whose reasoning has begun, with limits from none at all to one that is never reached,
/// before any answer and before a constrained one.
fn jobs() -> Vec<Job> {
    let limits = [0, 1, 2, 3, 7, 16, NEVER];
    let numbers = || Constraint::new(ConstraintKind::Regex, "[0-9]{1,4}");
    let jobs = limits.into_iter().enumerate().flat_map(|(at, limit)| {
        [
            job(2 * at, Some(limited(limit, None, anything()))),
            job(2 * at + 1, Some(limited(limit, None, numbers()))),
        ]
    });
    jobs.collect()
}

/// Checks that each output's mark comes where its limit wants it.
fn judge(what: &str, jobs: &[Job], found: &[Completion]) {
    for (at, (job, found)) in jobs.iter().zip(found).enumerate() {
        let constraint = job.request.generation.constraint.as_ref().unwrap();
        let limit = constraint.after.as_ref().unwrap().limit.unwrap() as usize;
        let words = found.token_ids.iter();
        let words: Vec<&[u8]> = words
            .map(|token| TOKENIZER.token_bytes(*token).unwrap_or_default())
            .collect();
        // The thought was not over, or the whole output was, as it may be without a constraint.
        if words.len() <= limit {
            assert!(constraint.kind == ConstraintKind::Anything || limit >= MOST as usize);
            continue;
        }
        // The mark is spelled by at most four tokens, the first of which the text may have.
        let until = (limit + CLOSE.len()).min(words.len());
        let text = String::from_utf8_lossy(&words[..until].concat()).into_owned();
        assert!(text.contains(CLOSE), "{what}: {at}: {limit}: {text:?}");
        let Some(Ok(FinishReason::Stop)) = found.finish.as_ref().map(|own| &own.outcome) else {
            continue;
        };
        if constraint.kind == ConstraintKind::Regex {
            let text = String::from_utf8_lossy(&words.concat()).into_owned();
            let (_, answer) = text.split_once(CLOSE).unwrap();
            let answer = answer
                .trim_start()
                .strip_suffix("<|im_end|>")
                .unwrap_or(answer);
            assert!(
                answer.trim().parse::<u32>().is_ok(),
                "{what}: {at}: {text:?}"
            );
        }
    }
}

/// N-grams and EAGLE-3, chains and trees, at one depth and at one that changes in every step.
#[test]
fn budgets_end_thoughts_alike_with_drafts() {
    let jobs = jobs();
    let requests = || jobs.iter().map(|job| &job.request);
    let mut oracle = Oracle::default();
    let mut accepted = 0;
    for (at, (algorithm, shape)) in [
        (Algorithm::Ngram, Shape::chain(4)),
        (Algorithm::Ngram, Shape::TREE),
        (Algorithm::Eagle3, Shape::chain(4)),
        (Algorithm::Eagle3, Shape::TREE),
    ]
    .into_iter()
    .enumerate()
    {
        for policy in [None, Some(Policy::Restless)] {
            let (tp, dp) = [(1, 1), (2, 1), (2, 2)][(at + usize::from(policy.is_some())) % 3];
            let setup = Setup {
                dp,
                policy,
                ..Setup::drafting(Dtype::Float32, tp, algorithm, shape)
            };
            let expected = oracle.answers(setup.form(), requests());
            let (registry, _) = Policy::Restless.watched();
            let mut engine = setup.start_with(registry);
            let what = format!("{setup:?}");
            let found = run(&what, &mut engine, &jobs, |_| {});
            for (job, (found, expected)) in found.iter().zip(&expected).enumerate() {
                compare(&format!("job {job}, {what}"), found, expected);
            }
            judge(&what, &jobs, &found);
            accepted += engine.speculation().accepted_tokens;
            idle(&mut engine);
        }
    }
    assert!(accepted > 100, "{accepted}");
}

/// A limit that is never reached, or that no thought has, changes no bit of a text, with drafts
/// and without.
#[test]
fn a_budget_that_is_not_spent_changes_nothing() {
    let with = |constraint: Option<Arc<Constraint>>| -> Vec<Job> {
        (0..6).map(|at| job(at, constraint.clone())).collect()
    };
    let plain = with(None);
    let requests = plain.iter().map(|job| &job.request);
    let expected = Oracle::default().answers(Form::of_ranks(1), requests);
    let budgets = [
        limited(NEVER, None, anything()),
        limited(0, Some("<t>"), anything()),
    ];
    for setup in [
        Setup::plain(Dtype::Float32, 1),
        Setup::drafting(Dtype::Float32, 1, Algorithm::Eagle3, Shape::TREE),
    ] {
        for budget in &budgets {
            let jobs = with(Some(budget.clone()));
            let mut engine = setup.start_with(Registry::builtin());
            let what = format!("{setup:?}, {budget:?}");
            let found = run(&what, &mut engine, &jobs, |_| {});
            for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                compare(&format!("job {at}, {what}"), found, expected);
            }
            idle(&mut engine);
        }
    }
}

/// On a GPU, which drafts by itself, with masks of the host and of the device.
#[test]
fn budgets_end_thoughts_alike_on_gpus() {
    let mut jobs = jobs();
    jobs.drain(..4);
    jobs.truncate(4);
    for job in &mut jobs {
        job.arrival = 0;
        job.request.max_new_tokens = 12;
        job.request.generation.logprobs = LogprobParams::default();
    }
    let (expected, _, _) = on_gpus(&Setup::plain(Dtype::Float32, 1), &jobs);
    judge("on GPUs", &jobs, &expected);
    let setups = [
        Setup::plain(Dtype::Float32, 1),
        Setup::drafting(Dtype::Float32, 1, Algorithm::Eagle3, Shape::chain(3)),
    ];
    for (setup, masks) in setups.into_iter().zip([MaskPlace::Device, MaskPlace::Host]) {
        let setup = Setup {
            masks,
            policy: setup.speculation.map(|_| Policy::Restless),
            ..setup
        };
        let (found, _, _) = on_gpus(&setup, &jobs);
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            compare(&format!("job {at}, {masks:?}"), found, expected);
        }
    }
}

/// A request that is retracted inside its thought counts on from where it was.
#[test]
fn retracted_thoughts_keep_their_budgets() {
    let jobs = jobs();
    let requests = jobs.iter().map(|job| &job.request);
    let expected = Oracle::default().answers(Form::of_ranks(1), requests);
    let setup = Setup {
        page: 4,
        tokens: 320,
        care: 0,
        ..Setup::drafting(Dtype::Float32, 1, Algorithm::Ngram, Shape::chain(4))
    };
    let mut engine = setup.start_with(Registry::builtin());
    let found = run("retracted", &mut engine, &jobs, |_| {});
    assert!(engine.load().counters.retractions > 0);
    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
        compare(&format!("job {at}"), found, expected);
    }
    judge("retracted", &jobs, &found);
    idle(&mut engine);
}

/// Modes that accept by chance keep budgets too.
#[test]
fn other_ways_to_verify_keep_budgets() {
    let jobs = jobs();
    for (verification, shape) in [
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
        judge(&what, &jobs, &found);
        idle(&mut engine);
    }
}
