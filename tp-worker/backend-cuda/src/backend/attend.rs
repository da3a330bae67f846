//! Attention kernels and their buffers, one set for each shape that models have.

use lockstep_backend::{Attend, AttentionShape, InputLimits, Linear};

use super::CudaBackend;
use super::products::operands;
use crate::error::CudaError;
use crate::ops::attention::writing;
use crate::ops::{Attention, Beside, HeadNorms, PagedCache, Queries, Rope, Work, WorkLimits};
use crate::passes::Inputs;
use crate::runtime::Buffer;
use crate::tensors::{CudaMatrix, CudaTensor, Element, Rows};

/// Limits of an empty buffer.
const NONE: WorkLimits = WorkLimits { rows: 0, parts: 0 };

/// The kernels of one shape, and the work items of the last batch.
pub(super) struct Kernels {
    attention: Attention,
    work: Work,
    /// Number of the batch that `work` was cut for.
    planned: u64,
}

/// A weight matrix with its bias.
type Weights<'a> = Linear<'a, CudaMatrix, Buffer<f32>>;

/// Treatment of the heads of `qkv` before attention.
pub(super) enum Heads<'a> {
    /// Projects to `qkv`, and does the rest of [`Self::All`].
    Projected(
        &'a CudaTensor,
        Weights<'a>,
        &'a mut CudaTensor,
        HeadNorms<'a>,
        &'a Rope,
    ),
    /// Norms and rotates heads of `qkv`, and stores keys and values.
    All(&'a mut CudaTensor, HeadNorms<'a>, &'a Rope),
    /// Stores keys and values.
    Stored(&'a CudaTensor),
    /// Nothing: queries are made, and cells written.
    Ready(Queries<'a>),
}

impl CudaBackend {
    /// Index of the kernels for `shape` over a cache of `cached`. The first call compiles them. Layers
    /// that read the cache of another have its kernels, and its plan of a batch.
    ///
    /// # Errors
    /// The errors of [`Attention::new`].
    pub(super) fn kernels(
        &mut self,
        shape: &AttentionShape,
        cached: Element,
    ) -> Result<usize, CudaError> {
        let written = writing(shape);
        let fits = |kernels: &Kernels| {
            let attention = &kernels.attention;
            *attention.shape() == written && attention.cached() == cached
        };
        if let Some(at) = self.attention.iter().position(fits) {
            return Ok(at);
        }
        let (context, operand) = (self.stream.context(), self.operand);
        self.attention.push(Kernels {
            attention: Attention::new(context, &self.compiler, shape, cached, operand)?,
            work: Work::new(context, shape.value_dim(), NONE)?,
            planned: 0,
        });
        Ok(self.attention.len() - 1)
    }

    /// Makes the next attention cut its batch anew.
    pub(super) fn forget_plans(&mut self) {
        for kernels in &mut self.attention {
            kernels.planned = 0;
        }
    }

    /// Norms heads of `qkv` in place.
    pub(super) fn norm_heads(
        &mut self,
        shape: &AttentionShape,
        qkv: &mut CudaTensor,
        norms: HeadNorms<'_>,
    ) -> Result<(), CudaError> {
        qkv.expect(qkv.rows(), shape.qkv_width(), "qkv");
        let at = self.kernels(shape, self.operand)?;
        let (attention, rows) = (&self.attention[at].attention, qkv.rows());
        let qkv = (&mut qkv.floats, shape.reads_only);
        attention.norm_heads(&self.stream, qkv, norms, rows)
    }

    /// Rotates queries and keys of `qkv` in place.
    pub(super) fn rotate(
        &mut self,
        shape: &AttentionShape,
        qkv: &mut CudaTensor,
        rope: &Rope,
        inputs: &Inputs,
    ) -> Result<(), CudaError> {
        qkv.expect(inputs.tokens().most(), shape.qkv_width(), "qkv");
        let at = self.kernels(shape, self.operand)?;
        let attention = &self.attention[at].attention;
        let qkv = (&mut qkv.floats, shape.reads_only);
        attention.rotate(&self.stream, qkv, rope, inputs)
    }

    /// Copies cells in order, one move after the other.
    pub(super) fn move_cells(
        &mut self,
        cache: &mut PagedCache,
        moves: &[(u32, u32)],
    ) -> Result<(), CudaError> {
        if moves.is_empty() {
            return Ok(());
        }
        let at = self.kernels_of(cache)?;
        let words = moves.len() * 2;
        let list = self.lists.bring(&self.stream, words, |words| {
            let pairs = words.as_chunks_mut::<2>().0.iter_mut();
            pairs
                .zip(moves)
                .for_each(|(pair, (from, to))| *pair = [*from, *to]);
        })?;
        let (attention, count) = (&self.attention[at].attention, Rows::fixed(moves.len()));
        attention.copy_cells(&self.stream, cache, list, count)
    }

    /// Copies the cells of accepted drafts to the cells of their positions.
    pub(super) fn move_accepted(
        &mut self,
        inputs: &Inputs,
        cache: &mut PagedCache,
    ) -> Result<(), CudaError> {
        let at = self.kernels_of(cache)?;
        let attention = &self.attention[at].attention;
        attention.copy_accepted(&self.stream, cache, inputs)
    }

    /// Index of any kernels for a cache of this shape; compiles some if there are none.
    fn kernels_of(&mut self, cache: &PagedCache) -> Result<usize, CudaError> {
        let shape = cache.shape();
        let fits = |kernels: &Kernels| {
            let (own, cached) = (kernels.attention.shape(), kernels.attention.cached());
            (own.kv_heads, own.head_dim, own.latent, cached)
                == (
                    shape.kv_heads,
                    shape.head_dim,
                    shape.latent,
                    cache.element(),
                )
        };
        if let Some(at) = self.attention.iter().position(fits) {
            return Ok(at);
        }
        let shape = AttentionShape {
            latent: shape.latent,
            ..AttentionShape::dense(shape.kv_heads, shape.kv_heads, shape.head_dim, 1.0)
        };
        self.kernels(&shape, cache.element())
    }

    /// Treats `heads` as their variant says, then attends.
    pub(super) fn attend_heads(
        &mut self,
        shape: &AttentionShape,
        heads: Heads<'_>,
        inputs: &Inputs,
        cache: &mut PagedCache,
        layer: usize,
        (out, beside): (&mut CudaTensor, Beside<'_>),
    ) -> Result<(), CudaError> {
        let tokens = inputs.tokens().most();
        self.attended = Some(inputs.tokens().parameter());
        out.expect(tokens, shape.out_width(), "the attention output");
        let at = self.kernels(shape, cache.element())?;
        let (stream, kernels) = (&self.stream, &mut self.attention[at]);
        let room = kernels.room(inputs.limits());
        if kernels.work.limits() != room {
            kernels.planned = 0;
            // Recorded passes can't name a room that did not exist.
            self.rooms += u64::from(kernels.work.limits() != NONE);
            // The old room is freed first, so that both never exist at once.
            kernels.work = Work::new(stream.context(), shape.value_dim(), NONE)?;
            kernels.work = Work::new(stream.context(), shape.value_dim(), room)?;
        }
        let Kernels {
            attention,
            work,
            planned,
        } = kernels;
        let width = shape.qkv_width();
        let to = (!shape.reads_only).then_some((&mut *cache, layer));
        let queries = match heads {
            Heads::Projected(x, w, qkv, norms, rope) => {
                qkv.expect(tokens, width, "qkv");
                let operands = operands(x, &w, self.chains.rows(x.rows()), qkv);
                let space = &mut qkv.floats;
                let sums = self.products.sums_with_space(stream, operands, space)?;
                attention.prepare(stream, sums, (norms, rope), inputs, to)?
            }
            Heads::All(qkv, norms, rope) => {
                qkv.expect(tokens, width, "qkv");
                let floats = &mut qkv.floats;
                attention.prepare(stream, floats, (norms, rope), inputs, to)?
            }
            Heads::Stored(qkv) => {
                qkv.expect(tokens, width, "qkv");
                if let Some((cache, layer)) = to {
                    attention.store(stream, &qkv.floats, inputs, cache, layer)?;
                }
                Queries::from(&qkv.floats).in_rows(shape.reads_only)
            }
            Heads::Ready(queries) => queries,
        };
        if *planned != inputs.number() {
            attention.plan(stream, inputs, work)?;
            *planned = inputs.number();
        }
        let out = &mut out.floats;
        attention.attend(stream, queries, inputs, cache, layer, work, out, beside)
    }
}

impl Kernels {
    /// Sizes for batches within `limits` and for all earlier ones.
    fn room(&self, limits: &InputLimits) -> WorkLimits {
        let positions = limits.pages / limits.requests.max(1) * limits.page_size;
        let (shape, tokens) = (self.attention.shape(), limits.tokens);
        let needed = WorkLimits::of(shape, tokens, limits.requests, positions);
        self.work.limits().join(needed)
    }
}

/// Norms of heads before attention.
pub(super) fn norms_of<'a>(op: &Attend<'a, CudaMatrix, Buffer<f32>, Rope>) -> HeadNorms<'a> {
    HeadNorms {
        queries: op.q_norm,
        keys: op.k_norm,
        values: op.v_norm,
        eps: op.eps,
    }
}

/// Sinks of attention, and what it may fetch ahead.
pub(super) fn beside_of<'a>(op: &Attend<'a, CudaMatrix, Buffer<f32>, Rope>) -> Beside<'a> {
    Beside {
        sinks: op.sinks,
        next: op.next.map(CudaMatrix::floats),
    }
}
