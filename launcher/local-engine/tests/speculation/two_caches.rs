//! A model with two groups of layers, each with its own pages. Its texts have the same bits
//! with chunks, pages of any size, cached prefixes, drafts and trees, on ranks and DP ranks, and
//! on GPUs.

use lockstep_local_engine::Completion;
use lockstep_types::Dtype;
use lockstep_types::request::{Finish, Request};
use lockstep_types::sampling::LogprobParams;

use crate::{
    cuda::alone,
    goldens::GOLDENS,
    load::{idle, run},
    oracle::compare,
    requests::{Job, golden},
    setup::{Algorithm, Layers, Setup, Shape},
};

/// Numbers of ranks, and of DP ranks among them.
pub const SPLITS: [(usize, usize); 3] = [(1, 1), (2, 1), (2, 2)];

/// Returns requests that come one after the other. Pairs of them begin alike.
pub fn jobs(count: usize, max_new_tokens: u32) -> Vec<Job> {
    let job = |number: usize| {
        let mut request = golden(&GOLDENS[number / 2]);
        if number % 2 == 1 {
            let ids = &mut request.input_ids;
            ids.truncate(ids.len() - 2);
            ids.extend([91, 92, 93]);
        }
        Job {
            request: Request {
                max_new_tokens,
                ..request
            },
            arrival: number,
            patience: None,
        }
    };
    (0..count).map(job).collect()
}

fn plain((tp, dp): (usize, usize)) -> Setup {
    Setup {
        layers: Layers::TwoCaches,
        dp,
        ..Setup::plain(Dtype::Float32, tp)
    }
}

fn finishes(found: &[Completion]) -> impl Iterator<Item = &Finish> {
    found.iter().filter_map(|found| found.finish.as_ref())
}

/// Returns the number of accepted drafts.
fn accepted_by(found: &[Completion]) -> u32 {
    let drafts = finishes(found).filter_map(|finish| finish.speculation.as_ref());
    drafts.map(|drafts| drafts.accepted_tokens()).sum()
}

/// Compares answers one by one.
pub fn same(what: &str, found: &[Completion], expected: &[Completion]) {
    for (number, (found, expected)) in found.iter().zip(expected).enumerate() {
        compare(&format!("{what}, request {number}"), found, expected);
    }
}

/// Runs the jobs twice, the second time with cached prefixes, and compares both answers.
pub fn answers(setup: &Setup, jobs: &[Job]) -> Vec<Completion> {
    let mut engine = setup.start();
    let cold = run("cold", &mut engine, jobs, |_| {});
    let warm = run("warm", &mut engine, jobs, |_| {});
    same(&format!("warm, {setup:?}"), &warm, &cold);
    let hits = finishes(&warm).all(|finish| finish.usage.cached_tokens > 0);
    assert_eq!(hits, setup.radix, "{setup:?}");
    idle(&mut engine);
    cold
}

/// Compares answers with each of `drafts`, and pages of that many tokens, to those without drafts.
/// Returns the number of accepted drafts.
pub fn with_drafts(plain: &Setup, jobs: &[Job], drafts: &[(Algorithm, Shape, usize)]) -> u32 {
    let expected = answers(plain, jobs);
    let mut accepted = 0;
    for (algorithm, shape, page) in drafts {
        let setup = Setup {
            speculation: Some((*algorithm, *shape)),
            page: *page,
            radix: true,
            ..plain.clone()
        };
        let found = answers(&setup, jobs);
        same(&format!("{setup:?}"), &found, &expected);
        accepted += accepted_by(&found);
    }
    accepted
}

/// Returns the setup on GPUs. No pass has more than 64 tokens, so that all have the same bits.
pub fn on_gpus(setup: &Setup) -> Setup {
    Setup {
        gpus: true,
        chunk: Some(2 * 16),
        running: 8,
        tokens: 1024,
        ..setup.clone()
    }
}

/// Returns two of [`jobs`] without log-probabilities, so that a device chooses their tokens.
pub fn jobs_of_devices(max_new_tokens: u32) -> Vec<Job> {
    let mut jobs = jobs(2, max_new_tokens);
    for job in &mut jobs {
        job.request.generation.logprobs = LogprobParams::default();
    }
    jobs
}

#[test]
fn chunks_pages_and_cached_prefixes_change_no_bit() {
    let jobs = jobs(8, 20);
    for split in SPLITS {
        let expected = answers(&plain(split), &jobs);
        for (page, chunk, overlap) in [(1, Some(7), true), (4, None, false), (16, Some(24), true)] {
            let setup = Setup {
                page,
                chunk,
                overlap,
                radix: true,
                ..plain(split)
            };
            same(&format!("{setup:?}"), &answers(&setup, &jobs), &expected);
        }
    }
}

/// Requests that are often retracted, for want of pages.
#[test]
fn scarce_pages_change_no_bit() {
    let jobs = jobs(10, 40);
    let expected = answers(&plain((1, 1)), &jobs);
    let scarce = Setup {
        page: 4,
        tokens: 400,
        care: 0,
        radix: true,
        ..plain((1, 1))
    };
    let mut engine = scarce.start();
    let found = run("scarce", &mut engine, &jobs, |_| {});
    assert!(engine.load().counters.retractions > 0);
    same("scarce", &found, &expected);
    idle(&mut engine);
}

#[test]
fn drafts_change_no_bit() {
    let (jobs, mut accepted) = (jobs(8, 40), 0);
    let drafts = [
        (Algorithm::Ngram, Shape::chain(5), 4),
        (Algorithm::Ngram, Shape::TREE, 1),
        (Algorithm::Standalone, Shape::TREE, 16),
    ];
    for split in SPLITS {
        accepted += with_drafts(&plain(split), &jobs, &drafts);
    }
    assert!(accepted > 0);
}

/// The device chooses tokens of requests without log-probabilities, and moves the cells of
/// accepted nodes in both groups. No pass has more than 64 tokens, so that all have the same
/// bits.
#[test]
fn drafts_on_gpus_change_no_bit() {
    let _alone = alone(3);
    let (jobs, mut accepted) = (jobs_of_devices(16), 0);
    let drafts = [
        (Algorithm::Ngram, Shape::TREE, 4),
        (Algorithm::Standalone, Shape::TREE, 16),
    ];
    for split in [(1, 1), (2, 2)] {
        accepted += with_drafts(&on_gpus(&plain(split)), &jobs, &drafts);
    }
    assert!(accepted > 0);
}
