//! A text has the same bits with data-parallel attention and adaptive depth as without
//! speculation, on any DP rank and beside any other requests.
//!
//! Ordinary runs replace the product of algorithm, shape, page size and ranks by an
//! orthogonal array: over [`rows`] every pair of values of two of them meets
//! ([`every_pair_meets`] counts). The whole product runs on request:
//!
//! ```text
//! cargo test --release -p lockstep-local-engine --test speculation -- --ignored data_parallel --nocapture
//! ```

use std::{sync::atomic::Ordering, time::Instant};

use lockstep_types::Dtype;
use lockstep_types::request::Request;

use crate::{
    goldens::GOLDENS,
    load::{idle, run},
    matrix::{Met, check},
    oracle::{Oracle, compare, golden_answers},
    policies::Policy,
    requests::{Job, golden, random},
    setup::{Algorithm, CONTEXT, Form, Setup, Shape},
};

/// Numbers of ranks and of DP ranks.
const RANKS: [(usize, usize); 3] = [(2, 2), (4, 4), (4, 2)];
const PAGES: [usize; 2] = [1, 16];

/// Random requests of a row.
const RANDOM: usize = 8;
/// Distance of the goldens that a row is asked: every fifth.
const EVERY: usize = 5;

/// Algorithm, page size, ranks and shape, each as a number.
type Row = [usize; 4];

/// Twelve rows: every algorithm on all ranks.
fn rows() -> impl Iterator<Item = Row> {
    (0..12).map(|at| {
        let (algorithm, ranks) = (at / 3, at % 3);
        [
            algorithm,
            (algorithm + ranks) % 2,
            ranks,
            (algorithm / 2 + ranks) % 2,
        ]
    })
}

fn setup([algorithm, page, ranks, tree]: Row) -> Setup {
    let (tp, dp) = RANKS[ranks];
    let shape = [Shape::chain(5), Shape::TREE][tree];
    // The other settings take turns.
    let turn = |every: usize| (algorithm + page + 2 * ranks).is_multiple_of(every);
    let page = PAGES[page];
    let dtype = if turn(4) {
        Dtype::Bfloat16
    } else {
        Dtype::Float32
    };
    let roomy = Setup {
        dp,
        policy: Some(Policy::ALL[(algorithm + ranks) % 3]),
        page,
        chunk: [Some(24 * dp as i64), None][usize::from(turn(3))],
        overlap: !turn(2),
        ..Setup::drafting(dtype, tp, Algorithm::ALL[algorithm], shape)
    };
    match turn(3) {
        false => roomy,
        // Just enough tokens for the longest request and the writes of the steps in flight.
        true => Setup {
            tokens: (CONTEXT + 3 * (shape.tokens + page)).next_multiple_of(page),
            care: 0,
            ..roomy
        },
    }
}

/// Runs an engine; counts the decisions of its ranks that changed the depth.
fn run_row(row: Row, random: usize, every: usize, oracle: &mut Oracle, met: &mut Met) -> u64 {
    let setup = setup(row);
    let policy = setup.policy.expect("all have one");
    let (registry, switches) = policy.watched();
    let seed = row.iter().fold(0, |seed, value| seed * 4 + *value as u64);
    let goldens = (seed as usize % every..GOLDENS.len()).step_by(every);
    check(&setup, registry, goldens, seed, random, oracle, met);
    switches.load(Ordering::Relaxed)
}

#[test]
fn texts_stay_the_same_on_dp_ranks_whose_depth_adapts() {
    let (mut oracle, mut met, mut switches) = (Oracle::default(), Met::default(), 0);
    for row in rows() {
        switches += run_row(row, RANDOM, EVERY, &mut oracle, &mut met);
    }
    met.enough();
    assert!(switches > 100, "{switches}");
}

#[test]
#[ignore = "takes long even in a release build"]
fn data_parallel_product() {
    let (mut oracle, mut met, mut switches) = (Oracle::default(), Met::default(), 0);
    let start = Instant::now();
    for at in 0..48 {
        let row = [at % 4, at / 4 % 2, at / 8 % 3, at / 24];
        switches += run_row(row, 40, 1, &mut oracle, &mut met);
        println!(
            "{at}: {row:?}, {:.0?}, {switches}, {met:?}",
            start.elapsed()
        );
    }
    met.enough();
}

/// Requests that name their DP rank. First all name the last one while the others idle, then
/// they are spread, then the planner chooses.
#[test]
fn a_text_is_the_same_on_every_dp_rank_and_beside_anybody() {
    for (at, (tp, dp)) in RANKS.into_iter().enumerate() {
        let form = Form {
            bf16: false,
            tp,
            dp,
        };
        let known = golden_answers(form);
        let algorithm = Algorithm::ALL[at];
        let setup = Setup {
            policy: Some(Policy::Restless),
            ..Setup::drafting(Dtype::Float32, tp, algorithm, Shape::chain(3))
        };
        let (registry, _) = Policy::Restless.watched();
        let mut engine = Setup { dp, ..setup }.start_with(registry);
        let placements: [&dyn Fn(usize) -> Option<u32>; 3] = [
            &|_| Some(dp as u32 - 1),
            &|number| Some((number % dp) as u32),
            &|_| None,
        ];
        for (turn, place) in placements.into_iter().enumerate() {
            let jobs: Vec<Job> = (turn..GOLDENS.len())
                .step_by(7)
                .map(|number| Job {
                    request: Request {
                        data_parallel_rank: place(number),
                        ..golden(&GOLDENS[number])
                    },
                    arrival: number % 5,
                    patience: None,
                })
                .collect();
            let found = run(&format!("{tp} ranks"), &mut engine, &jobs, |_| {});
            for (number, found) in (turn..).step_by(7).zip(&found) {
                let what = format!("{tp} ranks, {dp} DP ranks, placement {turn}, golden {number}");
                compare(&what, found, &known[number]);
            }
        }
        idle(&mut engine);
    }
}

/// Compares random requests alone with the same requests all at once.
#[test]
fn who_else_runs_on_a_dp_rank_changes_no_text() {
    let form = Form {
        bf16: false,
        tp: 2,
        dp: 2,
    };
    let jobs = random(77, 12, 5);
    let mut oracle = Oracle::default();
    let alone = oracle.alone(form, &jobs);
    let requests = jobs.iter().map(|job| &job.request);
    let together = oracle.answers(form, requests);
    for (at, (alone, together)) in alone.iter().zip(&together).enumerate() {
        compare(&format!("request {at}"), together, alone);
    }
}

#[test]
fn every_pair_meets() {
    let columns: Row = [4, 2, 3, 2];
    for a in 0..columns.len() {
        for b in a + 1..columns.len() {
            let mut pairs: Vec<_> = rows().map(|row| (row[a], row[b])).collect();
            pairs.sort_unstable();
            pairs.dedup();
            assert_eq!(pairs.len(), columns[a] * columns[b], "columns {a} and {b}");
        }
    }
}
