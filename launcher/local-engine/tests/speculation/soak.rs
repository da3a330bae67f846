//! Random load for `LOCKSTEP_SOAK_MINUTES` minutes (20 by default), on one engine of random
//! settings after another:
//!
//! ```text
//! cargo test --release -p lockstep-local-engine --test speculation -- --ignored soak --nocapture
//! ```
//!
//! Requests arrive, leave, crowd each other out of a tiny KV pool and draft as deep as they
//! may, while the engine's own depth changes. Each finished text is compared with the text
//! of the same request alone, without speculation. The planner's books are checked after
//! every step, and an engine at its end must hold nothing. `LOCKSTEP_SOAK_SEED` repeats a
//! run's engines.

use std::time::{Duration, Instant};

use lockstep_local_engine::Completion;
use lockstep_types::Dtype;
use lockstep_types::request::FinishReason;
use rand::{Rng, SeedableRng as _, rngs::StdRng};

use crate::{
    load::{idle, run},
    oracle::{Oracle, compare},
    requests::random,
    setup::{Algorithm, CONTEXT, Setup, Shape},
};

/// Requests of one engine.
const REQUESTS: usize = 120;

/// Sums over all engines.
#[derive(Debug, Default)]
struct Tally {
    engines: u64,
    requests: u64,
    tokens: u64,
    steps: u64,
    drafted: u64,
    accepted: u64,
    aborted: u64,
    retractions: u64,
    cached: u64,
    evicted: u64,
}

#[test]
#[ignore = "runs for minutes"]
fn soak() {
    let minutes: f64 = read("LOCKSTEP_SOAK_MINUTES", 20.0);
    let first: u64 = read("LOCKSTEP_SOAK_SEED", 1);
    let (start, limit) = (Instant::now(), Duration::from_secs_f64(minutes * 60.0));
    let (mut oracle, mut tally, mut minute) = (Oracle::default(), Tally::default(), 0);
    for seed in first.. {
        engine(seed, &mut oracle, &mut tally);
        let passed = start.elapsed();
        if passed.as_secs() / 60 > minute || passed >= limit {
            minute = passed.as_secs() / 60;
            println!(
                "{:.1} min, seeds {first} to {seed}: {tally:?}",
                passed.as_secs_f64() / 60.0
            );
        }
        if passed >= limit {
            break;
        }
    }
    let rare = [tally.aborted, tally.retractions, tally.accepted];
    let tokens = [tally.cached, tally.evicted];
    let met = rare.iter().chain(&tokens).all(|count| *count > 0);
    // A few engines may not meet every event.
    assert!(met || tally.engines < 20, "{tally:?}");
}

pub fn read<T: std::str::FromStr>(name: &str, default: T) -> T {
    let Ok(text) = std::env::var(name) else {
        return default;
    };
    let Ok(value) = text.parse() else {
        panic!("{name}={text} is no number");
    };
    value
}

/// Runs one engine from its start to its end.
fn engine(seed: u64, oracle: &mut Oracle, tally: &mut Tally) {
    let mut rng = StdRng::seed_from_u64(seed);
    let setup = setup(seed, &mut rng);
    let turns = rng.random_range(20..200);
    let jobs = random(seed, REQUESTS, turns);
    let expected = oracle.alone(setup.form(), &jobs);
    let deepest = setup.speculation.map_or(0, |(_, shape)| shape.steps) as u32;
    let adapts = rng.random_bool(0.5);
    let mut engine = setup.start();
    let what = format!("seed {seed}, {setup:?}");
    let found = run(&what, &mut engine, &jobs, |engine| {
        if adapts && rng.random_bool(0.1) {
            engine.set_draft_steps(rng.random_range(0..=deepest));
        }
    });
    for (job, (found, expected)) in found.iter().zip(&expected).enumerate() {
        compare(&format!("job {job}, {what}"), found, expected);
    }
    let (counters, drafts) = (engine.load().counters, engine.speculation());
    tally.engines += 1;
    tally.requests += found.iter().filter(|answer| finished(answer)).count() as u64;
    tally.tokens += counters.generated_tokens;
    tally.steps += counters.steps;
    tally.drafted += drafts.draft_tokens;
    tally.accepted += drafts.accepted_tokens;
    tally.aborted += counters.aborted;
    tally.retractions += counters.retractions;
    tally.cached += counters.cached_tokens;
    tally.evicted += counters.evicted_tokens;
    idle(&mut engine);
}

fn finished(answer: &Completion) -> bool {
    let finish = answer.finish.as_ref().expect("it ended");
    finish.outcome != Ok(FinishReason::Abort)
}

/// Setup of an engine. Algorithms, pages and ranks rotate with the seed; the rest is random.
fn setup(seed: u64, rng: &mut StdRng) -> Setup {
    let turn = seed as usize;
    let algorithm = Algorithm::ALL[turn % 4];
    let page = [1, 16, 64][turn % 3];
    let shape = if rng.random() {
        Shape::chain(rng.random_range(1..=7))
    } else {
        let (steps, topk) = (rng.random_range(1..=4), rng.random_range(2..=5));
        let tokens = rng.random_range(1..=steps * topk) + 1;
        Shape {
            steps,
            topk,
            tokens: tokens.max(steps + 1),
        }
    };
    let dtype = if rng.random() {
        Dtype::Bfloat16
    } else {
        Dtype::Float32
    };
    let written = (shape.steps * shape.topk).max(shape.tokens);
    let least = (CONTEXT + 2 * (written + page)).div_ceil(page);
    Setup {
        page,
        chunk: [None, Some(7), Some(33), Some(128)][rng.random_range(0..4)],
        overlap: rng.random(),
        radix: rng.random_bool(0.75),
        running: rng.random_range(1..=24),
        care: [0, 0, 1000][rng.random_range(0..3)],
        tokens: (least + rng.random_range(0..=least / 2)) * page,
        ..Setup::drafting(dtype, 1 + turn / 4 % 2, algorithm, shape)
    }
}
