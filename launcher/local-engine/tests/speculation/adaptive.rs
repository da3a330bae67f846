//! A text has the same bits while the ranks switch depths by a policy.
//!
//! Ordinary runs replace the product of algorithm, shape, page size, ranks and policy by an
//! orthogonal array: over [`rows`] every pair of values of two of them meets
//! ([`every_pair_meets`] counts). Settings of other kinds take turns. The whole product, 216
//! engines, runs on request, beginning with the engine of number `LOCKSTEP_SWITCHING_FIRST`:
//!
//! ```text
//! cargo test --release -p lockstep-local-engine --test speculation -- --ignored switching --nocapture
//! ```

use std::{sync::atomic::Ordering, time::Instant};

use lockstep_types::Dtype;

use crate::{
    goldens::GOLDENS,
    matrix::{Met, check},
    oracle::Oracle,
    policies::Policy,
    setup::{Algorithm, CONTEXT, Setup, Shape},
    soak::read,
};

/// Random requests of a row.
const RANDOM: usize = 8;
/// Distance of the goldens that a row is asked: every fifth.
const EVERY: usize = 5;

const PAGES: [usize; 3] = [1, 16, 64];
const RANKS: [usize; 3] = [1, 2, 4];

/// Algorithm, page size, ranks, policy and shape, each as a number.
type Row = [usize; 5];

/// Twelve rows: every algorithm at every page size, and Latin squares of these for the
/// others.
fn rows() -> impl Iterator<Item = Row> {
    (0..12).map(|at| {
        let (algorithm, page) = (at / 3, at % 3);
        let tree = (algorithm + page) % 2;
        [
            algorithm,
            page,
            (algorithm + page) % 3,
            (algorithm + 2 * page) % 3,
            tree,
        ]
    })
}

fn setup([algorithm, page, ranks, policy, tree]: Row) -> Setup {
    let algorithm = Algorithm::ALL[algorithm];
    let shape = [Shape::chain(5), Shape::TREE][tree];
    // The other settings take turns.
    let turn = |every: usize| (page + 2 * ranks + policy).is_multiple_of(every);
    let page = PAGES[page];
    let roomy = Setup {
        policy: Some(Policy::ALL[policy]),
        page,
        chunk: [Some(24), None][usize::from(turn(3))],
        overlap: !turn(2),
        ..Setup::drafting(Dtype::Float32, RANKS[ranks], algorithm, shape)
    };
    match turn(3) {
        false => roomy,
        // Just enough tokens for the longest request and the writes of two steps.
        true => Setup {
            tokens: (CONTEXT + 2 * (shape.tokens + page)).next_multiple_of(page),
            care: 0,
            ..roomy
        },
    }
}

/// Runs an engine, and adds its switches to its policy's count.
fn run(row: Row, random: usize, every: usize, oracle: &mut Oracle, met: &mut Seen) {
    let setup = setup(row);
    let policy = row[3];
    let (registry, switches) = Policy::ALL[policy].watched();
    let seed = row.iter().fold(0, |seed, value| seed * 4 + *value as u64);
    let goldens = (seed as usize % every..GOLDENS.len()).step_by(every);
    check(
        &setup,
        registry,
        goldens,
        seed,
        random,
        oracle,
        &mut met.texts,
    );
    met.switches[policy] += switches.load(Ordering::Relaxed);
}

/// Counts of events that the runs must have met, so that the test shows something.
#[derive(Debug, Default)]
struct Seen {
    texts: Met,
    /// Switches of depth, by policy.
    switches: [u64; 3],
}

impl Seen {
    fn enough(&self) {
        self.texts.enough();
        let [restless, ema, goodput] = self.switches;
        assert!(restless > 100 && ema > 0 && goodput > 0, "{self:?}");
    }
}

#[test]
fn texts_stay_the_same_while_depths_switch() {
    let (mut oracle, mut met) = (Oracle::default(), Seen::default());
    for row in rows() {
        run(row, RANDOM, EVERY, &mut oracle, &mut met);
    }
    met.enough();
}

#[test]
#[ignore = "takes long even in a release build"]
fn switching_product() {
    let (mut oracle, mut met) = (Oracle::default(), Seen::default());
    let start = Instant::now();
    for at in read("LOCKSTEP_SWITCHING_FIRST", 0)..216 {
        let row = [at % 4, at / 4 % 3, at / 12 % 3, at / 36 % 3, at / 108];
        run(row, 40, 1, &mut oracle, &mut met);
        println!("{at}: {row:?}, {:.0?}, {met:?}", start.elapsed());
    }
    met.enough();
}

#[test]
fn every_pair_meets() {
    let columns: Row = [4, 3, 3, 3, 2];
    for a in 0..columns.len() {
        for b in a + 1..columns.len() {
            let mut pairs: Vec<_> = rows().map(|row| (row[a], row[b])).collect();
            pairs.sort_unstable();
            pairs.dedup();
            assert_eq!(pairs.len(), columns[a] * columns[b], "columns {a} and {b}");
        }
    }
}
