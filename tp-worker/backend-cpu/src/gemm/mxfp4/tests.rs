//! Every kernel that this machine runs, compared with the scalar one bit by bit.

use lockstep_backend::{E2m1, E8m0};
use proptest::prelude::*;

use super::super::layout::Layout;
use super::super::prefetch::Ahead;
use super::super::tile::TileFn;
use super::super::tiles::Input;
use super::*;
use crate::number::pack_row;

/// Panels that the widest tile streams at once.
const PANELS: usize = 4;
/// Most rows of a tile.
const ROWS: usize = 12;

struct Case {
    steps: usize,
    rows: Vec<Vec<f32>>,
    panels: Vec<u32>,
}

impl Case {
    /// Any codes, and powers around one. Every second step has a few at both ends, too.
    fn new(steps: usize, seed: u64) -> Self {
        let mut state = seed | 1;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 16) as u32
        };
        let mut panels = vec![0; PANELS * steps * STEP_WORDS];
        for (number, step) in panels.chunks_exact_mut(STEP_WORDS).enumerate() {
            let (codes, exponents) = step.split_at_mut(CODES);
            codes.iter_mut().for_each(|code| *code = next());
            let exponents: &mut [u8] = bytemuck::cast_slice_mut(exponents);
            for exponent in exponents {
                *exponent = match next() % 50 {
                    low @ 0..2 if number % 2 == 0 => low as u8,
                    2 if number % 4 == 0 => 253,
                    more => 78 + more as u8,
                };
            }
        }
        let mut row = || -> Vec<f32> {
            let values = (0..steps * STEP).map(|_| next() as f32 / 1e9 - 2.0);
            values.collect()
        };
        Self {
            steps,
            rows: (0..ROWS).map(|_| row()).collect(),
            panels,
        }
    }

    /// Multiplies `m` rows by the panels, in two calls cut at `cut`.
    fn run(&self, (tile, m): (TileFn, usize), panels: &[u32], cut: usize, form: Form) -> Vec<f32> {
        let Form { input, words, each } = form;
        let mut a = vec![0u32; input.len(self.steps * STEP) * m];
        for (r, row) in self.rows[..m].iter().enumerate() {
            pack_row(Isa::Scalar, input, row, &mut a, r, m);
        }
        let ldc = PANELS * PANEL;
        let mut c = vec![f32::NAN; m * ldc];
        for part in [0..cut, cut..self.steps] {
            let work = Tile {
                a: a[part.start * input.step_words() * m..].as_ptr(),
                b: panels[part.start * words..].as_ptr(),
                panel_stride: self.steps * words,
                steps: part.len() * each,
                scales: 1,
                layout: &Layout::NONE,
                c: c.as_mut_ptr(),
                ldc,
                resume: part.start > 0,
                ahead: Ahead::NOTHING.or(panels.as_ptr()),
                aside: None,
            };
            // SAFETY: only kernels that run here are called, with the rows and panels they
            // are made for and room for both.
            unsafe { tile(&work) };
        }
        c
    }

    /// Results of a tile for one row, for all rows, panel by panel.
    fn one_by_one(&self, tile: TileFn, panels: &[u32], form: Form) -> Vec<Vec<f32>> {
        let row_of = |p: usize, r: usize| {
            let alone = Self {
                rows: vec![self.rows[r].clone()],
                panels: Vec::new(),
                steps: self.steps,
            };
            let panel = &panels[p * self.steps * form.words..];
            alone.run((tile, 1), panel, 0, form)[..PANEL].to_vec()
        };
        let of_panel = |p| (0..ROWS).flat_map(move |r| row_of(p, r)).collect();
        (0..PANELS).map(of_panel).collect()
    }

    /// Compares all tiles of a table.
    fn expect_all(&self, isa: Isa, tiles: &Tiles, cut: usize, expected: &[Vec<f32>]) {
        let single = tiles.single.iter().map(|tile| (*tile, 1));
        let stream = tiles.stream.iter().copied();
        for (m, (tile, panels)) in single.enumerate().chain(stream.enumerate()) {
            let found = self.run((tile, m + 1), &self.panels, cut, Form::stored(tiles.input));
            compare(&found, &expected[..panels], m + 1, isa);
        }
    }

    fn expect(&self, cut: usize) {
        let plain = kernels(Isa::Scalar).tiles[0].single[0];
        let expected = self.one_by_one(plain, &self.panels, Form::stored(Input::Groups));
        for isa in Isa::available() {
            let tiles = kernels(isa).tiles[0];
            self.expect_all(isa, tiles, cut, &expected);
            let Some(wide_tiles) = tiles.widened else {
                continue;
            };
            let mut wide = vec![0; PANELS * self.steps * STEP * PANEL];
            // SAFETY: this machine runs the kernels.
            unsafe { (kernels(isa).widen)(&self.panels, &mut wide) };
            let found = self.run((wide_tiles.single[1], 2), &wide, cut, Form::WIDE);
            compare(&found, &expected[..1], 2, isa);
        }
    }

    /// The panels as pairs of bf16, value by value.
    fn pairs(&self) -> Vec<u32> {
        let mut pairs = vec![0; PANELS * self.steps * STEP / 2 * PANEL];
        let wide = pairs.chunks_exact_mut(STEP / 2 * PANEL);
        for (step, wide) in self.panels.chunks_exact(STEP_WORDS).zip(wide) {
            let bytes: &[u8] = bytemuck::cast_slice(step);
            for (place, pair) in wide.iter_mut().enumerate() {
                let (number, lane) = (place / PANEL, place % PANEL);
                let first = number / 4 * RUN + number % 4;
                for (half, input) in [first, first + 4].into_iter().enumerate() {
                    let places = places(input / GROUP, lane);
                    let (byte, shift) = places.code(input % GROUP);
                    let power = E8m0(bytes[places.exponent]).value();
                    let value = E2m1(bytes[byte] >> shift).value() * power;
                    // Kernels may turn one zero into the other, which changes no sum.
                    let value = if value == 0.0 { 0.0 } else { value };
                    let bits = half::bf16::from_f32(value).to_bits();
                    *pair |= u32::from(bits) << (16 * half);
                }
            }
        }
        pairs
    }

    /// Compares tiles that multiply pairs with the tiles of bf16 weights.
    fn expect_pairs(&self, cut: usize) {
        let wide = self.pairs();
        for isa in Isa::available() {
            let Some(widen) = kernels(isa).widen_rounded else {
                continue;
            };
            let mut found = vec![0; wide.len()];
            // SAFETY: this machine runs the kernels.
            unsafe { widen(&self.panels, &mut found) };
            let halves: &mut [u16] = bytemuck::cast_slice_mut(&mut found);
            let zeros = halves.iter_mut().filter(|bits| **bits == 0x8000);
            zeros.for_each(|bits| *bits = 0);
            assert_eq!(found, wide);
            let tiles = kernels(isa).tiles[1];
            let wide_tiles = tiles.widened.expect("tiles of bf16 weights");
            let expected = self.one_by_one(wide_tiles.single[0], &wide, Form::PAIRS);
            self.expect_all(isa, tiles, cut, &expected);
        }
    }
}

/// Form of inputs and panels: words of a step of [`STEP`] inputs, and steps that a tile counts
/// for it.
#[derive(Clone, Copy)]
struct Form {
    input: Input,
    words: usize,
    each: usize,
}

impl Form {
    const WIDE: Self = Self {
        input: Input::Groups,
        words: STEP * PANEL,
        each: STEP,
    };
    const PAIRS: Self = Self {
        input: Input::SplitPairs,
        words: STEP / 2 * PANEL,
        each: STEP / 2,
    };

    fn stored(input: Input) -> Self {
        let (words, each) = (STEP_WORDS, 1);
        Self { input, words, each }
    }
}

fn compare(found: &[f32], expected: &[Vec<f32>], m: usize, isa: Isa) {
    for (p, expected) in expected.iter().enumerate() {
        for r in 0..m {
            let start = (r * PANELS + p) * PANEL;
            let found = found[start..start + PANEL].iter();
            for (found, expected) in found.zip(&expected[r * PANEL..]) {
                assert_eq!(
                    found.to_bits(),
                    expected.to_bits(),
                    "{isa} {m} rows, {p} {r}"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn kernels_give_the_scalar_ones_bits(steps in 1usize..4, seed: u64, cut: prop::sample::Index) {
        Case::new(steps, seed).expect(cut.index(steps + 1));
    }

    #[test]
    fn kernels_of_pairs_give_the_bits_of_bf16_weights(
        steps in 1usize..6,
        seed: u64,
        cut: prop::sample::Index,
    ) {
        Case::new(steps, seed).expect_pairs(cut.index(steps + 1));
    }
}

#[test]
fn places_fill_a_step() {
    let mut seen = vec![0u8; STEP_WORDS * 4];
    for group in 0..GROUPS {
        for lane in 0..PANEL {
            let places = places(group, lane);
            assert_eq!(std::mem::replace(&mut seen[places.exponent], 255), 0);
            for input in 0..GROUP {
                let (byte, shift) = places.code(input);
                assert_eq!(seen[byte] >> shift & 15, 0);
                seen[byte] |= 15 << shift;
            }
        }
    }
    assert!(seen.into_iter().all(|bits| bits == 255));
}
