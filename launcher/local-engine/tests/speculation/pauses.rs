//! Drafters do almost nothing in steps without drafts, and catch up afterwards.

use lockstep_local_engine::{Completion, LocalEngine};
use lockstep_types::{Dtype, request::Request};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use crate::{
    goldens::{GOLDENS, Golden},
    load::{idle, run},
    oracle::compare,
    requests::{Job, golden},
    setup::{Algorithm, Setup, Shape},
};

const CHAIN: Shape = Shape::chain(5);
const WITH_KV: [Algorithm; 4] = [
    Algorithm::Eagle3,
    Algorithm::Eagle,
    Algorithm::Standalone,
    Algorithm::Dflash,
];
/// Window that holds all tokens that these tests let a request miss, prompts included.
const WIDE: usize = 256;
const NARROW: usize = 8;

fn setup(algorithm: Algorithm, shape: Shape) -> Setup {
    Setup {
        pause_window: WIDE,
        ..Setup::drafting(Dtype::Float32, 1, algorithm, shape)
    }
}

fn jobs(requests: impl IntoIterator<Item = Request>) -> Vec<Job> {
    let job = |request| Job {
        request,
        arrival: 0,
        patience: None,
    };
    requests.into_iter().map(job).collect()
}

fn accepted(engine: &LocalEngine) -> u64 {
    engine.speculation().accepted_tokens
}

/// Goldens with long answers and with prompts that fit in one step together.
fn long() -> Vec<&'static Golden> {
    let long = GOLDENS.iter().filter(|text| text.output_ids.len() > 40);
    let long: Vec<_> = long.collect();
    assert!(long.len() > 8);
    long
}

/// Runs requests for `texts`. `depth` gives the depth before every step. Returns the
/// answers, and the accepted drafts after each step.
fn follow(
    setup: &Setup,
    texts: &[&Golden],
    mut depth: impl FnMut(usize) -> usize,
) -> (LocalEngine, Vec<Completion>, Vec<u64>) {
    let mut engine = setup.start();
    let (mut turn, mut counts) = (0, Vec::new());
    let requests = jobs(texts.iter().map(|text| golden(text)));
    let found = run(&format!("{setup:?}"), &mut engine, &requests, |engine| {
        engine.set_draft_steps(depth(turn) as u32);
        counts.push(accepted(engine));
        turn += 1;
    });
    (engine, found, counts)
}

/// Depths of steps: drafts for some steps, then a pause of at most `most` steps, in turn.
fn phases(seed: u64, deepest: usize, most: usize) -> Vec<usize> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut depths = Vec::new();
    while depths.len() < 400 {
        for _ in 0..rng.random_range(1..4) {
            depths.push(rng.random_range(1..=deepest));
        }
        depths.resize(depths.len() + rng.random_range(1..=most), 0);
    }
    depths
}

#[test]
fn a_pause_within_the_window_leaves_no_trace() {
    let all: Vec<_> = GOLDENS.iter().collect();
    for (at, algorithm) in WITH_KV.into_iter().enumerate() {
        for shape in algorithm.shapes([CHAIN, Shape::TREE]) {
            let late = Setup {
                tp: 1 + at % 2,
                page: [1, 16, 64][at % 3],
                ..setup(algorithm, shape)
            };
            let at_once = Setup {
                pause_window: 0,
                ..late.clone()
            };
            let depths = phases(at as u64, shape.steps, 24);
            let (_, found, counts) = follow(&late, &all, |turn| depths[turn]);
            let (_, expected, wanted) = follow(&at_once, &all, |turn| depths[turn]);
            assert_eq!(counts, wanted, "{late:?}");
            assert!(counts.last() > Some(&50), "{late:?}: {counts:?}");
            for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                compare(&format!("{late:?}, prompt {at}"), found, expected);
            }
        }
    }
}

/// Prompts come while nothing is drafted, whole or in chunks. The drafter takes them in with
/// the next step that drafts.
#[test]
fn prompts_that_come_in_a_pause_are_taken_in_late() {
    let texts = long();
    for (at, algorithm) in WITH_KV.into_iter().enumerate() {
        for (page, chunk) in [(16, None), (16, Some(24)), (64, Some(6))] {
            let late = Setup {
                running: 3,
                page,
                chunk,
                ..setup(algorithm, CHAIN)
            };
            let at_once = Setup {
                pause_window: 0,
                ..late.clone()
            };
            let mut depths = phases(at as u64, CHAIN.steps, 24);
            depths.splice(..0, [0; 8]);
            let (_, found, counts) = follow(&late, &texts, |turn| depths[turn]);
            let (_, expected, wanted) = follow(&at_once, &texts, |turn| depths[turn]);
            assert_eq!(counts, wanted, "{late:?}");
            assert!(counts.last() > Some(&20), "{late:?}: {counts:?}");
            for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                compare(&format!("{late:?}, prompt {at}"), found, expected);
            }
        }
    }
}

/// A drafter's pass holds few tokens where requests are few, so the missed tokens of all
/// requests do not fit in one pass.
#[test]
fn catching_up_takes_as_many_passes_as_it_needs() {
    let texts = long();
    for algorithm in WITH_KV {
        let late = Setup {
            running: texts.len(),
            chunk: Some(8),
            ..setup(algorithm, Shape::chain(1))
        };
        let limits = late.config().step_limits();
        assert!(limits.draft_tokens() < 25 * texts.len(), "{limits:?}");
        let at_once = Setup {
            pause_window: 0,
            ..late.clone()
        };
        let depth = |turn: usize| usize::from(turn % 31 == 30);
        let (_, _, counts) = follow(&late, &texts, depth);
        let (_, _, all) = follow(&at_once, &texts, depth);
        assert_eq!(counts, all, "{algorithm:?}");
        assert!(counts.last() > Some(&0), "{algorithm:?}");
    }
}

/// Requests that went on for longer than the window draft again, as if their texts began
/// with the last pages. Texts stay the same, and most of the drafts are as good.
#[test]
fn who_paused_for_longer_than_the_window_drafts_with_what_it_holds() {
    let texts = long();
    for algorithm in WITH_KV {
        for shape in algorithm.shapes([CHAIN, Shape::TREE]) {
            let late = Setup {
                pause_window: NARROW,
                page: 4,
                ..setup(algorithm, shape)
            };
            let at_once = Setup {
                pause_window: 0,
                ..late.clone()
            };
            let depth = |turn| if turn < 2 * NARROW { 0 } else { shape.steps };
            let (mut engine, found, counts) = follow(&late, &texts, depth);
            let (_, _, all) = follow(&at_once, &texts, depth);
            let (found_accepted, all) = (counts.last(), all.last());
            let few = found_accepted.zip(all).map(|(few, all)| (*few, *all));
            let (few, all) = few.expect("steps ran");
            assert!(few > all / 2 && all > 50, "{late:?}: {few} of {all}");
            for (at, (found, text)) in found.iter().zip(&texts).enumerate() {
                assert_eq!(found.token_ids, text.output_ids, "{late:?}, prompt {at}");
            }
            idle(&mut engine);
        }
    }
}

/// Keys and values computed while nothing was drafted are a prefix for other requests,
/// unless they are short: then the requests draft without them.
#[test]
fn the_next_turn_after_a_pause_drafts_nearly_as_well() {
    let texts = long();
    for algorithm in WITH_KV {
        let setup = Setup {
            page: 4,
            ..setup(algorithm, CHAIN)
        };
        let (mut engine, found, _) = follow(&setup, &texts, |_| 0);
        let next = texts.iter().zip(&found).map(|(text, answer)| {
            let mut request = golden(text);
            request.input_ids.extend(&answer.token_ids[..40]);
            request.input_ids.extend([7, 9]);
            request.max_new_tokens = 40;
            request
        });
        let next = jobs(next);
        let cold = Setup {
            radix: false,
            ..setup.clone()
        };
        let (mut counts, mut answers) = (Vec::new(), Vec::new());
        let cached = engine.load().counters.cached_tokens;
        for engine in [&mut engine, &mut cold.start()] {
            engine.set_draft_steps(CHAIN.steps as u32);
            let before = accepted(engine);
            let found = run("the next turn", engine, &next, |_| {});
            counts.push(accepted(engine) - before);
            answers.push(found);
        }
        let cached = engine.load().counters.cached_tokens - cached;
        assert!(cached > 100, "{algorithm:?}: {cached} cached");
        let [few, all] = counts[..] else {
            panic!("two runs")
        };
        // The demo's DFlash model is young.
        let least = if algorithm == Algorithm::Dflash {
            30
        } else {
            50
        };
        assert!(
            few > all / 2 && all > least,
            "{algorithm:?}: {few} of {all}"
        );
        for (at, (found, expected)) in answers[0].iter().zip(&answers[1]).enumerate() {
            compare(&format!("{algorithm:?}, prompt {at}"), found, expected);
        }
    }
}
