//! Every kernel that this machine runs, compared with the scalar one bit by bit.

use proptest::prelude::*;

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
    /// Any codes, and powers around one, but for a few at the low end.
    fn new(steps: usize, seed: u64) -> Self {
        let mut state = seed | 1;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 16) as u32
        };
        let mut panels = vec![0; PANELS * steps * STEP_WORDS];
        for step in panels.chunks_exact_mut(STEP_WORDS) {
            let (codes, exponents) = step.split_at_mut(CODES);
            codes.iter_mut().for_each(|code| *code = next());
            let exponents: &mut [u8] = bytemuck::cast_slice_mut(exponents);
            for exponent in exponents {
                *exponent = match next() % 50 {
                    0 => 0,
                    1 => 1,
                    more => 100 + more as u8,
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

    /// Multiplies `m` rows by the panels, whose steps have `words` words, in two calls cut at
    /// `cut`.
    fn run(
        &self,
        (tile, m): (TileFn, usize),
        panels: &[u32],
        cut: usize,
        words: usize,
    ) -> Vec<f32> {
        let widened = if words == STEP_WORDS { 1 } else { STEP };
        let mut a = vec![0u32; Input::Groups.len(self.steps * STEP) * m];
        for (r, row) in self.rows[..m].iter().enumerate() {
            pack_row(Isa::Scalar, Input::Groups, row, &mut a, r, m);
        }
        let ldc = PANELS * PANEL;
        let mut c = vec![f32::NAN; m * ldc];
        for part in [0..cut, cut..self.steps] {
            let work = Tile {
                a: a[part.start * STEP * m..].as_ptr(),
                b: panels[part.start * words..].as_ptr(),
                panel_stride: self.steps * words,
                steps: part.len() * widened,
                scales: 1,
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

    fn expect(&self, cut: usize) {
        let plain = kernels(Isa::Scalar).tiles[0].single[0];
        let row_of = |p: usize, r: usize| {
            let alone = Self {
                rows: vec![self.rows[r].clone()],
                panels: Vec::new(),
                steps: self.steps,
            };
            let panel = &self.panels[p * self.steps * STEP_WORDS..];
            alone.run((plain, 1), panel, 0, STEP_WORDS)[..PANEL].to_vec()
        };
        let of_panel = |p| (0..ROWS).flat_map(move |r| row_of(p, r)).collect();
        let expected: Vec<Vec<f32>> = (0..PANELS).map(of_panel).collect();
        for isa in Isa::available() {
            let tiles = kernels(isa).tiles[0];
            let single = tiles.single.iter().map(|tile| (*tile, 1));
            let stream = tiles.stream.iter().copied();
            for (m, (tile, panels)) in single.enumerate().chain(stream.enumerate()) {
                let found = self.run((tile, m + 1), &self.panels, cut, STEP_WORDS);
                compare(&found, &expected[..panels], m + 1, isa);
            }
            let Some(wide_tiles) = tiles.widened else {
                continue;
            };
            let mut wide = vec![0; PANELS * self.steps * STEP * PANEL];
            // SAFETY: this machine runs the kernels.
            unsafe { (kernels(isa).widen)(&self.panels, &mut wide) };
            let found = self.run((wide_tiles.single[1], 2), &wide, cut, STEP * PANEL);
            compare(&found, &expected[..1], 2, isa);
        }
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
