//! Tokens that the device chooses, compared with those of the host's sampler.

use lockstep_backend::{
    Batch, Choice, ChoiceBatch, ChoiceMethod, ChoiceRow, DraftedRow, FAILED, Masks,
};
use lockstep_backend_cuda::{Element, LogitRows, MaskRoom, SamplingBuffers, SamplingKernels};
use lockstep_sampling::{Request, Sampler, TokenHistory};
use lockstep_types::sampling::SamplingParams;

use crate::support::{Gpu, Noise, SEEDS, bits, tokens};

pub fn one_of<T: Copy>(noise: &mut Noise, of: &[T]) -> T {
    of[noise.below(of.len())]
}

/// A number in 0..1.
fn unit(noise: &mut Noise) -> f32 {
    (noise.next() >> 40) as f32 / (1 << 24) as f32
}

/// Logits of one of many kinds: some with ties or holes, some with nothing but ties, some with
/// nothing to choose from.
fn logits(noise: &mut Noise, vocab: usize) -> Vec<f32> {
    let kind = noise.below(12);
    let scale = one_of(noise, &[1e-8, 0.01, 1.0, 4.0, 4.0, 30.0, 1e30]);
    // A sum of four is nearly normal.
    let smooth = |noise: &mut Noise| (0..4).map(|_| noise.float()).sum::<f32>() * scale;
    let mut row: Vec<f32> = match kind {
        0 => vec![one_of(noise, &[0.0, -0.0, -7.5, 1e38]); vocab],
        1 | 2 => (0..vocab).map(|_| noise.below(5) as f32 * scale).collect(),
        3 => (0..vocab).map(|_| one_of(noise, &[0.0, -0.0])).collect(),
        _ => (0..vocab).map(|_| smooth(noise)).collect(),
    };
    for _ in 0..noise.below(4) {
        let at = noise.below(vocab);
        row[at] = match noise.below(8) {
            0 => f32::NAN,
            1 => -f32::NAN,
            2 => f32::INFINITY,
            3 => 3e38,
            4 => 8.0 * scale,
            _ => f32::NEG_INFINITY,
        };
    }
    match kind {
        4 => row
            .iter_mut()
            .skip(1 + noise.below(vocab))
            .for_each(|x| *x = f32::NEG_INFINITY),
        5 if noise.below(4) == 0 => row.fill(f32::NEG_INFINITY),
        _ => {}
    }
    row
}

fn params(noise: &mut Noise, vocab: usize) -> SamplingParams {
    let vocab = vocab as u32;
    let any = 1 + noise.below(vocab as usize) as u32;
    SamplingParams {
        temperature: match noise.below(8) {
            0 => 0.0,
            1 => one_of(noise, &[1e-45, 1e-20, 100.0]),
            2 | 3 => 1.0,
            _ => 0.05 + 2.0 * unit(noise),
        },
        top_k: match noise.below(3) {
            0 => 0,
            1 => one_of(
                noise,
                &[1, 2, 20, 50, vocab - 1, vocab, vocab + 1, u32::MAX],
            ),
            _ => any,
        },
        top_p: match noise.below(3) {
            0 => 1.0,
            1 => one_of(noise, &[1e-6, 0.5, 0.9, 0.95, 0.999_999]),
            _ => unit(noise).max(1e-6),
        },
        min_p: match noise.below(3) {
            0 => unit(noise),
            1 => one_of(noise, &[1e-9, 0.05, 1.0]),
            _ => 0.0,
        },
        seed: noise.next(),
        ..SamplingParams::default()
    }
}

/// Rows of logits, and how their tokens are chosen.
struct Rows {
    vocab: usize,
    logits: Vec<f32>,
    params: Vec<SamplingParams>,
    positions: Vec<u64>,
    depths: Vec<u32>,
    /// Rows that have a mask, and their masks.
    masked: Vec<u32>,
    bits: Vec<u32>,
}

/// A mask of one of many kinds: some allow nothing, one token, or all.
fn mask(noise: &mut Noise, vocab: usize) -> Vec<u32> {
    let kind = noise.below(8);
    let one = one_of(noise, &[0, vocab - 1, vocab / 2]);
    let allows = |noise: &mut Noise, token: usize| match kind {
        0 => false,
        1 => token == one,
        2 => true,
        3 => noise.below(40) == 0,
        _ => noise.below(2) == 0,
    };
    let mut bits = vec![0; vocab.div_ceil(32)];
    for token in 0..vocab {
        bits[token / 32] |= u32::from(allows(noise, token)) << (token % 32);
    }
    bits
}

impl Rows {
    fn draw(noise: &mut Noise, vocab: usize, rows: usize) -> Self {
        let position = |noise: &mut Noise| noise.next() >> one_of(noise, &[1, 32, 60]);
        Self {
            vocab,
            logits: (0..rows).flat_map(|_| logits(noise, vocab)).collect(),
            params: (0..rows).map(|_| params(noise, vocab)).collect(),
            positions: (0..rows).map(|_| position(noise)).collect(),
            depths: (0..rows).map(|_| noise.below(20) as u32).collect(),
            masked: Vec::new(),
            bits: Vec::new(),
        }
    }

    /// Gives masks to two thirds of the rows.
    fn with_masks(mut self, noise: &mut Noise) -> Self {
        self.masked = (0..self.len() as u32).filter(|row| row % 3 != 1).collect();
        let masks = self.masked.iter();
        self.bits = masks.flat_map(|_| mask(noise, self.vocab)).collect();
        self
    }

    fn masks(&self) -> Masks<'_> {
        Masks {
            rows: &self.masked,
            bits: &self.bits,
        }
    }

    /// The mask of a row, if it has one.
    fn allowed(&self, row: usize) -> Option<&[u32]> {
        let masks = self.masks().within(row..row + 1);
        (!masks.rows.is_empty()).then_some(masks.bits)
    }

    fn len(&self) -> usize {
        self.params.len()
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.logits[row * self.vocab..][..self.vocab]
    }

    /// The host's tokens.
    fn sampled(&self) -> Vec<u32> {
        let mut sampler = Sampler::new(self.vocab);
        let history = TokenHistory::default();
        let mut token = |row: usize| {
            let request = Request {
                params: &self.params[row],
                history: &history,
                position: self.positions[row] + u64::from(self.depths[row]),
                allowed: self.allowed(row),
            };
            sampler.sample(self.row(row), request).unwrap_or(FAILED)
        };
        (0..self.len()).map(&mut token).collect()
    }

    /// The device's tokens, in blocks of `block` rows; then the rest of the first block's
    /// logits.
    fn chosen(
        &self,
        gpu: &Gpu,
        sampling: &SamplingKernels,
        block: usize,
        host: &[usize],
    ) -> (Vec<u32>, Vec<f32>) {
        let choices: Vec<Choice> = (0..self.len())
            .map(|row| {
                let mut choice = Choice::of(&self.params[row], self.positions[row]);
                if host.contains(&row) {
                    choice.how = ChoiceMethod::Host;
                }
                choice
            })
            .collect();
        let row = |(request, depth): (u32, &u32)| ChoiceRow {
            request,
            depth: *depth,
        };
        let rows: Vec<ChoiceRow> = (0..).zip(&self.depths).map(row).collect();
        let alone = |logits| DraftedRow {
            logits,
            token: logits,
            nodes: 0,
            parents: None,
        };
        let drafted: Vec<DraftedRow> = (0..self.len() as u32).map(alone).collect();
        let all: Vec<u32> = (0..self.len() as u32).collect();
        let batch = Batch {
            logit_tokens: &all,
            choices: ChoiceBatch {
                choices: &choices,
                rows: &rows,
                drafted: &drafted,
                parents: &[],
            },
            ..tokens(&all)
        };
        let mut inputs = gpu.inputs(&batch, 1);
        let mut room = SamplingBuffers::new(&gpu.stream, block).expect("room");
        let mut mask_room = MaskRoom::new(&gpu.context, block, self.vocab).expect("room");
        let mut left = Vec::new();
        for first in (0..self.len()).step_by(block) {
            let range = first..self.len().min(first + block);
            let own = &self.logits[range.start * self.vocab..range.end * self.vocab];
            let mut on_device = gpu.floats(Element::F32, own);
            let logits = LogitRows {
                floats: &mut on_device,
                vocab: self.vocab,
                first: 0,
            };
            let (stream, masks) = (&gpu.stream, self.masks().within(range.clone()));
            sampling
                .mask(stream, &logits, first, masks, &mut mask_room)
                .expect("a launch");
            sampling
                .choose(stream, logits, range, &mut inputs, &mut room)
                .expect("launches");
            if first == 0 {
                left = gpu.read(&on_device);
            }
        }
        let mut found = vec![0; self.len()];
        let copied = gpu.stream.download(inputs.chosen().tokens(), &mut found);
        copied.expect("a copy");
        (found, left)
    }
}

/// Compares `count` rows. Returns the number of failed rows and the number of rows that had to
/// be drawn.
fn compare(
    gpu: &Gpu,
    sampling: &SamplingKernels,
    vocab: usize,
    count: usize,
    noise: &mut Noise,
) -> [usize; 2] {
    compare_rows(gpu, sampling, &Rows::draw(noise, vocab, count), noise)
}

/// Compares rows, as [`compare`] does.
fn compare_rows(
    gpu: &Gpu,
    sampling: &SamplingKernels,
    rows: &Rows,
    noise: &mut Noise,
) -> [usize; 2] {
    let (vocab, count) = (rows.vocab, rows.len());
    let wanted = rows.sampled();
    let (found, _) = rows.chosen(gpu, sampling, 1 + noise.below(count), &[]);
    for (row, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
        let (params, position) = (&rows.params[row], rows.positions[row]);
        assert_eq!(
            found, wanted,
            "{params:?} at {position} + {} of {vocab}",
            rows.depths[row]
        );
    }
    let failed = wanted.iter().filter(|token| **token == FAILED).count();
    let drawn = rows
        .params
        .iter()
        .filter(|params| params.temperature > 0.0)
        .count();
    [failed, drawn]
}

pub fn sampling(gpu: &Gpu) -> SamplingKernels {
    SamplingKernels::new(&gpu.context, &gpu.compiler).expect("kernels")
}

/// Compares rows for each pair of `(vocabulary, rows)`.
fn tokens_are_the_samplers(sizes: &[(usize, usize)]) {
    let gpu = Gpu::new();
    let sampling = sampling(&gpu);
    for (number, (vocab, rows)) in sizes.iter().enumerate() {
        let _order = lockstep_fake_cuda::order(number as u64 + 1);
        let mut noise = Noise(number as u64);
        let (mut left, mut failed, mut drawn) = (*rows, 0, 0);
        while left > 0 {
            let count = left.min(if *vocab > 10_000 { 4 } else { 100 });
            let [failures, draws] = compare(&gpu, &sampling, *vocab, count, &mut noise);
            (left, failed, drawn) = (left - count, failed + failures, drawn + draws);
        }
        let varied = failed > rows / 50 && drawn > rows / 2;
        assert!(
            *rows < 100 || varied,
            "{rows} rows of {vocab}: {drawn} drawn, {failed} failed"
        );
    }
}

#[test]
fn some_tokens_are_those_of_the_sampler() {
    tokens_are_the_samplers(&[
        (1000, 400),
        (128_256, 8),
        (1, 20),
        (33, 100),
        (1025, 30),
        (3000, 60),
    ]);
}

#[test]
#[ignore = "minutes"]
fn a_hundred_thousand_tokens_are_those_of_the_sampler() {
    tokens_are_the_samplers(&[(1000, 96_000), (128_256, 4_000)]);
}

/// Weights of tokens have the host's bits; tokens alone would mostly agree anyway.
#[test]
fn weights_are_those_of_the_sampler() {
    let gpu = Gpu::new();
    weights_are_equal(&gpu, &sampling(&gpu), 3000);
}

fn weights_are_equal(gpu: &Gpu, sampling: &SamplingKernels, vocab: usize) {
    let (count, mut compared) = (20, 0);
    for seed in SEEDS {
        let mut rows = Rows::draw(&mut Noise(seed), vocab, count);
        for params in &mut rows.params {
            (params.top_k, params.top_p, params.min_p) = (0, 1.0, 0.0);
        }
        let (_, left) = rows.chosen(gpu, sampling, count, &[]);
        let (mut sampler, history) = (Sampler::new(vocab), TokenHistory::default());
        for row in 0..count {
            let request = Request {
                params: &rows.params[row],
                history: &history,
                position: 0,
                allowed: None,
            };
            let mut law = Vec::new();
            let done = sampler.distribution(rows.row(row), request, &mut law);
            if done.is_err() || rows.params[row].temperature == 0.0 {
                continue;
            }
            // The most likely token's weight is 1.
            let scale = law.iter().copied().fold(0.0, f32::max);
            for (weight, probability) in left[row * vocab..].iter().zip(&law) {
                match weight {
                    0.0 => assert!(*probability < 1e-13),
                    _ => assert_eq!((weight * scale).to_bits(), probability.to_bits()),
                }
                compared += usize::from(*weight > 0.0);
            }
        }
    }
    assert!(compared > 10 * vocab, "{compared}");
}

/// Masked rows have the tokens that the host's sampler takes under the same masks, and the rows
/// between them those that they have without: a mask changes no neighbour.
#[test]
fn masked_tokens_are_those_of_the_sampler() {
    let gpu = Gpu::new();
    masked_rows_are_equal(
        &gpu,
        &sampling(&gpu),
        &[(1000, 90), (33, 60), (1, 9), (20_000, 9)],
    );
}

fn masked_rows_are_equal(gpu: &Gpu, sampling: &SamplingKernels, sizes: &[(usize, usize)]) {
    let (mut failed, mut drawn) = (0, 0);
    for ((vocab, count), seed) in sizes.iter().zip(SEEDS.into_iter().cycle()) {
        let _order = lockstep_fake_cuda::order(seed);
        let mut noise = Noise(seed);
        let rows = Rows::draw(&mut noise, *vocab, *count).with_masks(&mut noise);
        let [failures, draws] = compare_rows(gpu, sampling, &rows, &mut noise);
        (failed, drawn) = (failed + failures, drawn + draws);
    }
    assert!(failed > 3 && drawn > 10, "{failed} failed, {drawn} drawn");
}

/// Small enough to run for every fault in the kernel of masks.
#[test]
#[ignore = "a process of its own, which another test starts"]
fn a_few_masks_are_watched() {
    let gpu = Gpu::new();
    masked_rows_are_equal(&gpu, &sampling(&gpu), &[(300, 40), (33, 30)]);
}

/// A row that the host chooses from keeps its logits, whatever happens to other rows.
#[test]
fn logits_that_the_host_chooses_from_stay() {
    let gpu = Gpu::new();
    let sampling = sampling(&gpu);
    for seed in SEEDS {
        let _order = lockstep_fake_cuda::order(seed);
        let rows = Rows::draw(&mut Noise(seed), 300, 5);
        let (found, left) = rows.chosen(&gpu, &sampling, 5, &[1, 4]);
        let wanted = rows.sampled();
        for row in 0..5 {
            match row {
                1 | 4 => assert_eq!(bits(&left[row * 300..][..300]), bits(rows.row(row))),
                _ => assert_eq!(found[row], wanted[row]),
            }
        }
    }
}

/// A little of every kernel, for sanitizers.
pub fn every_kernel(gpu: &Gpu) {
    let sampling = sampling(gpu);
    for seed in 1..3 {
        let _order = lockstep_fake_cuda::order(seed);
        compare(gpu, &sampling, 300, 6, &mut Noise(seed));
    }
}

/// Small enough to run for every fault, with a case of each kind.
#[test]
#[ignore = "a process of its own, which another test starts"]
fn little_is_chosen_and_watched() {
    let gpu = Gpu::new();
    let sampling = sampling(&gpu);
    for seed in SEEDS {
        let _order = lockstep_fake_cuda::order(seed);
        compare(&gpu, &sampling, 1500, 40, &mut Noise(seed));
    }
    weights_are_equal(&gpu, &sampling, 500);
}
