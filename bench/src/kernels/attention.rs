//! Attention over a paged cache that is several times the last-level cache.

use lockstep_backend::{AttentionShape, Batch, Holds, KvShape, Row};
use lockstep_devices::Device;

use super::line::Line;
use super::setup::{KvFormat, Setup, filled, staged};
use super::shape::Shape;
use crate::roofline::{Traffic, Work};

const PAGE_SIZES: [usize; 3] = [1, 16, 64];
/// Tokens that each layer's cache holds.
const TOKENS: usize = 16_384;
/// Tokens whose keys and values are written at once.
const WRITTEN: usize = 1_024;
/// Cases of (requests, new tokens, cached tokens before them): decode with all of the cache
/// in use, verification of a request's tokens, and prefill in chunks.
const CASES: [(usize, usize, usize); 7] = [
    (1, 1, TOKENS - 1),
    (8, 1, TOKENS / 8 - 1),
    (32, 1, TOKENS / 32 - 1),
    (1, 8, 2_040),
    (1, 512, 0),
    (1, 512, 1_536),
    (1, 512, 7_680),
];

/// Adds lines for all page sizes.
pub fn measure<B: Device>(
    setup: &Setup,
    shape: &Shape,
    format: KvFormat,
    lines: &mut Vec<Line>,
) -> anyhow::Result<()> {
    let mut backend: B = setup.backend(format.weights())?;
    let attention = shape.attention();
    for page_size in PAGE_SIZES {
        let mut kv = KvShape {
            latent: None,
            group: 0,
            layers: 1,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            pages: TOKENS / page_size,
            page_size,
            dtype: format.dtype(),
        };
        let token = kv.bytes_per_token();
        kv.layers = setup.working_set.div_ceil(token * TOKENS);
        let mut cache = backend.kv_cache(&kv)?;
        write_all(&mut backend, &mut cache, &kv, &attention)?;
        for (requests, q_len, kv_len) in CASES {
            let call = Call::new(requests, q_len, kv_len, page_size);
            let qkv = filled(
                &mut backend,
                requests * q_len,
                attention.qkv_width(),
                Holds::Sum,
            )?;
            let mut out =
                backend.tensor(requests * q_len, attention.out_width(), Holds::Operand)?;
            let mut layer = 0;
            // Few tokens a request are bound by memory, so all layers are measured. Prefill
            // is bound by arithmetic.
            let (kernel, calls) = match q_len {
                1 => ("decode", kv.layers),
                2..=16 => ("verify", kv.layers),
                _ => ("prefill", 1),
            };
            let inputs = staged(&mut backend, &call.batch(), page_size)?;
            let times = setup.time(calls, || {
                backend.attention(&mut cache, layer, &qkv, &attention, None, &inputs, &mut out);
                layer = (layer + 1) % kv.layers;
            });
            let per_pair = 4 * attention.heads * attention.head_dim;
            lines.push(Line {
                kernel: format!("attention {kernel}"),
                shape: shape.name.clone(),
                format: format.name(),
                size: format!("{requests} x {q_len} over {kv_len}, page {page_size}"),
                tokens: requests * q_len,
                times,
                work: Work {
                    bytes: (requests * (q_len + kv_len) * token) as f64,
                    operations: (call.pairs() * per_pair) as f64,
                },
                arithmetics: format.weights().arithmetics(),
                traffic: Traffic::Read,
            });
        }
    }
    Ok(())
}

/// Writes every cell: memory that nobody wrote is one page of zeros. Each page is a request
/// of its own here, so that next to nothing is attended to.
fn write_all<B: Device>(
    backend: &mut B,
    cache: &mut B::KvCache,
    kv: &KvShape,
    shape: &AttentionShape,
) -> anyhow::Result<()> {
    let qkv = filled(backend, WRITTEN, shape.qkv_width(), Holds::Sum)?;
    let mut out = backend.tensor(WRITTEN, shape.out_width(), Holds::Operand)?;
    let mut call = Call::new(WRITTEN / kv.page_size, kv.page_size, 0, kv.page_size);
    for layer in 0..kv.layers {
        for from in (0..TOKENS).step_by(WRITTEN) {
            call.move_to(from, kv.page_size);
            let inputs = staged(backend, &call.batch(), kv.page_size)?;
            backend.attention(cache, layer, &qkv, shape, None, &inputs, &mut out);
        }
    }
    Ok(())
}

/// A batch of equal requests, one behind the other in the cache.
pub struct Call {
    positions: Vec<u32>,
    cells: Vec<u32>,
    rows: Vec<Row>,
    pages: Vec<u32>,
}

impl Call {
    pub fn new(requests: usize, q_len: usize, kv_len: usize, page_size: usize) -> Self {
        let pages_each = (q_len + kv_len).div_ceil(page_size);
        let number = |x: usize| u32::try_from(x).unwrap_or(u32::MAX);
        let row = |request: usize| Row {
            start: number(request * q_len),
            q_len: number(q_len),
            kv_len: number(kv_len),
            pages_start: number(request * pages_each),
            mask: None,
        };
        let tokens = 0..requests * q_len;
        let cell = |i: usize| i / q_len * pages_each * page_size + kv_len + i % q_len;
        Self {
            positions: tokens.clone().map(|i| number(kv_len + i % q_len)).collect(),
            cells: tokens.map(|i| number(cell(i))).collect(),
            rows: (0..requests).map(row).collect(),
            pages: (0..requests * pages_each).map(number).collect(),
        }
    }

    /// Moves the batch so that it begins with cache cell `first`.
    pub fn move_to(&mut self, first: usize, page_size: usize) {
        for (cells, at) in [
            (&mut self.cells, first),
            (&mut self.pages, first / page_size),
        ] {
            let start = cells.first().copied().unwrap_or(0);
            for cell in cells {
                *cell = *cell - start + u32::try_from(at).unwrap_or(u32::MAX);
            }
        }
    }

    pub fn batch(&self) -> Batch<'_> {
        self.wanting(&[])
    }

    /// The batch, with the logits of these tokens wanted.
    pub fn wanting<'a>(&'a self, logit_tokens: &'a [u32]) -> Batch<'a> {
        Batch {
            tokens: &self.positions,
            positions: &self.positions,
            cells: &self.cells,
            rows: &self.rows,
            pages: &self.pages,
            logit_tokens,
            ..Batch::default()
        }
    }

    /// Moves the batch by `pages` pages.
    pub fn place(&mut self, pages: usize, page_size: usize) {
        for (list, by) in [
            (&mut self.cells, pages * page_size),
            (&mut self.pages, pages),
        ] {
            let by = u32::try_from(by).unwrap_or(u32::MAX);
            list.iter_mut().for_each(|at| *at += by);
        }
    }

    /// The batch's last `count` tokens.
    pub fn last(&self, count: usize) -> Vec<u32> {
        let number = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let all = self.positions.len();
        (all - count..all).map(number).collect()
    }

    /// Tokens of the batch.
    pub fn tokens(&self) -> usize {
        self.positions.len()
    }

    /// Positions up to the batch's last one.
    pub fn positions(&self) -> usize {
        let last = self.positions.iter().max();
        last.map_or(0, |last| *last as usize + 1)
    }

    /// Pages of all requests.
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Query and key pairs of one head.
    pub fn pairs(&self) -> usize {
        let seen = |position: &u32| *position as usize + 1;
        self.positions.iter().map(seen).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_fill_their_pages() {
        let mut call = Call::new(2, 3, 5, 4);
        assert_eq!(call.positions, [5, 6, 7, 5, 6, 7]);
        assert_eq!(call.cells, [5, 6, 7, 13, 14, 15]);
        assert_eq!(call.pages, [0, 1, 2, 3]);
        assert_eq!(call.rows[1].pages_start, 2);
        assert_eq!(call.pairs(), 2 * (6 + 7 + 8));
        call = Call::new(2, 4, 0, 4);
        call.move_to(16, 4);
        assert_eq!(call.cells, [16, 17, 18, 19, 20, 21, 22, 23]);
        assert_eq!(call.pages, [4, 5]);
    }
}
