//! A model whose layers have sliding windows of different sizes, and none. Its texts have the
//! same bits with chunks, pages of any size, cached prefixes, drafts and trees, on ranks and DP
//! ranks, and on GPUs. Pages behind the windows go back while requests run.

use lockstep_local_engine::{Completion, LocalEngine};
use lockstep_types::Dtype;
use lockstep_types::request::Request;

use crate::{
    cuda::alone,
    goldens::GOLDENS,
    load::{idle, run},
    requests::{Job, golden},
    setup::{Algorithm, Layers, Setup, Shape, WINDOWS},
    two_caches::{answers, jobs, jobs_of_devices, on_gpus, same, with_drafts},
};

fn plain((tp, dp): (usize, usize)) -> Setup {
    Setup {
        layers: Layers::Windows,
        dp,
        ..Setup::plain(Dtype::Float32, tp)
    }
}

#[test]
fn chunks_pages_and_cached_prefixes_change_no_bit() {
    let jobs = jobs(6, 20);
    for split in [(1, 1), (2, 1), (2, 2)] {
        let expected = answers(&plain(split), &jobs);
        for (page, chunk, overlap) in [(1, Some(7), true), (16, Some(24), false)] {
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

/// No layer keeps all positions, and drafters do.
#[test]
fn windows_in_all_layers_change_no_bit() {
    for (page, split) in [(4, (1, 1)), (16, (2, 2))] {
        let jobs = jobs_with_stems(page);
        let without = Setup {
            layers: Layers::WindowsAlone,
            radix: false,
            ..small(page, split)
        };
        let load = without.start().load();
        // Two groups with windows, each with fewer pages than the first group has.
        assert!((1..2 * load.kv_tokens_total).contains(&load.kv_window_tokens_total));
        let expected = answers(&without, &jobs);
        for (overlap, speculation) in [
            (true, None),
            (true, Some((Algorithm::Eagle3, Shape::TREE))),
            (false, Some((Algorithm::Standalone, Shape::chain(3)))),
        ] {
            let setup = Setup {
                overlap,
                speculation,
                radix: true,
                ..without.clone()
            };
            cold_and_warm(&setup, &jobs, &expected);
        }
    }
}

/// Few slots and short chunks, so that groups with windows have fewer pages than the others.
fn small(page: usize, split: (usize, usize)) -> Setup {
    Setup {
        page,
        chunk: Some(16),
        running: 4 * split.1,
        tokens: 2048,
        radix: true,
        ..plain(split)
    }
}

/// Asserts that groups with windows have fewer pages, and returns the setup's answers.
fn answers_of_small(setup: &Setup, jobs: &[Job]) -> Vec<Completion> {
    let load = setup.start().load();
    let windows = WINDOWS.iter().flatten().count() as u64;
    assert!(load.kv_window_tokens_total < windows * load.kv_tokens_total);
    answers(setup, jobs)
}

/// Prompts that begin alike for as long as the widest window, one position more or less, and up
/// to the ends of pages.
pub fn jobs_with_stems(page: usize) -> Vec<Job> {
    jobs_at([widest(), 2 * page, 3 * page], 24)
}

/// The widest of [`WINDOWS`].
pub fn widest() -> usize {
    WINDOWS.iter().flatten().max().copied().unwrap_or(0)
}

/// Prompts that begin alike up to each of `edges`, one position more or less.
pub fn jobs_at(edges: [usize; 3], max_new_tokens: u32) -> Vec<Job> {
    let stem = GOLDENS.iter().flat_map(|golden| &golden.prompt_ids);
    let lengths = edges.map(|at| [at - 1, at, at + 1]);
    let job = |(number, length): (usize, usize)| {
        let mut request = golden(&GOLDENS[0]);
        request.input_ids = stem.clone().copied().take(length).collect();
        request.input_ids.extend([91, 92 + number as u32, 93]);
        Job {
            request: Request {
                max_new_tokens,
                ..request
            },
            arrival: 3 * number,
            patience: None,
        }
    };
    lengths.concat().into_iter().enumerate().map(job).collect()
}

/// Runs the jobs twice, the second time with some cached prefixes, and compares both answers.
pub fn cold_and_warm(setup: &Setup, jobs: &[Job], expected: &[Completion]) {
    let mut engine = setup.start();
    for what in ["cold", "warm"] {
        let found = run(what, &mut engine, jobs, |_| {});
        same(&format!("{what}, {setup:?}"), &found, expected);
    }
    assert!(engine.load().counters.cached_tokens > 0, "{setup:?}");
    idle(&mut engine);
}

#[test]
fn hits_at_the_edges_of_windows_change_no_bit() {
    for (page, split) in [(1, (1, 1)), (16, (1, 1)), (64, (1, 1)), (16, (2, 2))] {
        let jobs = jobs_with_stems(page.max(2));
        let without = Setup {
            radix: false,
            ..small(page, split)
        };
        let expected = answers_of_small(&without, &jobs);
        for (overlap, speculation) in [
            (true, None),
            (true, Some((Algorithm::Eagle3, Shape::TREE))),
            (false, Some((Algorithm::Ngram, Shape::chain(4)))),
        ] {
            let setup = Setup {
                overlap,
                speculation,
                ..small(page, split)
            };
            cold_and_warm(&setup, &jobs, &expected);
        }
    }
}

/// Requests that are often retracted, for want of pages of the layers without windows.
#[test]
fn scarce_pages_change_no_bit() {
    let mut jobs = jobs(8, 120);
    for job in &mut jobs {
        job.request.generation.sampling.ignore_eos = true;
    }
    for page in [1, 4] {
        let expected = answers_of_small(&small(page, (1, 1)), &jobs);
        for speculation in [None, Some((Algorithm::Standalone, Shape::TREE))] {
            let scarce = Setup {
                speculation,
                tokens: 360,
                care: 0,
                ..small(page, (1, 1))
            };
            let mut engine = scarce.start();
            let found = run("scarce", &mut engine, &jobs, |_| {});
            assert!(engine.load().counters.retractions > 0, "{scarce:?}");
            same(&format!("{scarce:?}"), &found, &expected);
            idle(&mut engine);
        }
    }
}

/// A request that goes on has pages of its windows alone.
#[test]
fn a_long_text_holds_the_pages_of_its_windows() {
    let setup = small(4, (1, 1));
    let mut engine: LocalEngine = setup.start();
    let mut job = jobs(1, 200).remove(0);
    job.request.generation.sampling.ignore_eos = true;
    let mut used = Vec::new();
    run("long", &mut engine, &[job], |engine| {
        let load = engine.load();
        used.push((load.kv_tokens_used, load.kv_window_tokens_used));
    });
    let (all, windows) = used.last().copied().unwrap_or_default();
    let most: usize = WINDOWS.iter().flatten().map(|window| window + 4 * 4).sum();
    assert!(all > 200 && windows <= most as u64, "{all}, {windows}");
    idle(&mut engine);
}

/// A deep node of a tree does not see its first ancestors in the narrow layers.
#[test]
fn drafts_change_no_bit() {
    let (jobs, mut accepted) = (jobs(6, 40), 0);
    let drafts = [
        (Algorithm::Ngram, Shape::chain(5), 4),
        (Algorithm::Ngram, Shape::TREE, 1),
        (Algorithm::Standalone, Shape::TREE, 16),
    ];
    for split in [(1, 1), (2, 2)] {
        accepted += with_drafts(&plain(split), &jobs, &drafts);
    }
    assert!(accepted > 0);
}

/// Tiles of a GPU and trees that it grows itself see by positions too.
#[test]
fn drafts_on_gpus_change_no_bit() {
    let _alone = alone(4);
    let (jobs, mut accepted) = (jobs_of_devices(10), 0);
    let drafts = [
        (Algorithm::Ngram, Shape::TREE, 4),
        (Algorithm::Standalone, Shape::TREE, 16),
    ];
    accepted += with_drafts(&on_gpus(&plain((1, 1))), &jobs, &drafts);
    let alone = Setup {
        layers: Layers::WindowsAlone,
        ..plain((1, 1))
    };
    accepted += with_drafts(&on_gpus(&alone), &jobs, &drafts[1..]);
    assert!(accepted > 0);
}
