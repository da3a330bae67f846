//! Every kernel that this machine runs, compared with the scalar one bit by bit, and that one with
//! whole numbers.

use lockstep_backend::{FactorType, GroupFormat};
use proptest::prelude::*;

use super::kernels::KERNELS;
use super::*;
use crate::formats::{self, all_groups};
use crate::gemm::prefetch::Ahead;
use crate::gemm::tile::TileFn;
use crate::gemm::tiles::{Input, Tiles};
use crate::isa::Isa;
use crate::number::pack_row;
use crate::quantize::GROUP;

/// Panels that the widest tile streams at once.
const PANELS: usize = 4;
/// Most rows of a tile.
const ROWS: usize = 12;

struct Case {
    format: GroupFormat,
    layout: &'static Layout,
    steps: usize,
    rows: Vec<Vec<f32>>,
    panels: Vec<u32>,
}

impl Case {
    /// Any codes and multiples, and factors around one of both signs. A group of one row is not
    /// finite.
    fn new(format: GroupFormat, steps: usize, seed: u64) -> Self {
        let mut state = seed | 1;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 16) as u32
        };
        let layout = formats::groups_layout(format);
        let mut panels = vec![0; PANELS * steps * layout.step_words];
        for step in panels.chunks_exact_mut(layout.step_words) {
            step.iter_mut().for_each(|word| *word = next());
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut step[layout.code_words..]);
            let places = [Some(layout.factor), layout.min_factor]
                .into_iter()
                .flatten();
            for place in places {
                for group in 0..layout.groups {
                    let bytes = &mut bytes[place.at(group)..][..PANEL * layout.factor_bytes()];
                    around_one(layout.factors, bytes);
                }
            }
        }
        let mut row = || -> Vec<f32> {
            let values = (0..steps * GROUP).map(|_| next() as f32 / 1e9 - 2.0);
            values.collect()
        };
        let mut rows: Vec<_> = (0..ROWS).map(|_| row()).collect();
        rows[seed as usize % ROWS][seed as usize / 64 % (steps * GROUP)] = f32::NAN;
        Self {
            format,
            layout,
            steps,
            rows,
            panels,
        }
    }

    /// Rows from `first` on, packed for tiles.
    fn inputs(&self, input: Input, first: usize, m: usize) -> Vec<u32> {
        let mut a = vec![0u32; input.len(self.steps * GROUP) * m];
        for (r, row) in self.rows[first..first + m].iter().enumerate() {
            pack_row(Isa::Scalar, input, row, &mut a, r, m);
        }
        a
    }

    /// Multiplies rows `first..first + m` by the panels from `panel` on, in two calls cut at `cut`.
    fn run(
        &self,
        tiles: &Tiles,
        tile: TileFn,
        [first, m, panel]: [usize; 3],
        cut: usize,
    ) -> Vec<f32> {
        let a = self.inputs(tiles.input, first, m);
        let (ldc, words) = (PANELS * PANEL, self.layout.step_words);
        let mut c = vec![f32::NAN; m * ldc];
        for part in [0..cut, cut..self.steps] {
            let work = Tile {
                a: a[part.start * tiles.input.step_words() * m..].as_ptr(),
                b: self.panels[(panel * self.steps + part.start) * words..].as_ptr(),
                panel_stride: self.steps * words,
                steps: part.len(),
                scales: 1,
                layout: self.layout,
                c: c.as_mut_ptr(),
                ldc,
                resume: part.start > 0,
                ahead: Ahead::NOTHING,
                aside: None,
            };
            // SAFETY: only kernels that run here are called, with the rows and panels they are
            // made for and room for both.
            unsafe { tile(&work) };
        }
        c
    }

    fn expect(&self, cut: usize) {
        let plain = KERNELS[0].of(self.layout);
        let alone =
            |r: usize, p: usize| self.run(plain, plain.single[0], [r, 1, p], 0)[..PANEL].to_vec();
        let rows = 0..ROWS;
        let expected: Vec<Vec<_>> = rows
            .map(|r| (0..PANELS).map(|p| alone(r, p)).collect())
            .collect();
        for kernels in KERNELS.iter().filter(|kernels| (kernels.runs)()) {
            let tiles = kernels.of(self.layout);
            let single = tiles.single.iter().map(|tile| (*tile, 1)).enumerate();
            let stream = tiles.stream.iter().copied().enumerate();
            for (m, (tile, panels)) in single.chain(stream).map(|(i, tile)| (i + 1, tile)) {
                let got = self.run(tiles, tile, [0, m, 0], cut);
                for (r, expected) in expected[..m].iter().enumerate() {
                    for (p, expected) in expected[..panels].iter().enumerate() {
                        let start = (r * PANELS + p) * PANEL;
                        let pairs = got[start..start + PANEL].iter().zip(expected);
                        let same = pairs.into_iter().all(|(a, b)| a.to_bits() == b.to_bits());
                        let (name, format) = (kernels.name, self.format);
                        assert!(same, "{name} {m} rows, panel {p}, row {r}, {format:?}");
                    }
                }
            }
        }
    }
}

/// Makes factors of any bits ones between 0.5 and 2, or their negatives.
fn around_one(factors: FactorType, bytes: &mut [u8]) {
    let high = match factors {
        FactorType::F16 => [0x83, 0x3c],
        FactorType::Bf16 | FactorType::F32 => [0x80, 0x3f],
    };
    let width = if factors == FactorType::F32 { 4 } else { 2 };
    for bytes in bytes.chunks_exact_mut(width) {
        bytes[width - 1] = bytes[width - 1] & high[0] | high[1];
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn kernels_give_the_scalar_ones_bits(
        steps in 1usize..5,
        seed: u64,
        format: prop::sample::Index,
        cut: prop::sample::Index,
    ) {
        let formats: Vec<_> = all_groups().collect();
        let case = Case::new(formats[format.index(formats.len())], steps, seed);
        case.expect(cut.index(steps + 1));
    }
}
