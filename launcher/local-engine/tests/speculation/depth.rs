//! The depth of drafts may change from step to step, and from request to request.

use lockstep_types::Dtype;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use crate::{
    goldens::GOLDENS,
    load::{idle, run},
    oracle::{Oracle, compare, golden_answers},
    requests::{Job, golden, random},
    setup::{Algorithm, Form, Setup, Shape},
};

const CHAIN: Shape = Shape::chain(5);

#[test]
fn the_depth_may_change_with_every_step() {
    for (at, algorithm) in Algorithm::ALL.into_iter().enumerate() {
        let shape = if at % 2 == 0 { CHAIN } else { Shape::TREE };
        let setup = Setup {
            chunk: Some(24),
            pause_window: 3,
            ..Setup::drafting(Dtype::Float32, 1, algorithm, shape)
        };
        let jobs = random(at as u64, 16, 12);
        let requests = jobs.iter().map(|job| &job.request);
        let expected = Oracle::default().answers(Form::of_ranks(1), requests);
        let mut engine = setup.start();
        let mut rng = StdRng::seed_from_u64(at as u64);
        let found = run(&format!("{setup:?}"), &mut engine, &jobs, |engine| {
            // Often no drafts at all, for some steps in a row.
            if rng.random_bool(0.5) {
                engine.set_draft_steps(rng.random_range(0..=6u32).saturating_sub(1));
            }
        });
        for (job, (found, expected)) in found.iter().zip(&expected).enumerate() {
            compare(&format!("{setup:?}, job {job}"), found, expected);
        }
        assert!(engine.speculation().accepted_tokens > 0, "{setup:?}");
        idle(&mut engine);
    }
}

/// Drafts are as good after a pause as before: a text's accepted lengths do not suffer from
/// steps without drafts before its prefix was cached.
#[test]
fn drafts_after_a_pause_are_as_good_as_before() {
    for algorithm in [
        Algorithm::Eagle3,
        Algorithm::Eagle,
        Algorithm::Standalone,
        Algorithm::Dflash,
    ] {
        let mut engine = Setup::drafting(Dtype::Float32, 1, algorithm, CHAIN).start();
        // One of each domain.
        let texts: Vec<_> = GOLDENS.iter().step_by(2).map(golden).collect();
        let mut accepted = Vec::new();
        let mut count = |engine: &mut lockstep_local_engine::LocalEngine| {
            let before = engine.speculation().accepted_tokens;
            engine.run(texts.clone()).unwrap();
            accepted.push(engine.speculation().accepted_tokens - before);
        };
        count(&mut engine);
        idle(&mut engine);
        // Nothing is drafted, and everything is cached.
        engine.set_draft_steps(0);
        count(&mut engine);
        engine.set_draft_steps(CHAIN.steps as u32);
        count(&mut engine);
        assert_eq!(
            (accepted[1], accepted[2]),
            (0, accepted[0]),
            "{algorithm:?}"
        );
        assert!(accepted[0] > 0);
        idle(&mut engine);
    }
}

#[test]
fn requests_that_opted_out_run_beside_others() {
    let setup = Setup::drafting(Dtype::Float32, 2, Algorithm::Eagle3, CHAIN);
    let job = |(at, text)| {
        let mut request = golden(text);
        request.generation.max_draft_steps = [None, Some(0), Some(2)][at % 3];
        Job {
            request,
            arrival: at % 4,
            patience: None,
        }
    };
    let jobs: Vec<Job> = GOLDENS.iter().enumerate().map(job).collect();
    let expected = golden_answers(Form::of_ranks(2));
    let mut engine = setup.start();
    // In the second round prompts come from the cache, which requests of all kinds have
    // filled, and every request has another role.
    for round in 0..2 {
        let mut jobs = jobs.clone();
        for (at, job) in jobs.iter_mut().enumerate() {
            job.request.generation.max_draft_steps = [None, Some(0), Some(2)][(at + round) % 3];
        }
        let found = run("opting out", &mut engine, &jobs, |_| {});
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let what = format!("prompt {at}, round {round}");
            compare(&what, found, expected);
            let usage = found.finish.clone().unwrap().speculation;
            let deepest = usage.as_ref().map_or(0, |usage| usage.proposed.len());
            let limit = jobs[at].request.generation.max_draft_steps;
            assert!(deepest <= limit.unwrap_or(5) as usize, "{what}: {usage:?}");
            let drafts = limit != Some(0) && expected.token_ids.len() > 1;
            assert_eq!(usage.is_some(), drafts, "{what}: {usage:?}");
        }
        engine.check_integrity().unwrap();
    }
    idle(&mut engine);
}
