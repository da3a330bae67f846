//! Requests for attention, and caches for them.

use std::num::NonZeroUsize;

use lockstep_backend::{AttentionShape, Batch, Holds, KvShape, Memory as _, Ops as _, Row};
use lockstep_backend_cpu::{AttentionTasks, CpuBackend, CpuKvCache, CpuVector};
use lockstep_types::{Dtype, KvCacheDtype};

use crate::machine::{Values, rounded, staged, tensor};

/// Rounds a row as a cache does.
fn store(row: &mut [f32], kv_dtype: KvCacheDtype) {
    match kv_dtype {
        KvCacheDtype::Float32 => {}
        KvCacheDtype::Bfloat16 => row
            .iter_mut()
            .for_each(|x| *x = half::bf16::from_f32(*x).to_f32()),
        KvCacheDtype::Int8 => {
            let largest = row.iter().fold(0f32, |max, x| max.max(x.abs()));
            let scale = largest / 127.0;
            for x in row {
                *x = (*x * (127.0 / largest)).round_ties_even() * scale;
            }
        }
    }
}

/// Requests with all their tokens' queries, keys and values.
pub struct World {
    pub shape: AttentionShape,
    /// Sinks of the query heads; none where the shape has none.
    sinks: Vec<f32>,
    /// Per request, `[tokens, qkv]`.
    pub requests: Vec<Vec<f32>>,
}

impl World {
    pub fn new(
        heads: usize,
        kv_heads: usize,
        head_dim: usize,
        lengths: &[usize],
        seed: u64,
    ) -> Self {
        let scale = 1.0 / (head_dim as f32).sqrt();
        let shape = AttentionShape::dense(heads, kv_heads, head_dim, scale);
        let mut values = Values::new(seed);
        let request = |&length: &usize| {
            let floats = values.floats(length * shape.qkv_width());
            floats.iter().map(|x| x * 3.0).collect()
        };
        Self {
            shape,
            sinks: Vec::new(),
            requests: lengths.iter().map(request).collect(),
        }
    }

    /// The same requests, attended within a window.
    pub fn within(mut self, window: Option<usize>) -> Self {
        self.shape.window = window.and_then(NonZeroUsize::new);
        self
    }

    /// Returns the same requests, attended with bounded scores.
    pub fn capped(mut self, softcap: f32) -> Self {
        self.shape.softcap = Some(softcap);
        self
    }

    /// Returns the same requests, attended beside sinks, if there are to be some. Most are as
    /// large as scores; one is so large that it takes nearly all, one so small that it takes
    /// nothing.
    pub fn beside_sinks(mut self, sinks: bool) -> Self {
        self.shape.sinks = sinks;
        let heads = if sinks { self.shape.heads } else { 0 };
        self.sinks = (0..heads).map(|head| (head % 5) as f32 - 1.5).collect();
        if let [first, .., last] = self.sinks.as_mut_slice() {
            (*first, *last) = (40.0, -200.0);
        }
        self
    }

    /// Returns the sinks on the device, as an operation takes them.
    pub fn sinks(&self, backend: &mut CpuBackend) -> Option<CpuVector> {
        let some = self.shape.sinks;
        some.then(|| backend.load_vector(&self.sinks).unwrap())
    }

    /// One key head, and the query heads that it serves.
    pub fn of_key_head(&self, head: usize) -> Self {
        let AttentionShape {
            heads,
            kv_heads,
            head_dim,
            ..
        } = self.shape;
        let group = heads / kv_heads;
        let parts = [
            (head * group, group),
            (heads + head, 1),
            (heads + kv_heads + head, 1),
        ];
        let of_token = |token: &[f32]| {
            let part = |(first, count)| &token[first * head_dim..][..count * head_dim];
            parts.map(part).concat()
        };
        let of_request = |tokens: &Vec<f32>| {
            let tokens = tokens.chunks(self.shape.qkv_width());
            tokens.flat_map(of_token).collect()
        };
        Self {
            shape: AttentionShape {
                heads: group,
                kv_heads: 1,
                ..self.shape
            },
            sinks: match self.shape.sinks {
                true => self.sinks[head * group..(head + 1) * group].to_vec(),
                false => Vec::new(),
            },
            requests: self.requests.iter().map(of_request).collect(),
        }
    }

    /// One request, with keys and values rounded as in a cache.
    pub fn stored(&self, request: usize, kv_dtype: KvCacheDtype) -> Vec<f32> {
        let AttentionShape {
            heads, head_dim, ..
        } = self.shape;
        let mut stored = self.requests[request].clone();
        for token in stored.chunks_mut(self.shape.qkv_width()) {
            for row in token[heads * head_dim..].chunks_mut(head_dim) {
                store(row, kv_dtype);
            }
        }
        stored
    }

    pub fn length(&self, request: usize) -> usize {
        self.requests[request].len() / self.shape.qkv_width()
    }

    /// Attention of one request in f64. Queries are rounded to `dtype`, keys and values like
    /// in a cache.
    pub fn reference(&self, request: usize, dtype: Dtype, kv_dtype: KvCacheDtype) -> Vec<f64> {
        let AttentionShape {
            heads,
            kv_heads,
            head_dim,
            scale,
            ..
        } = self.shape;
        let (width, tokens) = (self.shape.qkv_width(), self.length(request));
        let stored = self.stored(request, kv_dtype);
        let at = |token: usize, column: usize| f64::from(stored[token * width + column]);
        let query = |token: usize, column: usize| {
            rounded(self.requests[request][token * width + column], dtype)
        };
        let mut out = Vec::new();
        for token in 0..tokens {
            for head in 0..heads {
                let key = (heads + head / (heads / kv_heads)) * head_dim;
                let value = key + kv_heads * head_dim;
                let score = |past: usize| -> f64 {
                    let dot: f64 = (0..head_dim)
                        .map(|d| query(token, head * head_dim + d) * at(past, key + d))
                        .sum();
                    let score = dot * f64::from(scale);
                    let softcap = self.shape.softcap.map(f64::from);
                    softcap.map_or(score, |cap| cap * (score / cap).tanh())
                };
                let seen = self.shape.visible(token + 1);
                let scores: Vec<f64> = seen.clone().map(score).collect();
                let sink = self.sinks.get(head).map(|sink| f64::from(*sink));
                let sink = sink.unwrap_or(f64::NEG_INFINITY);
                let max = scores.iter().copied().fold(sink, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let sum = weights.iter().sum::<f64>() + (sink - max).exp();
                for d in 0..head_dim {
                    let mean: f64 = weights
                        .iter()
                        .zip(seen.clone())
                        .map(|(w, past)| w * at(past, value + d))
                        .sum();
                    out.push(mean / sum);
                }
            }
        }
        out
    }
}

/// Pages that no request has.
const SPARE: usize = 5;

/// Settings of a run of a world: a cache with shuffled pages. Each step of the run adds some
/// tokens of some requests.
pub struct Run {
    pub page_size: usize,
    pub kv_dtype: KvCacheDtype,
    pub seed: u64,
}

impl Run {
    fn cache(&self, backend: &mut CpuBackend, world: &World) -> (CpuKvCache, Vec<Vec<u32>>) {
        let pages_of = |request| world.length(request).div_ceil(self.page_size);
        let needed: usize = (0..world.requests.len()).map(pages_of).sum();
        let mut free: Vec<u32> = (0..(needed + SPARE) as u32).collect();
        let mut values = Values::new(self.seed);
        for i in (1..free.len()).rev() {
            free.swap(i, values.below(i + 1));
        }
        let tables = (0..world.requests.len()).map(|r| free.split_off(free.len() - pages_of(r)));
        let tables = tables.collect();
        let shape = KvShape {
            latent: None,
            group: 0,
            layers: 2,
            kv_heads: world.shape.kv_heads,
            head_dim: world.shape.head_dim,
            pages: needed + SPARE,
            page_size: self.page_size,
            dtype: self.kv_dtype,
        };
        (backend.kv_cache(&shape).unwrap(), tables)
    }

    /// Runs every step, a list of (request, tokens to add); returns each request's outputs
    /// in order.
    pub fn outputs(
        &self,
        backend: &mut CpuBackend,
        world: &World,
        steps: &[Vec<(usize, usize)>],
    ) -> Vec<Vec<f32>> {
        let (mut cache, tables) = self.cache(backend, world);
        let done = vec![0; world.requests.len()];
        self.outputs_in(&mut cache, &tables, done, backend, world, steps, |_| {})
    }

    /// Runs every step of each list, but returns outputs of only the last `last` tokens of each
    /// request, or of all of a shorter one. Earlier tokens are in the cache without an
    /// attention of their own. Each list writes the last tokens anew.
    pub fn last_outputs(
        &self,
        backend: &mut CpuBackend,
        world: &World,
        last: usize,
        lists: &[Vec<Vec<(usize, usize)>>],
        mut look: impl FnMut(AttentionTasks),
    ) -> Vec<Vec<Vec<f32>>> {
        let (mut cache, tables) = self.cache(backend, world);
        let width = world.shape.qkv_width();
        let before = |request| world.length(request).saturating_sub(last);
        let done: Vec<usize> = (0..world.requests.len()).map(before).collect();
        for ((table, request), &done) in tables.iter().zip(&world.requests).zip(&done) {
            let cell = |token| {
                let page = table[token / self.page_size] as usize;
                (page * self.page_size + token % self.page_size) as u32
            };
            let cells: Vec<u32> = (0..done).map(cell).collect();
            self.fill(backend, world, &mut cache, &cells, &request[..done * width]);
        }
        let mut outputs = |steps: &Vec<Vec<(usize, usize)>>| {
            let done = done.clone();
            self.outputs_in(&mut cache, &tables, done, backend, world, steps, &mut look)
        };
        lists.iter().map(&mut outputs).collect()
    }

    /// Writes tokens to cells of the cache. Each token attends to one position alone.
    fn fill(
        &self,
        backend: &mut CpuBackend,
        world: &World,
        cache: &mut CpuKvCache,
        cells: &[u32],
        qkv: &[f32],
    ) -> Vec<f32> {
        let rows = (0..cells.len() as u32).map(|start| Row {
            start,
            q_len: 1,
            kv_len: 0,
            pages_start: 0,
            mask: None,
        });
        let batch = Batch {
            tokens: cells,
            positions: cells,
            cells,
            rows: &rows.collect::<Vec<_>>(),
            pages: &[0],
            logit_tokens: &[],
            ..Batch::default()
        };
        let qkv = tensor(backend, qkv, world.shape.qkv_width());
        let width = world.shape.out_width();
        let mut out = backend.tensor(cells.len(), width, Holds::Operand).unwrap();
        let inputs = staged(backend, &batch, self.page_size);
        let sinks = world.sinks(backend);
        let shape = &world.shape;
        backend.attention(cache, 1, &qkv, shape, sinks.as_ref(), &inputs, &mut out);
        out.values().to_vec()
    }

    /// Runs every step in a cache whose cells hold NaN from before.
    pub fn outputs_after_nan(
        &self,
        backend: &mut CpuBackend,
        world: &World,
        steps: &[Vec<(usize, usize)>],
    ) -> Vec<Vec<f32>> {
        let (mut cache, tables) = self.cache(backend, world);
        let pages: usize = tables.iter().map(Vec::len).sum::<usize>() + SPARE;
        let cells: Vec<u32> = (0..(pages * self.page_size) as u32).collect();
        let mut qkv = vec![0.0; cells.len() * world.shape.qkv_width()];
        for token in qkv.chunks_mut(world.shape.qkv_width()) {
            token[world.shape.out_width()..].fill(f32::NAN);
        }
        let out = self.fill(backend, world, &mut cache, &cells, &qkv);
        assert!(out.iter().all(|x| x.is_nan()));
        let done = vec![0; world.requests.len()];
        self.outputs_in(&mut cache, &tables, done, backend, world, steps, |_| {})
    }

    #[expect(clippy::too_many_arguments, reason = "the state of a run")]
    fn outputs_in(
        &self,
        cache: &mut CpuKvCache,
        tables: &[Vec<u32>],
        mut done: Vec<usize>,
        backend: &mut CpuBackend,
        world: &World,
        steps: &[Vec<(usize, usize)>],
        mut look: impl FnMut(AttentionTasks),
    ) -> Vec<Vec<f32>> {
        let mut outputs = vec![Vec::new(); world.requests.len()];
        for step in steps {
            self.step(backend, world, cache, tables, step, &mut done, &mut outputs);
            look(backend.attention_tasks());
        }
        outputs
    }

    #[expect(clippy::too_many_arguments, reason = "the state of a run")]
    fn step(
        &self,
        backend: &mut CpuBackend,
        world: &World,
        cache: &mut CpuKvCache,
        tables: &[Vec<u32>],
        step: &[(usize, usize)],
        done: &mut [usize],
        outputs: &mut [Vec<f32>],
    ) {
        let width = world.shape.qkv_width();
        let (mut rows, mut pages, mut cells, mut positions) = (vec![], vec![], vec![], vec![]);
        let mut qkv = Vec::new();
        for &(request, count) in step {
            let from = done[request];
            let used = (from + count).div_ceil(self.page_size);
            rows.push(Row {
                start: cells.len() as u32,
                q_len: count as u32,
                kv_len: from as u32,
                pages_start: pages.len() as u32,
                mask: None,
            });
            pages.extend_from_slice(&tables[request][..used]);
            for token in from..from + count {
                let page = tables[request][token / self.page_size] as usize;
                cells.push((page * self.page_size + token % self.page_size) as u32);
                positions.push(token as u32);
            }
            qkv.extend_from_slice(&world.requests[request][from * width..(from + count) * width]);
            done[request] += count;
        }
        let tokens = vec![0; cells.len()];
        let batch = Batch {
            tokens: &tokens,
            positions: &positions,
            cells: &cells,
            rows: &rows,
            pages: &pages,
            logit_tokens: &[],
            ..Batch::default()
        };
        let qkv = tensor(backend, &qkv, width);
        let mut out = backend
            .tensor(cells.len(), world.shape.out_width(), Holds::Operand)
            .unwrap();
        out.values_mut().fill(f32::NAN);
        let inputs = staged(backend, &batch, self.page_size);
        let sinks = world.sinks(backend);
        let shape = &world.shape;
        backend.attention(cache, 1, &qkv, shape, sinks.as_ref(), &inputs, &mut out);
        let mut at = 0;
        for &(request, count) in step {
            let end = at + count * world.shape.out_width();
            outputs[request].extend_from_slice(&out.values()[at..end]);
            at = end;
        }
    }
}

/// Every request whole, all in one step.
pub fn whole(world: &World) -> Vec<Vec<(usize, usize)>> {
    vec![
        (0..world.requests.len())
            .map(|r| (r, world.length(r)))
            .collect(),
    ]
}

/// Requests one after another, token by token.
pub fn one_by_one(world: &World) -> Vec<Vec<(usize, usize)>> {
    let tokens = |r: usize| (0..world.length(r)).map(move |_| vec![(r, 1)]);
    (0..world.requests.len()).flat_map(tokens).collect()
}

/// Random chunks of random requests.
pub fn ragged(world: &World, seed: u64) -> Vec<Vec<(usize, usize)>> {
    let mut values = Values::new(seed);
    let mut left: Vec<usize> = (0..world.requests.len()).map(|r| world.length(r)).collect();
    let mut steps = Vec::new();
    while left.iter().any(|&left| left > 0) {
        let mut step = Vec::new();
        for (request, left) in left.iter_mut().enumerate() {
            if *left > 0 && values.below(3) > 0 {
                let count = 1 + values.below((*left).min(70));
                *left -= count;
                step.push((request, count));
            }
        }
        if !step.is_empty() {
            steps.push(step);
        }
    }
    steps
}
