//! The vectorised softmax against the plain one, bit for bit.

use proptest::prelude::*;

use super::super::{Bytes, avx512_bf16, whole};
use super::*;
use crate::attention::prefetch::Asking;
use crate::attention::visible::Visible;

const WIDTH: usize = 32;

/// A tile of rows that have seen something before.
#[derive(Debug, Clone)]
struct Tile {
    scores: Vec<[f32; BLOCK]>,
    visible: Vec<Visible>,
    /// Factors of scores, and the one factor for all.
    factors: [f32; BLOCK],
    factor: f32,
    scales: [f32; BLOCK],
    states: Vec<State>,
    acc: Vec<f32>,
}

impl Tile {
    /// States and sums after `weigh`.
    fn after(mut self, weigh: impl FnOnce(Rows<'_>)) -> (Vec<[u32; 2]>, Vec<u32>) {
        weigh(Rows {
            scores: &mut self.scores,
            visible: &self.visible,
            scales: &self.factors,
            states: &mut self.states,
            acc: &mut self.acc,
            asking: Asking::NOTHING,
        });
        let states = self.states.iter().map(|state| {
            let max = if state.max == 0.0 { 0.0 } else { state.max };
            [max, state.sum].map(bits)
        });
        (
            states.collect(),
            self.acc.iter().copied().map(bits).collect(),
        )
    }
}

/// The bits of a number; all NaN are one.
fn bits(x: f32) -> u32 {
    if x.is_nan() { f32::NAN } else { x }.to_bits()
}

fn pair(pair: u32) -> [u32; 2] {
    [pair << 16, pair & 0xffff_0000].map(|half| bits(f32::from_bits(half)))
}

fn tiles() -> impl Strategy<Value = Tile> {
    let score = prop_oneof![
        30 => -40f32..40.0,
        1 => -400f32..400.0,
        // As near to one integer as to another, where factors are one.
        10 => (-80i32..80).prop_map(|n| n as f32 / 2.0),
        1 => Just(f32::NEG_INFINITY),
    ];
    let row = (
        prop::collection::vec(score, BLOCK),
        super::super::tests::visible(),
        prop_oneof![Just(f32::NEG_INFINITY), -30f32..90.0],
        prop::sample::select(vec![
            None,
            None,
            None,
            None,
            None,
            Some(f32::NAN),
            Some(f32::INFINITY),
        ]),
    );
    let scales = (
        prop_oneof![
            prop::collection::vec(0.01f32..2.0, BLOCK),
            Just(vec![1.0; BLOCK]),
        ],
        prop::collection::vec(0f32..2.0, BLOCK),
        prop::sample::select(vec![0, 3, -20, -124, -130]),
    );
    (prop::collection::vec(row, 1..33), scales).prop_map(|(rows, (factors, scales, exponent))| {
        let scores = rows.iter().map(|(row, visible, _, odd)| {
            let mut scores: [f32; BLOCK] = std::array::from_fn(|i| row[i]);
            scores[7] = odd.unwrap_or(scores[7]);
            // No row sees the other scores.
            scores[..visible.start].fill(f32::NAN);
            scores[visible.end..].fill(f32::NAN);
            scores
        });
        let state = |max: f32| State {
            max,
            sum: if max.is_finite() { 1.5 } else { 0.0 },
        };
        Tile {
            scores: scores.collect(),
            visible: rows.iter().map(|(_, visible, ..)| *visible).collect(),
            factors: std::array::from_fn(|i| factors[i]),
            factor: factors[0],
            scales: std::array::from_fn(|i| scales[i] * 2f32.powi(exponent)),
            states: rows.iter().map(|(.., max, _)| state(*max)).collect(),
            acc: vec![1.25; rows.len() * WIDTH],
        }
    })
}

proptest! {
    #[test]
    fn blocks_of_pairs_are_the_plain_ones(mut tile in tiles(), scaled: bool, spare in 0usize..3) {
        if !Isa::Avx512Bf16.is_available() {
            return Ok(());
        }
        let rows = tile.visible.len();
        let height = rows + spare;
        if !scaled {
            tile.factors = [tile.factor; BLOCK];
        }
        let scales = tile.scales;
        let scales = scaled.then_some(&scales);
        let run = |vectorised: bool| {
            let mut lanes = [[7.0; LANES]; 32];
            let mut out = vec![7; 2 * height * BLOCK_STEPS];
            let after = tile.clone().after(|rows| {
                if vectorised {
                    // SAFETY: the machine runs it, as was seen.
                    unsafe { avx512::softmax(rows, scales, &mut lanes, &mut out, height) };
                } else {
                    plain(Isa::AmxEmulated, rows, scales, &mut lanes, &mut out, height);
                }
            });
            (after, out.into_iter().map(pair).collect::<Vec<_>>())
        };
        prop_assert_eq!(run(true), run(false));
    }

    #[test]
    fn whole_numbers_are_the_plain_ones(tile in tiles()) {
        if !Isa::Avx512Bf16.is_available() {
            return Ok(());
        }
        let rows = tile.visible.len();
        let run = |vectorised: bool| {
            let mut out: Vec<Bytes> = vec![[[7; BLOCK]; 2]; rows];
            let mut worth = vec![7.0; rows];
            let scales = tile.scales;
            let after = tile.clone().after(|rows| {
                if vectorised {
                    // SAFETY: the machine runs it, as was seen.
                    unsafe { avx512_bf16::integers(rows, &scales, &mut out, &mut worth) };
                } else {
                    whole::integers(Isa::AmxEmulated, rows, &scales, &mut out, &mut worth);
                }
            });
            (after, out, worth.into_iter().map(bits).collect::<Vec<_>>())
        };
        prop_assert_eq!(run(true), run(false));
    }
}

proptest! {
    #[test]
    fn shorts_are_the_bytes_together(tile in tiles()) {
        let rows = tile.visible.len();
        let run = |isa, together: bool| {
            let mut out: Vec<Bytes> = vec![[[7; BLOCK]; 2]; rows];
            let mut worth = vec![7.0; rows];
            let after = tile.clone().after(|rows| {
                let weigh = if together { whole::shorts } else { whole::integers };
                weigh(isa, rows, &tile.scales, &mut out, &mut worth);
            });
            if together {
                for row in &mut out {
                    let shorts = row.as_flattened().as_chunks::<2>().0.to_vec();
                    for (i, word) in shorts.into_iter().enumerate() {
                        (row[0][i], row[1][i]) = (word[1], word[0]);
                    }
                }
            }
            (after, out, worth.into_iter().map(bits).collect::<Vec<_>>())
        };
        let expected = run(Isa::Scalar, false);
        for isa in Isa::available() {
            prop_assert_eq!(&run(isa, true), &expected);
        }
    }
}

#[test]
fn powers_are_within_three_ulp_and_exact_where_they_can_be() {
    for i in 0..=134_000 {
        let x = i as f32 / 1_000.0 - 126.0;
        let exact = f64::from(x).exp2();
        let ulp = f64::from((exact as f32).next_up()) - f64::from(exact as f32);
        let error = (f64::from(power(x)) - exact).abs();
        assert!(error <= 3.0 * ulp, "2^{x} = {}", power(x));
    }
    assert_eq!(power(0.0), 1.0);
    assert_eq!(power(8.0), 256.0);
    assert_eq!(power(-126.0), f32::MIN_POSITIVE);
    assert_eq!(power(-126.1), 0.0);
    assert!(power(f32::NAN).is_nan());
}
