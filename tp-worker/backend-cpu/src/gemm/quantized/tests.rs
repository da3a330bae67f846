//! Every kernel that this machine runs, compared with the scalar one bit by bit.

use lockstep_backend::WeightFormat;
use lockstep_types::Dtype;
use proptest::prelude::*;

use super::widen::without_least;
use super::{KERNELS, amx_emulated};
use crate::formats;
use crate::gemm::layout::Layout;
use crate::gemm::prefetch::Ahead;
use crate::gemm::tile::{PANEL, Tile, TileFn};
use crate::gemm::tiles::Tiles;
use crate::isa::Isa;
use crate::number::{bf16_bits, pack_row};

/// Panels that the widest tile streams at once.
const PANELS: usize = 4;

struct Case {
    format: WeightFormat,
    steps: usize,
    rows: Vec<Vec<f32>>,
    panels: Vec<u32>,
}

/// Words of a step of a panel.
fn step_words(format: WeightFormat) -> usize {
    formats::of(Dtype::Bfloat16, format).step_words()
}

impl Case {
    /// Makes a case of random weights. Any bits are valid weights, except a multiplier of
    /// −16. Scales lie between 1 and 2. One group of one row is not finite.
    fn new(format: WeightFormat, steps: usize, rows: usize, seed: u64) -> Self {
        let mut state = seed | 1;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 16) as u32
        };
        let words = step_words(format);
        let mut panels = vec![0; PANELS * steps * words];
        for step in panels.chunks_exact_mut(words) {
            step.iter_mut().for_each(|word| *word = next());
            match format {
                WeightFormat::Int4 => step[512..].iter_mut().for_each(|scale| {
                    *scale = without_least((*scale & 0x00ff_ffff) | 0x7f00_0000);
                }),
                _ => step[1_024..].iter_mut().for_each(|scales| {
                    *scales = (*scales & 0x007f_007f) | (bf16_bits(1.0) * 0x1_0001);
                }),
            }
        }
        let mut row = || -> Vec<f32> {
            let values = (0..steps * 128).map(|_| next() as f32 / 1e9 - 2.0);
            values.collect()
        };
        let mut values: Vec<_> = (0..rows).map(|_| row()).collect();
        values[seed as usize % rows][seed as usize / 64 % (steps * 128)] = f32::NAN;
        Self {
            format,
            steps,
            rows: values,
            panels,
        }
    }

    /// Multiplies rows `first..first + m` by the first `p` panels, in two calls cut at
    /// `cut`.
    fn run(&self, tiles: &Tiles, tile: TileFn, first: usize, m: usize, cut: usize) -> Vec<f32> {
        let mut a = vec![0u32; tiles.input.len(self.steps * 128) * m];
        for (r, row) in self.rows[first..first + m].iter().enumerate() {
            pack_row(Isa::Scalar, tiles.input, row, &mut a, r, m);
        }
        let ldc = PANELS * PANEL;
        let mut c = vec![f32::NAN; m * ldc];
        for part in [0..cut, cut..self.steps] {
            let work = Tile {
                a: a[part.start * tiles.input.step_words() * m..].as_ptr(),
                b: self.panels[part.start * step_words(self.format)..].as_ptr(),
                panel_stride: self.steps * step_words(self.format),
                steps: part.len(),
                scales: 1,
                layout: &Layout::NONE,
                c: c.as_mut_ptr(),
                ldc,
                resume: part.start > 0,
                ahead: Ahead::NOTHING,
                aside: None,
            };
            // SAFETY: only kernels that run here are called, with the rows and
            // panels they are made for and room for both.
            unsafe { tile(&work) };
        }
        c
    }

    /// The scalar kernel's results, row by row and panel by panel.
    fn expected(&self) -> Vec<Vec<Vec<f32>>> {
        let plain = match self.format {
            WeightFormat::Int4 => KERNELS[0].int4[0].1,
            _ => KERNELS[0].int8[0].1,
        };
        let panel = |p: usize| {
            let shifted = Self {
                format: self.format,
                steps: self.steps,
                rows: self.rows.clone(),
                panels: self.panels[p * self.steps * step_words(self.format)..].to_vec(),
            };
            let rows = 0..self.rows.len();
            let row = |r| shifted.run(plain, plain.single[0], r, 1, 0)[..PANEL].to_vec();
            rows.map(row).collect()
        };
        (0..PANELS).map(panel).collect()
    }

    /// All tables of this machine, by name.
    fn tables(&self) -> impl Iterator<Item = (&'static str, &'static Tiles)> {
        let int4 = self.format == WeightFormat::Int4;
        let here = KERNELS.iter().filter(|kernels| (kernels.runs)());
        let all = here.flat_map(move |kernels| {
            let tables = if int4 { kernels.int4 } else { kernels.int8 };
            tables.iter().map(|(_, tiles)| (kernels.name, *tiles))
        });
        let plain = match self.format {
            WeightFormat::Int4 => &amx_emulated::scalar::INT4,
            _ => &amx_emulated::scalar::INT8,
        };
        all.chain([("plain blocks", plain)])
    }

    fn expect(&self, cut: usize) {
        let expected = self.expected();
        for (name, tiles) in self.tables() {
            let single = tiles.single.iter().map(|tile| (*tile, 1));
            let stream = tiles.stream.iter().copied();
            let all = single.enumerate().chain(stream.enumerate());
            for (m, (tile, panels)) in all.map(|(i, tile)| (i + 1, tile)) {
                let got = self.run(tiles, tile, 0, m, cut);
                for (p, expected) in expected[..panels].iter().enumerate() {
                    for (r, expected) in expected[..m].iter().enumerate() {
                        let start = (r * PANELS + p) * PANEL;
                        let same = got[start..start + PANEL]
                            .iter()
                            .zip(expected)
                            .all(|(a, b)| a.to_bits() == b.to_bits());
                        assert!(same, "{name} {m} rows, panel {p}, row {r}");
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn kernels_give_the_scalar_ones_bits(steps in 1usize..8, seed: u64, cut: prop::sample::Index) {
        for format in [WeightFormat::Int8, WeightFormat::Int4] {
            Case::new(format, steps, 32, seed).expect(cut.index(steps + 1));
        }
    }
}
