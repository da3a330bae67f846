//! DFLASH drafts chains alone, so it is in no array of settings that has trees. These rows give
//! it the other settings.

use std::sync::atomic::Ordering;

use lockstep_devices::Registry;
use lockstep_types::Dtype;

use crate::{
    goldens::GOLDENS,
    matrix::{Met, check},
    oracle::Oracle,
    policies::Policy,
    setup::{Algorithm, CONTEXT, Setup, Shape},
};

/// Numbers of ranks and of DP ranks.
type Ranks = (usize, usize);

/// Draft steps, page size, chunk size; then four flags: overlap of steps, bfloat16 weights, a
/// tight KV pool, and the prefix cache. Last the ranks, and the policy of the depth.
type Row = (usize, usize, Option<i64>, [bool; 4], Ranks, Option<Policy>);

const ROWS: [Row; 8] = [
    (7, 1, Some(7), [true, false, true, true], (1, 1), None),
    (4, 16, None, [false, true, true, true], (2, 1), None),
    (1, 64, Some(64), [true, false, false, true], (1, 1), None),
    (
        7,
        16,
        Some(24),
        [true, false, false, true],
        (1, 1),
        Some(Policy::Restless),
    ),
    (
        5,
        1,
        None,
        [false, true, true, false],
        (2, 1),
        Some(Policy::Restless),
    ),
    (
        7,
        64,
        Some(48),
        [true, false, false, true],
        (2, 2),
        Some(Policy::Restless),
    ),
    (
        6,
        16,
        None,
        [true, true, true, true],
        (2, 2),
        Some(Policy::ALL[1]),
    ),
    (
        3,
        16,
        Some(24),
        [false, false, false, true],
        (4, 2),
        Some(Policy::ALL[2]),
    ),
];

/// Random requests of a row.
const RANDOM: usize = 10;

fn setup((steps, page, chunk, flags, (tp, dp), policy): Row) -> Setup {
    let [overlap, bf16, tight, radix] = flags;
    let dtype = if bf16 {
        Dtype::Bfloat16
    } else {
        Dtype::Float32
    };
    let roomy = Setup {
        dp,
        policy,
        page,
        chunk,
        overlap,
        radix,
        // Pauses longer and shorter than the window, where the depth may be 0.
        pause_window: policy.map_or(0, |_| 5),
        ..Setup::drafting(dtype, tp, Algorithm::Dflash, Shape::chain(steps))
    };
    if !tight {
        return roomy;
    }
    // Just enough tokens for the longest request and the writes of the steps in flight. A block
    // is written whole.
    let writes = 3 * (8 + page);
    Setup {
        tokens: (CONTEXT + writes).next_multiple_of(page),
        care: 0,
        ..roomy
    }
}

#[test]
fn texts_stay_the_same_in_every_setting() {
    let (mut oracle, mut met, mut switched) = (Oracle::default(), Met::default(), 0);
    for (at, row) in ROWS.into_iter().enumerate() {
        let setup = setup(row);
        let (registry, switches) = match row.5 {
            Some(policy) => {
                let (registry, switches) = policy.watched();
                (registry, Some(switches))
            }
            None => (Registry::builtin(), None),
        };
        let goldens = (at % 3..GOLDENS.len()).step_by(3);
        let seed = 50 + at as u64;
        check(
            &setup,
            registry,
            goldens,
            seed,
            RANDOM,
            &mut oracle,
            &mut met,
        );
        switched += switches.map_or(0, |switches| switches.load(Ordering::Relaxed));
    }
    met.enough();
    assert!(switched > 100, "{switched}");
}

/// The page reserve, tables and buffers have room for whole blocks, however few drafts are
/// verified.
#[test]
fn sizes_are_those_of_a_block() {
    for steps in [1, 7] {
        let shape = Shape::chain(steps);
        let config = Setup::drafting(Dtype::Float32, 1, Algorithm::Dflash, shape).config();
        let speculation = &config.speculation;
        assert_eq!(speculation.max_speculative_num_draft_tokens, 8);
        assert_eq!(speculation.max_commit(), steps + 1);
        assert_eq!(speculation.reserve().alloc_len_per_decode(), 8);
    }
}
