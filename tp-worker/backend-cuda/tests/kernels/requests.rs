//! Made-up requests, whose queries, keys and values depend on the request alone; their batches;
//! and attention in f64.

use lockstep_backend::{AttentionShape, Batch, KvShape, Row};
use lockstep_backend_cuda::{
    Attention, Beside, Cut, Element, Floats, PagedCache, Queries, Work, WorkLimits,
};
use lockstep_types::KvCacheDtype;

use crate::support::{Gpu, Noise, rounded};

/// Content of a position: positions of one content have equal query, key and value.
pub type Content = u64;

/// One request's part of a pass.
#[derive(Clone)]
pub struct Request {
    pub cached: Vec<Content>,
    pub new: Vec<Content>,
    /// For each new token the new tokens that it sees, ascending. `None`: causal.
    pub mask: Option<Vec<Vec<usize>>>,
}

impl Request {
    /// `kv_len` cached positions and `q_len` new tokens of request `id`.
    pub fn causal(id: u64, kv_len: usize, q_len: usize) -> Self {
        let content = |position: usize| (id << 32) + position as u64;
        Self {
            cached: (0..kv_len).map(content).collect(),
            new: (kv_len..kv_len + q_len).map(content).collect(),
            mask: None,
        }
    }

    /// A request with a tree of new tokens, whose parents are drawn.
    pub fn tree(id: u64, kv_len: usize, q_len: usize, noise: &mut Noise) -> Self {
        let mut mask: Vec<Vec<usize>> = Vec::new();
        for node in 0..q_len {
            let mut seen = match node {
                0 => Vec::new(),
                _ => mask[noise.below(node)].clone(),
            };
            seen.push(node);
            mask.push(seen);
        }
        Self {
            mask: Some(mask),
            ..Self::causal(id, kv_len, q_len)
        }
    }

    /// Places that new token `token` sees, cached ones first, in their order.
    fn seen(&self, token: usize) -> Vec<usize> {
        let new: Vec<usize> = match &self.mask {
            None => (0..=token).collect(),
            Some(mask) => mask[token].clone(),
        };
        let cached = self.cached.len();
        (0..cached)
            .chain(new.iter().map(|token| cached + token))
            .collect()
    }

    /// The request after `token`'s path, as a chain of its own.
    pub fn path(&self, token: usize) -> Self {
        let all: Vec<Content> = self.all().collect();
        let new = &self.seen(token)[self.cached.len()..];
        Self {
            cached: self.cached.clone(),
            new: new.iter().map(|place| all[*place]).collect(),
            mask: None,
        }
    }

    pub fn positions(&self) -> usize {
        self.cached.len() + self.new.len()
    }
    fn all(&self) -> impl Iterator<Item = Content> {
        self.cached.iter().chain(&self.new).copied()
    }
}

/// Use of a content's vector.
#[derive(Clone, Copy)]
enum Role {
    Query = 1,
    Key = 2,
    Value = 3,
}

fn vector(content: Content, role: Role, head: usize, head_dim: usize) -> Vec<f32> {
    let mut seed = Noise(content);
    let seed = seed.next() ^ (role as u64) << 40 ^ (head as u64) << 50;
    Noise(seed).floats(head_dim)
}

/// All lists of a batch that attention reads, on the host.
struct Layout {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    cells: Vec<u32>,
    rows: Vec<Row>,
    pages: Vec<u32>,
    masks: Vec<u64>,
    qkv: Vec<f32>,
    /// `[cells, kv_heads, head_dim]`, NaN in cells that no request has, and behind windows. Latents
    /// have no values.
    keys: Vec<f32>,
    values: Vec<f32>,
    page_count: usize,
}

fn lay_out(requests: &[Request], shape: &AttentionShape, page_size: usize) -> Layout {
    let tables: Vec<usize> = requests
        .iter()
        .map(|request| request.positions().div_ceil(page_size))
        .collect();
    // Pages in no order, some of which no request has.
    let page_count = tables.iter().sum::<usize>() + 3;
    let mut free: Vec<u32> = (0..page_count as u32).collect();
    let mut noise = Noise(page_count as u64);
    for left in (2..=page_count).rev() {
        free.swap(left - 1, noise.below(left));
    }
    let cached = page_count * page_size * shape.kv_heads * shape.head_dim;
    let mut layout = Layout {
        tokens: Vec::new(),
        positions: Vec::new(),
        cells: Vec::new(),
        rows: Vec::new(),
        pages: Vec::new(),
        masks: Vec::new(),
        qkv: Vec::new(),
        keys: vec![f32::NAN; cached],
        values: match shape.latent {
            None => vec![f32::NAN; cached],
            Some(_) => Vec::new(),
        },
        page_count,
    };
    for (request, table) in requests.iter().zip(tables) {
        let pages = free.split_off(free.len() - table);
        layout.push(request, shape, page_size, &pages);
    }
    layout
}

impl Layout {
    fn push(&mut self, request: &Request, shape: &AttentionShape, page_size: usize, pages: &[u32]) {
        let (start, kv_len) = (self.tokens.len(), request.cached.len());
        let mask = request.mask.as_ref().map(|mask| self.push_mask(mask));
        self.rows.push(Row {
            start: start as u32,
            q_len: request.new.len() as u32,
            kv_len: kv_len as u32,
            pages_start: self.pages.len() as u32,
            mask,
        });
        self.pages.extend(pages);
        let (kv_heads, head_dim) = (shape.kv_heads, shape.head_dim);
        let new = |query: usize| match &request.mask {
            None => query + 1,
            Some(mask) => mask[query].len(),
        };
        let first = |query| shape.visible(kv_len + new(query)).start;
        let first_seen = (0..request.new.len()).map(first).min().unwrap_or(0);
        for (position, content) in request.all().enumerate() {
            let cell = pages[position / page_size] as usize * page_size + position % page_size;
            for head in (0..kv_heads).filter(|_| position >= first_seen) {
                let at = (cell * kv_heads + head) * head_dim;
                let key = vector(content, Role::Key, head, head_dim);
                self.keys[at..at + head_dim].copy_from_slice(&key);
                if shape.latent.is_none() {
                    let value = vector(content, Role::Value, head, head_dim);
                    self.values[at..at + head_dim].copy_from_slice(&value);
                }
            }
            if position >= kv_len {
                self.tokens.push(0);
                self.positions.push(position as u32);
                self.cells.push(cell as u32);
                for head in 0..shape.heads {
                    self.qkv
                        .extend(vector(content, Role::Query, head, head_dim));
                }
                // Attention reads keys and values from the cache alone.
                let others = shape.qkv_width() - shape.heads * head_dim;
                self.qkv.extend(vec![f32::NAN; others]);
            }
        }
    }

    fn push_mask(&mut self, mask: &[Vec<usize>]) -> u32 {
        let start = self.masks.len() as u32;
        let words = mask.len().div_ceil(64);
        for seen in mask {
            // Bits past the last token don't count.
            let unused = mask.len() % 64;
            let mut own = vec![0u64; words];
            if unused > 0 {
                own[words - 1] = u64::MAX << unused;
            }
            for token in seen {
                own[token / 64] |= 1 << (token % 64);
            }
            self.masks.extend(own);
        }
        start
    }

    fn batch(&self) -> Batch<'_> {
        Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            cells: &self.cells,
            rows: &self.rows,
            pages: &self.pages,
            logit_tokens: &[],
            masks: &self.masks,
            ..Batch::default()
        }
    }
}

/// Settings of a run of attention.
#[derive(Clone, Copy)]
pub struct Run {
    pub shape: AttentionShape,
    pub cached: Element,
    pub operand: Element,
    pub page_size: usize,
    /// Room for partial results.
    pub parts: usize,
}

/// The sink of a head: some far below all scores, some among them, some far above.
fn sink(head: usize) -> f32 {
    [6.0, -40.0, 3.0, 0.75, 40.0][head % 5] + head as f32 / 16.0
}

/// The work items and parts that a batch of these requests is cut into.
pub fn cut(gpu: &Gpu, attention: &Attention, run: &Run, requests: &[Request]) -> Cut {
    let layout = lay_out(requests, &run.shape, run.page_size);
    let inputs = gpu.inputs(&layout.batch(), run.page_size);
    let mut work = work(gpu, run, requests);
    attention
        .plan(&gpu.stream, &inputs, &mut work)
        .expect("a launch");
    work.cut(&gpu.stream).expect("a copy")
}

fn work(gpu: &Gpu, run: &Run, requests: &[Request]) -> Work {
    let limits = WorkLimits {
        rows: requests.len(),
        parts: run.parts,
    };
    Work::new(&gpu.context, run.shape.value_dim(), limits).expect("room")
}

/// Attention's results for every request, each `[new tokens, heads·value_dim]`.
pub fn attend(gpu: &Gpu, attention: &Attention, run: &Run, requests: &[Request]) -> Vec<Vec<f32>> {
    attend_before(gpu, attention, run, requests, None)
}

/// The same in front of a product with the weights `next`.
pub fn attend_before(
    gpu: &Gpu,
    attention: &Attention,
    run: &Run,
    requests: &[Request],
    next: Option<&Floats>,
) -> Vec<Vec<f32>> {
    let shape = &run.shape;
    let layout = lay_out(requests, shape, run.page_size);
    let inputs = gpu.inputs(&layout.batch(), run.page_size);
    let mut cache = PagedCache::new(
        &gpu.context,
        &KvShape {
            latent: shape.latent,
            group: 0,
            layers: 2,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            pages: layout.page_count,
            page_size: run.page_size,
            dtype: match run.cached {
                Element::F32 => KvCacheDtype::Float32,
                Element::Bf16 => KvCacheDtype::Bfloat16,
            },
        },
    )
    .expect("room");
    // This attention does not read the first layer.
    let both = |layer: &[f32]| [vec![f32::NAN; layer.len()], layer.to_vec()].concat();
    let (keys, values) = (both(&layout.keys), both(&layout.values));
    cache.upload(&gpu.stream, &keys, &values).expect("a copy");
    let mut work = work(gpu, run, requests);
    let qkv = gpu.floats(Element::F32, &layout.qkv);
    let mut out = gpu.poisoned(run.operand, layout.tokens.len() * shape.out_width());
    let stream = &gpu.stream;
    let sinks: Vec<f32> = (0..shape.heads).map(sink).collect();
    let sinks = shape.sinks.then(|| gpu.buffer(&sinks));
    let beside = Beside {
        sinks: sinks.as_ref(),
        next,
    };
    attention
        .plan(stream, &inputs, &mut work)
        .expect("a launch");
    let queries = Queries::from(&qkv).in_rows(shape.reads_only);
    attention
        .attend(
            stream, queries, &inputs, &cache, 1, &mut work, &mut out, beside,
        )
        .expect("launches");
    let out = gpu.read(&out);
    let mut rest = out.as_slice();
    let mut each = |request: &Request| {
        let (own, others) = rest.split_at(request.new.len() * shape.out_width());
        rest = others;
        own.to_vec()
    };
    requests.iter().map(&mut each).collect()
}

/// Attention of one request in f64, from queries, keys and values rounded to the cache's type.
pub fn oracle(shape: &AttentionShape, cached: Element, request: &Request) -> Vec<f64> {
    let head_dim = shape.head_dim;
    let wide = |content: Content, role: Role, head: usize| -> Vec<f64> {
        let values = rounded(cached, &vector(content, role, head, head_dim));
        values.into_iter().map(f64::from).collect()
    };
    let all = |role: Role| -> Vec<Vec<Vec<f64>>> {
        let heads = 0..shape.kv_heads;
        heads
            .map(|head| {
                request
                    .all()
                    .map(|content| wide(content, role, head))
                    .collect()
            })
            .collect()
    };
    let keys = all(Role::Key);
    let values = match shape.latent {
        None => all(Role::Value),
        Some(_) => keys.clone(),
    };
    let mut out = Vec::new();
    for (token, content) in request.new.iter().enumerate() {
        let up_to = request.seen(token);
        let seen = &up_to[shape.visible(up_to.len())];
        for head in 0..shape.heads {
            let kv_head = head / (shape.heads / shape.kv_heads);
            let query = wide(*content, Role::Query, head);
            let score = |place: &usize| -> f64 {
                let pairs = query.iter().zip(&keys[kv_head][*place]);
                pairs.map(|(q, k)| q * k).sum::<f64>() * f64::from(shape.scale)
            };
            let scores: Vec<f64> = seen.iter().map(score).collect();
            let sink = shape.sinks.then(|| f64::from(sink(head)));
            let all = scores.iter().chain(&sink).copied();
            let max = all.clone().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
            let total: f64 = all.map(|score| (score - max).exp()).sum();
            let mut mean = vec![0.0; shape.value_dim()];
            for (place, weight) in seen.iter().zip(&weights) {
                for (mean, value) in mean.iter_mut().zip(&values[kv_head][*place]) {
                    *mean += weight / total * value;
                }
            }
            out.extend(mean);
        }
    }
    out
}
