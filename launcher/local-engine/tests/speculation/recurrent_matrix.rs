//! A recurrent model in an orthogonal array of settings: sizes of chunks and pages, drafts, ranks
//! and DP ranks, and depths that change in every step. In each row prompts part at states, one
//! token beside them, and within pages, cold and warm. Texts have the bits of plain decoding, and
//! so has each state that a step leaves, wherever plain decoding has that state.

use std::collections::BTreeSet;

use lockstep_types::request::Request;

use crate::{
    conversations::{Compared, DENSE, EXPERTS, Plain, ask, cached, in_turn, plain, words},
    policies::Policy,
    setup::{Algorithm, Form, Setup, Shape},
};

/// Values of a column.
const LEVELS: usize = 5;
const CHUNKS: [Option<i64>; LEVELS] = [Some(1), Some(3), Some(7), Some(64), None];
const DRAFTS: [Option<(Algorithm, Shape)>; LEVELS] = [
    None,
    Some((Algorithm::Nextn, Shape::chain(1))),
    Some((Algorithm::Ngram, Shape::TREE)),
    Some((Algorithm::Nextn, Shape::chain(6))),
    Some((Algorithm::Nextn, Shape::TREE)),
];
/// Ranks, and DP ranks.
const SPLITS: [(usize, usize); LEVELS] = [(1, 1), (2, 1), (4, 1), (2, 2), (4, 2)];
const PAGES: [usize; LEVELS] = [1, 16, 64, 1, 16];
/// States beside those of running requests: too few for all prompts, or enough.
const SPARE_STATES: [usize; LEVELS] = [2, 64, 3, 64, 64];

/// The settings of row `(a, b)`. Over all rows every pair of values of two columns meets, but for a
/// policy without drafts ([`every_pair_meets`] counts them). Columns are lines through the square
/// of rows, each of another slope. Overlap and policy are no lines, as all slopes are taken.
fn row(a: usize, b: usize) -> Setup {
    let line = |slope: usize| (a + slope * b) % LEVELS;
    let (tp, dp) = SPLITS[line(1)];
    let layers = if line(4) == 0 { EXPERTS } else { DENSE };
    let speculation = DRAFTS[b];
    let changes = speculation.is_some() && (a * b % LEVELS).is_multiple_of(2);
    let form = Form {
        bf16: false,
        tp,
        dp,
    };
    Setup {
        chunk: CHUNKS[a],
        speculation,
        policy: changes.then_some(Policy::Restless),
        page: PAGES[line(2)],
        spare_states: SPARE_STATES[line(3)],
        overlap: (a / 2 + b).is_multiple_of(2),
        radix: true,
        ..plain(layers, form)
    }
}

/// Prompts that part at a state, one token beside it, and in the middle of a page.
fn prompts(page: usize) -> Vec<Request> {
    let block = page.max(16);
    let text = words(1, 2 * block + 9);
    let state = 2 * block;
    let parted = [state, state + 1, state - 1, state - block / 2];
    let parted = parted.into_iter().zip(3..);
    let parted = parted.map(|(at, seed)| [&text[..at], &words(seed, 6)].concat());
    let whole = std::iter::once(text.clone());
    whole.chain(parted).map(|ids| ask(&ids, 8)).collect()
}

/// Runs a row, with each prompt twice. Returns the cached tokens of all prompts, the number of
/// accepted drafts and the states that were compared.
fn check(plain: &mut Plain, setup: &Setup) -> (u32, u64, Compared) {
    let once = prompts(setup.page);
    let requests = [once.clone(), once].concat();
    let expected: Vec<_> = requests.iter().map(|of| plain.answer(setup, of)).collect();
    let mut jobs = in_turn(setup, requests);
    if setup.dp == 1 {
        // Several at once. With DP ranks all but one are idle instead.
        jobs.iter_mut().for_each(|job| job.arrival /= 4);
    }
    let (registry, _) = Policy::Restless.watched();
    let (mut hits, mut accepted) = (0, 0);
    let compared = plain.check_with(
        setup,
        registry,
        (&jobs, &expected),
        |_| {},
        |engine, found| {
            hits = found.iter().map(cached).sum();
            accepted = engine.speculation().accepted_tokens;
        },
    );
    (hits, accepted, compared)
}

#[test]
fn no_setting_changes_a_bit_of_texts_and_states() {
    let (mut plain, mut taken) = (Plain::default(), 0);
    for a in 0..LEVELS {
        for b in 0..LEVELS {
            let setup = row(a, b);
            let (hits, accepted, compared) = check(&mut plain, &setup);
            assert!(hits > 0 && compared.live > 10, "{setup:?} {compared:?}");
            taken += accepted;
        }
    }
    assert!(taken > 100, "{taken}");
}

/// Number of columns.
const COLUMNS: usize = 8;
/// Columns of the drafts and of the policy that changes their depth.
const DRAFTS_AND_POLICY: [usize; 2] = [1, 7];

/// Returns the values of a row by column.
fn values(setup: &Setup) -> [String; COLUMNS] {
    [
        format!("{:?}", setup.chunk),
        format!("{:?}", setup.speculation),
        format!("{:?}", (setup.tp, setup.dp)),
        format!("{:?}", setup.page),
        format!("{:?}", setup.spare_states),
        format!("{:?}", setup.layers),
        format!("{:?}", setup.overlap),
        format!("{:?}", setup.policy),
    ]
}

#[test]
fn every_pair_meets() {
    let mut rows = Vec::new();
    for a in 0..LEVELS {
        for b in 0..LEVELS {
            rows.push(values(&row(a, b)));
        }
    }
    let kinds = |columns: &[usize]| {
        let of = |row: &[String; COLUMNS]| -> Vec<String> {
            columns.iter().map(|at| row[*at].clone()).collect()
        };
        rows.iter().map(of).collect::<BTreeSet<_>>().len()
    };
    for other in 0..COLUMNS {
        assert!(kinds(&[other]) > 1, "column {other}");
        for one in 0..other {
            // A policy has no depth to change if nothing is drafted.
            let impossible = usize::from([one, other] == DRAFTS_AND_POLICY);
            let pairs = kinds(&[one]) * kinds(&[other]) - impossible;
            assert_eq!(kinds(&[one, other]), pairs, "columns {one} and {other}");
        }
    }
}
