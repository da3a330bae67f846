//! A text has the same bits with speculation and without, in every setting.
//!
//! The full product of the settings takes the better part of an hour:
//!
//! ```text
//! cargo test --release -p lockstep-local-engine --test speculation -- --ignored product
//! ```
//!
//! With `LOCKSTEP_PRODUCT=sparse` only algorithm, shape, page size and ranks form a product,
//! an eighth of the full one: the other settings take turns.
//!
//! Ordinary runs replace the product by the rows of [`ROWS`], over which every pair of
//! values of two columns meets ([`every_pair_meets`] counts them). Each row answers goldens
//! greedily, and random requests with the sampling that they ask for, all in one batch. Some
//! requests leave early.

use lockstep_devices::Registry;
use lockstep_types::Dtype;
use lockstep_types::request::Request;

use crate::{
    goldens::GOLDENS,
    load::{idle, run},
    oracle::{Oracle, compare, golden_answers},
    requests::{Job, golden, random},
    setup::{Algorithm, CONTEXT, Setup, Shape},
};

use Algorithm::{Eagle, Eagle3, Ngram, Standalone};

/// Algorithm, page size, chunk size; then six flags: trees of drafts, two ranks, overlap of
/// steps, bfloat16 weights, a tight KV pool, and the prefix cache.
type Row = (Algorithm, usize, Option<i64>, [bool; 6]);

const ROWS: [Row; 13] = [
    (Eagle3, 1, Some(7), [false, true, false, false, true, false]),
    (
        Eagle3,
        1,
        Some(64),
        [false, false, false, false, false, true],
    ),
    (Eagle3, 16, None, [true, true, true, true, true, true]),
    (Eagle3, 64, Some(7), [true, false, true, true, false, true]),
    (Eagle, 1, None, [true, false, true, true, true, false]),
    (
        Eagle,
        16,
        Some(7),
        [false, false, true, false, false, false],
    ),
    (Eagle, 64, Some(64), [true, true, false, false, true, true]),
    (
        Standalone,
        1,
        Some(7),
        [true, true, true, true, false, true],
    ),
    (
        Standalone,
        16,
        Some(64),
        [false, false, false, true, true, false],
    ),
    (
        Standalone,
        64,
        None,
        [false, false, false, false, false, true],
    ),
    (Ngram, 1, Some(7), [true, false, false, true, true, false]),
    (Ngram, 16, Some(64), [true, true, true, true, false, true]),
    (Ngram, 64, None, [false, false, true, false, true, false]),
];

/// Random requests of a row; all rows together have more than 200.
const RANDOM: usize = 16;

#[test]
fn rows_of_eagle3() {
    rows(Eagle3);
}

#[test]
fn rows_of_eagle() {
    rows(Eagle);
}

#[test]
fn rows_of_a_standalone_draft() {
    rows(Standalone);
}

#[test]
fn rows_of_ngrams() {
    rows(Ngram);
}

#[test]
#[ignore = "takes minutes in a release build"]
fn product_of_eagle3() {
    product(Eagle3);
}

#[test]
#[ignore = "takes minutes in a release build"]
fn product_of_eagle() {
    product(Eagle);
}

#[test]
#[ignore = "takes minutes in a release build"]
fn product_of_a_standalone_draft() {
    product(Standalone);
}

#[test]
#[ignore = "takes minutes in a release build"]
fn product_of_ngrams() {
    product(Ngram);
}

/// Counts of events that a run must have met, so that the test shows something.
#[derive(Debug, Default)]
pub struct Met {
    accepted: u64,
    retractions: u64,
    aborted: u64,
    cached: u64,
}

fn rows(algorithm: Algorithm) {
    let (mut oracle, mut met) = (Oracle::default(), Met::default());
    let rows = ROWS.iter().enumerate();
    for (at, row) in rows.filter(|(_, row)| row.0 == algorithm) {
        // Every other golden; rows take the two goldens of a domain in turn.
        let goldens = (at % 2..GOLDENS.len()).step_by(2);
        check(
            &setup(row),
            Registry::builtin(),
            goldens,
            at as u64,
            RANDOM,
            &mut oracle,
            &mut met,
        );
    }
    met.enough();
}

fn product(algorithm: Algorithm) {
    let (mut oracle, mut met) = (Oracle::default(), Met::default());
    let sparse = std::env::var("LOCKSTEP_PRODUCT").is_ok_and(|value| value == "sparse");
    let mut seed = 1000u64;
    for page in [1, 16, 64] {
        for flags in 0..32 {
            // Shape and ranks are the low bits; the other settings take turns.
            if sparse && flags >> 2 != (5 * (flags & 3) + page) % 8 {
                seed += 1;
                continue;
            }
            let flag = |bit: u32| flags >> bit & 1 == 1;
            let [trees, ranks, overlap, bf16, tight] = [0, 1, 2, 3, 4].map(flag);
            let chunk = [None, Some(7), Some(64)][seed as usize % 3];
            let radix = !seed.is_multiple_of(4);
            let flags = [trees, ranks, overlap, bf16, tight, radix];
            let setup = setup(&(algorithm, page, chunk, flags));
            let (registry, goldens) = (Registry::builtin(), 0..GOLDENS.len());
            check(&setup, registry, goldens, seed, 200, &mut oracle, &mut met);
            seed += 1;
        }
    }
    met.enough();
}

fn setup((algorithm, page, chunk, flags): &Row) -> Setup {
    let [trees, ranks, overlap, bf16, tight, radix] = *flags;
    let shape = if trees { Shape::TREE } else { Shape::chain(4) };
    let dtype = if bf16 {
        Dtype::Bfloat16
    } else {
        Dtype::Float32
    };
    let roomy = Setup {
        page: *page,
        chunk: *chunk,
        overlap,
        radix,
        ..Setup::drafting(dtype, 1 + usize::from(ranks), *algorithm, shape)
    };
    if !tight {
        return roomy;
    }
    // Just enough tokens for the longest request and the writes of two steps.
    let longest = CONTEXT + 2 * (shape.tokens + page);
    Setup {
        tokens: longest.next_multiple_of(*page),
        care: 0,
        ..roomy
    }
}

/// Runs one engine with all its requests, and compares each answer with the one without
/// speculation.
pub fn check(
    setup: &Setup,
    registry: Registry,
    goldens: impl Iterator<Item = usize> + Clone,
    seed: u64,
    count: usize,
    oracle: &mut Oracle,
    met: &mut Met,
) {
    let form = setup.form();
    let known = golden_answers(form);
    let mut expected: Vec<_> = goldens.clone().map(|at| known[at].clone()).collect();
    let greedy = goldens.map(|at| Job {
        request: golden(&GOLDENS[at]),
        arrival: at % 7,
        patience: None,
    });
    let mut jobs: Vec<Job> = greedy.collect();
    jobs.extend(random(seed, count, 24));
    let requests: Vec<&Request> = jobs[expected.len()..]
        .iter()
        .map(|job| &job.request)
        .collect();
    expected.extend(oracle.answers(form, requests));
    let mut engine = setup.start_with(registry);
    let what = format!("seed {seed}, {setup:?}");
    let found = run(&what, &mut engine, &jobs, |_| {});
    for (job, (found, expected)) in found.iter().zip(&expected).enumerate() {
        compare(&format!("job {job}, {what}"), found, expected);
    }
    if setup.radix {
        // The longest prompts, each a second time from the cache.
        for at in [36, 36, 37, 37] {
            let again = engine.run(vec![golden(&GOLDENS[at])]).unwrap();
            compare(
                &format!("{setup:?}, prompt {at} again"),
                &again[0],
                &known[at],
            );
        }
    }
    let counters = engine.load().counters;
    met.accepted += engine.speculation().accepted_tokens;
    met.retractions += counters.retractions;
    met.aborted += counters.aborted;
    met.cached += counters.cached_tokens;
    idle(&mut engine);
}

impl Met {
    pub fn enough(&self) {
        let rare = self.retractions >= 1 && self.aborted >= 3;
        assert!(
            rare && self.accepted >= 300 && self.cached >= 100,
            "{self:?}"
        );
    }
}

#[test]
fn every_pair_meets() {
    let columns: [usize; 9] = [4, 3, 3, 2, 2, 2, 2, 2, 2];
    let values = |(algorithm, page, chunk, flags): &Row| {
        let algorithm = Algorithm::ALL.iter().position(|known| known == algorithm);
        let page = [1, 16, 64].iter().position(|known| known == page);
        let chunk = [None, Some(7), Some(64)]
            .iter()
            .position(|known| known == chunk);
        let regular = [algorithm, page, chunk].map(Option::unwrap);
        [&regular[..], &flags.map(usize::from)].concat()
    };
    for a in 0..columns.len() {
        for b in a + 1..columns.len() {
            let mut pairs: Vec<_> = ROWS
                .iter()
                .map(values)
                .map(|row| (row[a], row[b]))
                .collect();
            pairs.sort_unstable();
            pairs.dedup();
            assert_eq!(pairs.len(), columns[a] * columns[b], "columns {a} and {b}");
        }
    }
}
