//! Writes to the cache, and a prompt that goes through it in passes.

use lockstep_backend::{
    AttentionShape, Batch, ChainLimits, ChoiceLimits, InputLimits, KvShape, Row,
};
use lockstep_backend_cuda::{
    Attention, Beside, CudaError, Element, Floats, HeadNorms, Inputs, PagedCache, Rope, Rows, Work,
    WorkLimits,
};
use lockstep_types::KvCacheDtype;

use crate::support::{ELEMENTS, Gpu, Noise, SEEDS, assert_close, bits, rounded, tokens, tolerance};

const EPS: f32 = 1e-6;
const PAGE_SIZE: usize = 4;

fn shape() -> AttentionShape {
    AttentionShape::dense(6, 2, 40, 0.2)
}

fn cache_shape(element: Element, layers: usize, pages: usize) -> KvShape {
    KvShape {
        latent: None,
        group: 0,
        layers,
        kv_heads: shape().kv_heads,
        head_dim: shape().head_dim,
        pages,
        page_size: PAGE_SIZE,
        dtype: match element {
            Element::F32 => KvCacheDtype::Float32,
            Element::Bf16 => KvCacheDtype::Bfloat16,
        },
    }
}

fn kernels(gpu: &Gpu, element: Element) -> Attention {
    Attention::new(&gpu.context, &gpu.compiler, &shape(), element, element).expect("kernels")
}

/// Norms and angles, on the host.
struct Weights {
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Weights {
    fn new(noise: &mut Noise, half: usize, positions: usize) -> Self {
        let angles = noise.floats(positions * half);
        Self {
            queries: noise.floats(shape().head_dim),
            keys: noise.floats(shape().head_dim),
            values: noise.floats(shape().head_dim),
            half,
            cos: angles.iter().map(|angle| angle.cos()).collect(),
            sin: angles.iter().map(|angle| angle.sin()).collect(),
        }
    }

    fn rope(&self, gpu: &Gpu) -> Rope {
        Rope {
            half: self.half,
            cos: gpu.buffer(&self.cos),
            sin: gpu.buffer(&self.sin),
            queries: None,
        }
    }

    /// Head `head` of a token's `qkv` as it should be after norm and rotation.
    fn applied(&self, x: &[f32], head: usize, position: usize, norms: bool) -> Vec<f64> {
        let shape = shape();
        let mut x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let turned = head < shape.heads + shape.kv_heads;
        if norms {
            let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
            let scale = (mean + f64::from(EPS)).sqrt().recip();
            let weight = match head {
                _ if head < shape.heads => &self.queries,
                _ if turned => &self.keys,
                _ => &self.values,
            };
            let weighted = x.iter_mut().zip(weight);
            weighted.for_each(|(x, weight)| *x *= scale * f64::from(*weight));
        }
        for i in 0..if turned { self.half } else { 0 } {
            let angle = position * self.half + i;
            let (cos, sin) = (f64::from(self.cos[angle]), f64::from(self.sin[angle]));
            let (a, b) = (x[i], x[i + self.half]);
            (x[i], x[i + self.half]) = (a * cos - b * sin, b * cos + a * sin);
        }
        x
    }
}

/// A head of queries, as it lies rounded to the type at the begin of its place.
fn rounded_in_place(element: Element, head: &[f32]) -> Vec<f32> {
    match element {
        Element::F32 => head.to_vec(),
        Element::Bf16 => {
            let halves = head.iter().flat_map(|word| {
                let word = word.to_bits();
                [word as u16, (word >> 16) as u16]
            });
            let values = halves.map(|half| f32::from_bits(u32::from(half) << 16));
            values.take(head.len()).collect()
        }
    }
}

/// The heads of one token's part of `qkv`.
fn heads(qkv: &[f32], token: usize) -> impl Iterator<Item = &[f32]> {
    let width = shape().qkv_width();
    qkv[token * width..][..width].chunks(shape().head_dim)
}

#[test]
fn heads_are_normed_rotated_and_stored() {
    let gpu = Gpu::new();
    let shape = shape();
    for element in ELEMENTS {
        let attention = kernels(&gpu, element);
        for (seed, (norms, half)) in SEEDS.into_iter().zip([(true, 20), (false, 20), (true, 12)]) {
            let _order = lockstep_fake_cuda::order(seed);
            let mut noise = Noise(seed);
            let (tokens, pages) = (noise.rows(), 30);
            let weights = Weights::new(&mut noise, half, 90);
            let positions: Vec<u32> = (0..tokens).map(|_| noise.below(90) as u32).collect();
            // Every token has a cell, from the last one down. The last token's cell does not
            // exist.
            let last = (pages * PAGE_SIZE) as u32 - 1;
            let mut cells: Vec<u32> = (0..tokens as u32).map(|token| last - token).collect();
            cells[tokens - 1] = last + 1;
            let batch = Batch {
                tokens: &positions,
                positions: &positions,
                cells: &cells,
                rows: &[],
                pages: &[],
                logit_tokens: &[],
                ..Batch::default()
            };
            let inputs = gpu.inputs(&batch, PAGE_SIZE);
            let before = noise.floats(tokens * shape.qkv_width());
            let mut qkv = gpu.floats(Element::F32, &before);
            let kv = cache_shape(element, 2, pages);
            let mut cache = PagedCache::new(&gpu.context, &kv).expect("room");
            let size = 2 * pages * PAGE_SIZE * shape.kv_heads * shape.head_dim;
            let empty = vec![f32::NAN; size];
            cache.upload(&gpu.stream, &empty, &empty).expect("a copy");
            let (queries, keys) = (gpu.buffer(&weights.queries), gpu.buffer(&weights.keys));
            let values = gpu.buffer(&weights.values);
            let given = HeadNorms {
                queries: norms.then_some(&queries),
                keys: norms.then_some(&keys),
                values: norms.then_some(&values),
                eps: EPS,
            };
            let rope = weights.rope(&gpu);
            let stream = &gpu.stream;
            attention
                .rotate_and_store(stream, &mut qkv, given, &rope, &inputs, &mut cache, 1)
                .expect("a launch");
            let after = gpu.read(&qkv);
            let (keys, values) = cache.download(stream).expect("a copy");
            let mut written = 0;
            for token in 0..tokens {
                for (head, x) in heads(&before, token).enumerate() {
                    let wanted = weights.applied(x, head, positions[token] as usize, norms);
                    let kept = heads(&after, token).nth(head).expect("a head");
                    let Some(kv_head) = head.checked_sub(shape.heads) else {
                        let query = rounded_in_place(element, kept);
                        assert_close(&query, &wanted, tolerance(element));
                        continue;
                    };
                    assert_eq!(kept, x, "what is stored stays");
                    if cells[token] > last {
                        continue;
                    }
                    let place = |kv_head: usize| {
                        let cell = pages * PAGE_SIZE + cells[token] as usize;
                        (cell * shape.kv_heads + kv_head) * shape.head_dim
                    };
                    let stored = match kv_head.checked_sub(shape.kv_heads) {
                        None => &keys[place(kv_head)..],
                        Some(kv_head) => &values[place(kv_head)..],
                    };
                    assert_close(&stored[..shape.head_dim], &wanted, tolerance(element));
                    written += shape.head_dim;
                }
            }
            let numbers = keys.iter().chain(&values).filter(|x| !x.is_nan());
            assert_eq!(numbers.count(), written, "nothing else is written");
        }
    }
}

#[test]
fn cells_are_copied_one_after_the_other() {
    let gpu = Gpu::new();
    for element in ELEMENTS {
        let attention = kernels(&gpu, element);
        for seed in SEEDS {
            let _order = lockstep_fake_cuda::order(seed);
            let mut noise = Noise(seed);
            let (layers, pages) = (3, 5);
            let kv = cache_shape(element, layers, pages);
            let (cells, cell) = (pages * PAGE_SIZE, kv.kv_heads * kv.head_dim);
            let mut cache = PagedCache::new(&gpu.context, &kv).expect("room");
            let parts = [0, 1].map(|_| rounded(element, &noise.floats(layers * cells * cell)));
            cache
                .upload(&gpu.stream, &parts[0], &parts[1])
                .expect("a copy");
            // Chains of moves, one move from a missing cell, and one to a missing cell.
            let mut moves: Vec<[u32; 2]> = (0..12)
                .map(|_| [noise.below(cells) as u32, noise.below(6) as u32])
                .collect();
            moves.extend([[cells as u32, 0], [0, cells as u32]]);
            let count = Rows::fixed(moves.len());
            let on_device = gpu.buffer(moves.as_flattened());
            attention
                .copy_cells(&gpu.stream, &mut cache, &on_device, count)
                .expect("a launch");
            let (keys, values) = cache.download(&gpu.stream).expect("a copy");
            for (mut expected, found) in parts.into_iter().zip([keys, values]) {
                for [from, to] in &moves[..12] {
                    for layer in 0..layers {
                        let at = |of: u32| (layer * cells + of as usize) * cell;
                        expected.copy_within(at(*from)..at(*from) + cell, at(*to));
                    }
                }
                assert!(expected == found, "{element:?} under {seed}");
            }
        }
    }
}

/// Rows of queries alone are normed and rotated as those beside keys and values.
#[test]
fn queries_may_come_alone() {
    let gpu = Gpu::new();
    let (shape, stream) = (shape(), &gpu.stream);
    for (element, seed) in ELEMENTS.into_iter().zip(SEEDS) {
        let _order = lockstep_fake_cuda::order(seed);
        let attention = kernels(&gpu, element);
        let mut noise = Noise(seed);
        let weights = Weights::new(&mut noise, 20, 40);
        let positions: Vec<u32> = (0..20).map(|_| noise.below(40) as u32).collect();
        let cells: Vec<u32> = (0..20).collect();
        let batch = Batch {
            cells: &cells,
            ..tokens(&positions)
        };
        let inputs = gpu.inputs(&batch, PAGE_SIZE);
        let all = noise.floats(20 * shape.qkv_width());
        let queries = gpu.buffer(&weights.queries);
        let norms = HeadNorms {
            queries: Some(&queries),
            eps: EPS,
            ..HeadNorms::default()
        };
        let with = (norms, &weights.rope(&gpu));
        let kv = cache_shape(element, 1, 5);
        let mut cache = PagedCache::new(&gpu.context, &kv).expect("room");
        let mut qkv = gpu.floats(Element::F32, &all);
        attention
            .prepare(stream, &mut qkv, with, &inputs, Some((&mut cache, 0)))
            .expect("a launch");
        let (of_row, alone) = (shape.qkv_width(), shape.heads * shape.head_dim);
        let own = |all: &[f32]| -> Vec<f32> {
            let rows = all.chunks(of_row);
            rows.flat_map(|row| &row[..alone]).copied().collect()
        };
        let mut queries = gpu.floats(Element::F32, &own(&all));
        attention
            .prepare(stream, &mut queries, with, &inputs, None)
            .expect("a launch");
        let (found, wanted) = (gpu.read(&queries), own(&gpu.read(&qkv)));
        for (found, wanted) in found
            .chunks(shape.head_dim)
            .zip(wanted.chunks(shape.head_dim))
        {
            let of = |head: &[f32]| bits(&rounded_in_place(element, head));
            assert_eq!(of(found), of(wanted));
        }
    }
}

/// Several operations in place, one after the other, do the same as one launch.
#[test]
fn norms_rotation_and_stores_may_be_had_apart() {
    let gpu = Gpu::new();
    let (shape, stream) = (shape(), &gpu.stream);
    for (element, seed) in ELEMENTS.into_iter().zip(SEEDS) {
        let _order = lockstep_fake_cuda::order(seed);
        let attention = kernels(&gpu, element);
        let mut noise = Noise(seed);
        let weights = Weights::new(&mut noise, 20, 40);
        let positions: Vec<u32> = (0..20).map(|_| noise.below(40) as u32).collect();
        let cells: Vec<u32> = (0..20).collect();
        let batch = Batch {
            tokens: &positions,
            positions: &positions,
            cells: &cells,
            ..Batch::default()
        };
        let inputs = gpu.inputs(&batch, PAGE_SIZE);
        let before = noise.floats(20 * shape.qkv_width());
        let rope = weights.rope(&gpu);
        let (queries, keys) = (gpu.buffer(&weights.queries), gpu.buffer(&weights.keys));
        let norms = HeadNorms {
            queries: Some(&queries),
            keys: Some(&keys),
            values: None,
            eps: EPS,
        };
        let kv = cache_shape(element, 1, 5);
        let run = |work: &dyn Fn(&mut Floats, &mut PagedCache) -> Result<(), CudaError>| {
            let mut qkv = gpu.floats(Element::F32, &before);
            let mut cache = PagedCache::new(&gpu.context, &kv).expect("room");
            work(&mut qkv, &mut cache).expect("launches");
            let (keys, values) = cache.download(stream).expect("a copy");
            (gpu.read(&qkv), bits(&keys), bits(&values))
        };
        let at_once = run(&|qkv, cache| {
            attention
                .rotate_and_store(stream, qkv, norms, &rope, &inputs, cache, 0)
                .map(drop)
        });
        let apart = run(&|qkv, cache| {
            let queries_alone = HeadNorms {
                keys: None,
                ..norms
            };
            let keys_alone = HeadNorms {
                queries: None,
                ..norms
            };
            attention.norm_heads(stream, (qkv, false), queries_alone, 20)?;
            attention.norm_heads(stream, (qkv, false), keys_alone, 20)?;
            attention.rotate(stream, (qkv, false), &rope, &inputs)?;
            attention.store(stream, qkv, &inputs, cache, 0)
        });
        assert!((&at_once.1, &at_once.2) == (&apart.1, &apart.2));
        for token in 0..20 {
            for (one, other) in heads(&at_once.0, token)
                .zip(heads(&apart.0, token))
                .take(shape.heads)
            {
                let wanted = rounded(element, other);
                let found = rounded_in_place(element, one);
                assert_eq!(bits(&found), bits(&wanted), "token {token}");
            }
        }
    }
}

/// A prompt in chunks, through one block of inputs, one work list, one cache.
#[test]
fn a_prompt_goes_through_in_passes() {
    const LENGTH: usize = 290;
    let gpu = Gpu::new();
    let shape = shape();
    for (element, seed) in ELEMENTS.into_iter().zip(SEEDS) {
        let _order = lockstep_fake_cuda::order(seed);
        let attention = kernels(&gpu, element);
        let mut noise = Noise(seed);
        let weights = Weights::new(&mut noise, 20, LENGTH);
        let pages: Vec<u32> = (0..LENGTH.div_ceil(PAGE_SIZE) as u32).rev().collect();
        let kv = cache_shape(element, 1, pages.len());
        let mut cache = PagedCache::new(&gpu.context, &kv).expect("room");
        let limits = InputLimits {
            tokens: 100,
            requests: 4,
            groups: 1,
            pages: pages.len(),
            page_size: PAGE_SIZE,
            mask_words: 0,
            replays: 0,
            choices: ChoiceLimits::default(),
            chain: ChainLimits::default(),
        };
        let words = 26 + 400 + 20 + pages.len() as u64;
        assert!(Inputs::bytes(&limits).eq([4 * words]));
        let mut inputs = Inputs::new(&gpu.context, limits).expect("room");
        let room = WorkLimits {
            rows: 4,
            parts: 100,
        };
        let mut work = Work::new(&gpu.context, shape.head_dim, room).expect("room");
        let whole = noise.floats(LENGTH * shape.qkv_width());
        let rope = weights.rope(&gpu);
        let mut found = Vec::new();
        for (start, len) in [
            (0, 100),
            (100, 1),
            (101, 90),
            (191, 60),
            (251, 38),
            (289, 1),
        ] {
            let positions: Vec<u32> = (start as u32..(start + len) as u32).collect();
            let cell = |position: &u32| {
                let (page, offset) = (*position as usize / PAGE_SIZE, *position % PAGE_SIZE as u32);
                pages[page] * PAGE_SIZE as u32 + offset
            };
            let cells: Vec<u32> = positions.iter().map(cell).collect();
            let row = Row {
                start: 0,
                q_len: len as u32,
                kv_len: start as u32,
                pages_start: 0,
                mask: None,
            };
            let batch = Batch {
                tokens: &positions,
                positions: &positions,
                cells: &cells,
                rows: &[row],
                pages: &pages,
                logit_tokens: &[],
                ..Batch::default()
            };
            inputs.stage(&gpu.stream, &batch).expect("a copy");
            let width = shape.qkv_width();
            let mut qkv = gpu.floats(Element::F32, &whole[start * width..][..len * width]);
            let mut out = gpu.poisoned(element, len * shape.out_width());
            let (stream, no_norms) = (&gpu.stream, HeadNorms::default());
            attention
                .plan(stream, &inputs, &mut work)
                .expect("a launch");
            let queries = attention
                .rotate_and_store(stream, &mut qkv, no_norms, &rope, &inputs, &mut cache, 0)
                .expect("a launch");
            attention
                .attend(
                    stream,
                    queries,
                    &inputs,
                    &cache,
                    0,
                    &mut work,
                    &mut out,
                    Beside::default(),
                )
                .expect("launches");
            found.extend(gpu.read(&out));
        }
        let limit = if element == Element::F32 { 3e-5 } else { 3e-2 };
        assert_close(&found, &attended(&whole, &weights), limit);
    }
}

/// Attention over the whole prompt, in f64.
fn attended(qkv: &[f32], weights: &Weights) -> Vec<f64> {
    let shape = shape();
    let length = qkv.len() / shape.qkv_width();
    let applied: Vec<Vec<Vec<f64>>> = (0..length)
        .map(|token| {
            let heads = heads(qkv, token).enumerate();
            heads
                .map(|(head, x)| weights.applied(x, head, token, false))
                .collect()
        })
        .collect();
    let mut out = Vec::new();
    for token in 0..length {
        for head in 0..shape.heads {
            let key = shape.heads + head / (shape.heads / shape.kv_heads);
            let score = |other: usize| -> f64 {
                let pairs = applied[token][head].iter().zip(&applied[other][key]);
                pairs.map(|(q, k)| q * k).sum::<f64>() * f64::from(shape.scale)
            };
            let scores: Vec<f64> = (0..=token).map(score).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
            let total: f64 = weights.iter().sum();
            for column in 0..shape.head_dim {
                let values = applied
                    .iter()
                    .map(|token| token[key + shape.kv_heads][column]);
                let sum: f64 = weights.iter().zip(values).map(|(w, v)| w * v).sum();
                out.push(sum / total);
            }
        }
    }
    out
}
