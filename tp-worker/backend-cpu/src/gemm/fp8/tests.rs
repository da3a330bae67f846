//! Every kernel that this machine runs, compared with the scalar one bit by bit.

use proptest::prelude::*;

use super::super::layout::Layout;
use super::super::prefetch::Ahead;
use super::super::tile::TileFn;
use super::*;
use crate::number::pack_row;

/// Panels that the widest tile streams at once.
const PANELS: usize = 4;
/// Most rows of a tile.
const ROWS: usize = 12;

struct Case {
    scales: usize,
    steps: usize,
    rows: Vec<Vec<f32>>,
    panels: Vec<u32>,
}

impl Case {
    /// Any codes but those that are no numbers, and factors around one.
    fn new(scales: usize, steps: usize, seed: u64) -> Self {
        let mut state = seed | 1;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 16) as u32
        };
        let mut panels = vec![0; PANELS * steps * step_words(scales)];
        for part in panels.chunks_exact_mut(step_words(scales) / scales) {
            let (codes, factors) = part.split_at_mut(RUNS / scales * PANEL);
            let codes: &mut [u8] = bytemuck::cast_slice_mut(codes);
            for code in codes {
                let any = next() as u8;
                *code = if any & 0x7f == 0x7f { any - 1 } else { any };
            }
            for factor in factors {
                *factor = (next() & 0x807f_ffff) | 0x3f80_0000;
            }
        }
        let mut row = || -> Vec<f32> {
            let values = (0..steps * GROUP).map(|_| next() as f32 / 1e9 - 2.0);
            values.collect()
        };
        Self {
            scales,
            steps,
            rows: (0..ROWS).map(|_| row()).collect(),
            panels,
        }
    }

    /// Multiplies `m` rows by the first `p` panels, in two calls cut at `cut`. Widens the
    /// panels before if there is a kernel for that.
    fn run(
        &self,
        tiles: &Tiles,
        (tile, m): (TileFn, usize),
        panels: &[u32],
        cut: usize,
        words: usize,
    ) -> Vec<f32> {
        let input = if words == GROUP * PANEL {
            super::super::tiles::Input::Groups
        } else {
            tiles.input
        };
        let mut a = vec![0u32; input.len(self.steps * GROUP) * m];
        for (r, row) in self.rows[..m].iter().enumerate() {
            pack_row(Isa::Scalar, input, row, &mut a, r, m);
        }
        let ldc = PANELS * PANEL;
        let mut c = vec![f32::NAN; m * ldc];
        for part in [0..cut, cut..self.steps] {
            let widened = if words == GROUP * PANEL { GROUP } else { 1 };
            let work = Tile {
                a: a[part.start * GROUP * m..].as_ptr(),
                b: panels[part.start * words..].as_ptr(),
                panel_stride: self.steps * words,
                steps: part.len() * widened,
                scales: self.scales,
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

    fn expect(&self, cut: usize) {
        let words = step_words(self.scales);
        let plain = kernels(Isa::Scalar).tiles[0];
        let expected: Vec<Vec<f32>> = (0..PANELS)
            .map(|p| {
                let panel = &self.panels[p * self.steps * words..];
                let rows = (0..ROWS).map(|r| {
                    let alone = Self {
                        rows: vec![self.rows[r].clone()],
                        panels: Vec::new(),
                        ..*self
                    };
                    alone.run(plain, (plain.single[0], 1), panel, 0, words)[..PANEL].to_vec()
                });
                rows.flatten().collect()
            })
            .collect();
        for isa in Isa::available() {
            let tiles = kernels(isa).tiles[0];
            let single = tiles.single.iter().map(|tile| (*tile, 1));
            let stream = tiles.stream.iter().copied();
            for (m, (tile, panels)) in single.enumerate().chain(stream.enumerate()) {
                let found = self.run(tiles, (tile, m + 1), &self.panels, cut, words);
                self.compare(&found, &expected[..panels], m + 1, isa);
            }
            let Some(wide_tiles) = tiles.widened else {
                continue;
            };
            let mut wide = vec![0; PANELS * self.steps * GROUP * PANEL];
            // SAFETY: this machine runs the kernels.
            unsafe { (kernels(isa).widen)(self.scales, &self.panels, &mut wide) };
            let tile = wide_tiles.single[1];
            let found = self.run(wide_tiles, (tile, 2), &wide, cut, GROUP * PANEL);
            self.compare(&found, &expected[..1], 2, isa);
        }
    }

    fn compare(&self, found: &[f32], expected: &[Vec<f32>], m: usize, isa: Isa) {
        for (p, expected) in expected.iter().enumerate() {
            for r in 0..m {
                let start = (r * PANELS + p) * PANEL;
                let pairs = found[start..start + PANEL]
                    .iter()
                    .zip(&expected[r * PANEL..]);
                for (found, expected) in pairs {
                    assert_eq!(
                        found.to_bits(),
                        expected.to_bits(),
                        "{isa} {m} rows, {p} {r}"
                    );
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn kernels_give_the_scalar_ones_bits(steps in 1usize..4, seed: u64, cut: prop::sample::Index) {
        for scales in [1, 2, 8, MOST_SCALES] {
            Case::new(scales, steps, seed).expect(cut.index(steps + 1));
        }
    }
}

#[test]
fn places_fill_a_part() {
    for runs in [1, RUNS] {
        let mut seen = vec![false; runs * 4 * PANEL];
        for input in 0..runs * RUN {
            for lane in 0..PANEL {
                assert!(!std::mem::replace(&mut seen[place(input, lane)], true));
            }
        }
        assert!(seen.into_iter().all(|seen| seen));
    }
}
