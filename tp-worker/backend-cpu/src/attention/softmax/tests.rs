//! The vectorised softmax against the plain one.

use proptest::prelude::*;

use super::*;
use crate::number::bf16_value;

const WIDTH: usize = 32;

/// A tile of rows that have seen something before.
#[derive(Debug)]
struct Tile {
    scores: Vec<[f32; BLOCK]>,
    visible: Vec<Visible>,
    scales: [f32; BLOCK],
    weight_scales: [f32; BLOCK],
    states: Vec<State>,
    acc: Vec<f32>,
}

/// Result of a softmax over a [`Tile`].
struct Softmax {
    weights: Vec<[f32; BLOCK]>,
    states: Vec<State>,
    acc: Vec<f32>,
}

impl Tile {
    fn run(&self, weigh: impl FnOnce(Rows<'_>, &mut [[f32; BLOCK]])) -> Softmax {
        let (mut scores, mut states) = (self.scores.clone(), self.states.clone());
        let (mut acc, mut weights) = (self.acc.clone(), self.scores.clone());
        let rows = Rows {
            scores: &mut scores,
            visible: &self.visible,
            scales: &self.scales,
            states: &mut states,
            acc: &mut acc,
            asking: Asking::NOTHING,
        };
        weigh(rows, &mut weights);
        Softmax {
            weights,
            states,
            acc,
        }
    }

    fn pairs(&self, isa: Isa) -> Softmax {
        self.run(|rows, weights| {
            let mut lanes = vec![[0.0; LANES]; weights.len()];
            let mut out = vec![[0u32; BLOCK]; weights.len()];
            softmax_pairs(isa, rows, Some(&self.weight_scales), &mut lanes, &mut out);
            for (weights, out) in weights.iter_mut().zip(&out) {
                let halves = out
                    .iter()
                    .flat_map(|pair| [*pair as u16, (*pair >> 16) as u16]);
                weights
                    .iter_mut()
                    .zip(halves)
                    .for_each(|(weight, half)| *weight = bf16_value(half));
            }
        })
    }

    fn integers(&self, isa: Isa) -> Softmax {
        self.run(|rows, weights| {
            let mut out: Vec<Bytes> = vec![[[7; BLOCK]; 2]; weights.len()];
            let mut worth = vec![7.0; weights.len()];
            let scales = &self.weight_scales;
            if isa == Isa::Avx512Bf16 {
                // SAFETY: the caller saw that the machine runs it.
                unsafe { avx512_bf16::integers(rows, scales, &mut out, &mut worth) };
            } else {
                whole::integers(isa, rows, scales, &mut out, &mut worth);
            }
            for ((weights, [upper, lower]), worth) in weights.iter_mut().zip(&out).zip(worth) {
                for i in 0..BLOCK {
                    let integer = 256 * i32::from(upper[i]) + i32::from(lower[i]);
                    assert!(integer <= i32::from(i16::MAX));
                    weights[i] = integer as f32 * worth;
                }
            }
        })
    }

    /// Compares with the plain softmax. A weight may differ by `relative` of itself and
    /// `of_largest` of the row's largest weight.
    fn check(&self, found: &Softmax, relative: f32, of_largest: f32) {
        let near = |a: f32, b: f32| (a - b).abs() <= 1e-5 * a.abs().max(1e-30);
        let plain = self.run(|rows, weights| {
            let mut lanes = vec![[0.0; LANES]; weights.len()];
            let scores: *mut [[f32; BLOCK]] = &raw mut *rows.scores;
            let finish = Finish {
                scales: Some(&self.weight_scales),
                round: false,
            };
            softmax_rows(Isa::Scalar, rows, &finish, &mut lanes);
            // SAFETY: the rows that borrowed the scores are gone.
            weights.copy_from_slice(unsafe { &*scores });
        });
        for row in 0..self.scores.len() {
            let (a, b) = (&plain.states[row], &found.states[row]);
            assert_eq!(a.max.to_bits(), b.max.to_bits());
            assert!(near(a.sum, b.sum), "{} {}", a.sum, b.sum);
            let largest = plain.weights[row].iter().fold(0f32, |max, &x| max.max(x));
            for (i, (a, b)) in plain.weights[row]
                .iter()
                .zip(&found.weights[row])
                .enumerate()
            {
                // `vcvtne2ps2bf16` reads subnormal numbers as zeros.
                let limit = relative * a + of_largest * largest + f32::MIN_POSITIVE;
                assert!((a - b).abs() <= limit, "row {row}, {i}: {a} {b}");
                let visible = self.visible[row];
                assert!((visible.start..visible.end).contains(&i) || *b == 0.0);
            }
        }
        assert_eq!(plain.acc, found.acc);
    }
}

/// Positions that a query sees: from the block's start, or from behind it, up to anywhere.
pub(super) fn visible() -> impl Strategy<Value = Visible> {
    let start = prop_oneof![Just(0), 0..BLOCK];
    (start, prop_oneof![0..=BLOCK, Just(BLOCK)])
        .prop_map(|(start, end)| Visible::of(&(start..end), &(0..BLOCK)))
}

fn tiles() -> impl Strategy<Value = Tile> {
    let row = (
        prop::collection::vec(-40f32..40.0, BLOCK),
        visible(),
        prop_oneof![Just(f32::NEG_INFINITY), -30f32..30.0],
    );
    let scales = (
        prop::collection::vec(0f32..2.0, BLOCK),
        prop::collection::vec(0f32..2.0, BLOCK),
        -20i32..20,
    );
    (prop::collection::vec(row, 1..9), scales).prop_map(|(rows, (scales, weights, exponent))| {
        let block = |values: &[f32], factor: f32| std::array::from_fn(|i| values[i] * factor);
        let state = |max: f32| State {
            max,
            sum: if max.is_finite() { 1.5 } else { 0.0 },
        };
        Tile {
            scores: rows.iter().map(|(row, ..)| block(row, 1.0)).collect(),
            visible: rows.iter().map(|(_, visible, _)| *visible).collect(),
            scales: block(&scales, 1.0),
            weight_scales: block(&weights, 2f32.powi(exponent)),
            states: rows.iter().map(|(.., max)| state(*max)).collect(),
            acc: vec![1.25; rows.len() * WIDTH],
        }
    })
}

proptest! {
    #[test]
    fn pairs_and_integers_are_the_plain_weights_rounded(tile in tiles()) {
        // The row's largest integer is at least 2¹⁴, and others are off by one half.
        const WITHIN: f32 = 1.0 / 32_768.0;
        if Isa::Avx512Bf16.is_available() {
            tile.check(&tile.pairs(Isa::Avx512Bf16), 1.0 / 255.0, 0.0);
            tile.check(&tile.integers(Isa::Avx512Bf16), 1e-5, WITHIN);
        }
        for isa in [Isa::Scalar, Isa::Avx2].into_iter().filter(|isa| isa.is_available()) {
            tile.check(&tile.pairs(isa), 1.0 / 255.0, 0.0);
            tile.check(&tile.integers(isa), 1e-5, WITHIN);
        }
    }
}
