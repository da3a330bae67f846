//! Operations on single heads: norms, rotation, and writes to the cache.

use std::marker::PhantomData;

use lockstep_backend::AttentionShape;

use super::{Attention, PagedCache, THREADS, parameters};
use crate::error::CudaError;
use crate::ops::{Sums, SumsWithSpace};
use crate::passes::Inputs;
use crate::runtime::{Buffer, Stream};
use crate::tensors::{Element, Floats, Rows, blocks};
use parameters::{CopyAccepted, CopyCells, Heads};

/// Heads per block; each has a warp of its own.
const HEADS_PER_BLOCK: usize = 4;

/// Weights of norms over single heads, as Qwen3 has them, each `[head_dim]`.
#[derive(Clone, Copy, Default)]
pub struct HeadNorms<'a> {
    /// Weights for heads of queries; `None` leaves queries without a norm.
    pub queries: Option<&'a Buffer<f32>>,
    /// Weights for heads of keys; `None` leaves keys without a norm.
    pub keys: Option<&'a Buffer<f32>>,
    /// Weights for heads of values; `None` leaves values without a norm.
    pub values: Option<&'a Buffer<f32>>,
    /// Epsilon, added to the mean square.
    pub eps: f32,
}

/// Rotation angles on the device, each `[positions, half]`.
pub struct Rope {
    /// Rotated pairs per head.
    pub half: usize,
    /// Cosines of the angles.
    pub cos: Buffer<f32>,
    /// Sines of the angles.
    pub sin: Buffer<f32>,
    /// Factors of queries behind their rotation, `[positions]`; `None` where all are one.
    pub queries: Option<Buffer<f32>>,
}

/// Queries on their way to attention, in rows of places for 32-bit floats, as wide as
/// [`AttentionShape::qkv_width`](lockstep_backend::AttentionShape::qkv_width) says. A row begins with
/// the queries' heads, or has nothing else.
#[derive(Clone, Copy)]
pub struct Queries<'a> {
    pub(super) address: u64,
    len: usize,
    /// True if each head has the cache's type, at the beginning of its place.
    pub(super) rounded: bool,
    /// True if rows have queries alone.
    pub(super) alone: bool,
    of: PhantomData<&'a Floats>,
}

impl<'a> Queries<'a> {
    /// Queries of the cache's type, each head at the beginning of its place.
    ///
    /// # Panics
    /// Panics if places are not those of 32-bit floats.
    pub(crate) fn rounded(space: &'a Floats) -> Self {
        Self {
            rounded: true,
            ..Self::from(space)
        }
    }

    /// Returns these queries, in rows that have nothing else if `alone` says so.
    #[must_use]
    pub fn in_rows(self, alone: bool) -> Self {
        Self { alone, ..self }
    }

    /// # Panics
    /// Panics if there are fewer than `rows` rows of `width`.
    pub(super) fn expect(&self, rows: usize, width: usize) {
        assert!(self.len >= rows * width, "queries have other sizes");
    }
}

impl<'a> From<&'a Floats> for Queries<'a> {
    /// # Panics
    /// Panics if the type is not a 32-bit float.
    fn from(qkv: &'a Floats) -> Self {
        qkv.expect(Element::F32, 0, "queries");
        Self {
            address: qkv.address(),
            len: qkv.len(),
            rounded: false,
            alone: false,
            of: PhantomData,
        }
    }
}

impl Rope {
    /// Number of positions that have angles.
    pub(crate) fn positions(&self) -> usize {
        self.cos.len().min(self.sin.len()) / self.half.max(1)
    }
}

impl Attention {
    /// Norms queries and keys of `qkv` (where `norms` has weights) and rotates them by their
    /// tokens' positions. `qkv` is `[tokens, (heads + 2·kv_heads)·head_dim]` sums. All are
    /// rounded to the cache's type: queries go to the space of `qkv`, each head to the beginning of
    /// its place there, keys and values to their cells. Keys and values in that space stay as
    /// they were.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    #[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
    pub fn rotate_and_store<'a>(
        &self,
        stream: &Stream,
        qkv: impl Into<SumsWithSpace<'a>>,
        norms: HeadNorms<'_>,
        rope: &Rope,
        inputs: &Inputs,
        cache: &mut PagedCache,
        layer: usize,
    ) -> Result<Queries<'a>, CudaError> {
        let to = Some((cache, layer));
        self.prepare(stream, qkv, (norms, rope), inputs, to)
    }

    /// Does [`Self::rotate_and_store`] with a layer of a cache. Without, rows have queries alone,
    /// `[tokens, heads·head_dim]`, since another layer has stored keys and values.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn prepare<'a>(
        &self,
        stream: &Stream,
        qkv: impl Into<SumsWithSpace<'a>>,
        (norms, rope): (HeadNorms<'_>, &Rope),
        inputs: &Inputs,
        to: Option<(&mut PagedCache, usize)>,
    ) -> Result<Queries<'a>, CudaError> {
        let (SumsWithSpace { sums, space }, most) = (qkv.into(), inputs.tokens().most());
        let alone = to.is_none();
        sums.expect(most, self.row_width(alone), "qkv");
        let heads = Heads {
            sums: sums.parameter(),
            rounds: 1,
            ..self.heads(space, most, alone)
        };
        let heads = self.rotated(self.normed(heads, norms), rope, inputs);
        let heads = match to {
            Some((cache, layer)) => self.stored(heads, inputs, cache, layer),
            None => heads,
        };
        // SAFETY: the space is borrowed alone, and a head's sums are read by the warp that writes
        // its queries there, before it does.
        unsafe { self.run_heads(stream, &heads) }?;
        Ok(Queries::rounded(space).in_rows(alone))
    }

    /// Norms queries and keys in the first `tokens` rows of `qkv`, in place. Rows have queries
    /// alone if `alone` says so.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn norm_heads(
        &self,
        stream: &Stream,
        (qkv, alone): (&mut Floats, bool),
        norms: HeadNorms<'_>,
        tokens: usize,
    ) -> Result<(), CudaError> {
        let heads = self.normed(self.heads(qkv, tokens, alone), norms);
        // SAFETY: `qkv` is borrowed alone.
        unsafe { self.run_heads(stream, &heads) }
    }

    /// Rotates queries and keys of `qkv` by their tokens' positions, in place. Rows have queries
    /// alone if `alone` says so.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn rotate(
        &self,
        stream: &Stream,
        (qkv, alone): (&mut Floats, bool),
        rope: &Rope,
        inputs: &Inputs,
    ) -> Result<(), CudaError> {
        let heads = self.heads(qkv, inputs.tokens().most(), alone);
        let heads = self.rotated(heads, rope, inputs);
        // SAFETY: `qkv` is borrowed alone.
        unsafe { self.run_heads(stream, &heads) }
    }

    /// Writes keys and values of `qkv` to their cells, rounded to the cache's
    /// type.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn store(
        &self,
        stream: &Stream,
        qkv: &Floats,
        inputs: &Inputs,
        cache: &mut PagedCache,
        layer: usize,
    ) -> Result<(), CudaError> {
        let heads = self.heads(qkv, inputs.tokens().most(), false);
        let heads = self.stored(heads, inputs, cache, layer);
        // SAFETY: `qkv` is neither normed nor rotated here, so it is not written.
        unsafe { self.run_heads(stream, &heads) }
    }

    /// Copies the keys and values of cells in all layers, one move after the other, bit for
    /// bit. `moves` lists two cells for each move: source, destination.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn copy_cells(
        &self,
        stream: &Stream,
        cache: &mut PagedCache,
        moves: &Buffer<u32>,
        count: Rows<'_>,
    ) -> Result<(), CudaError> {
        assert!(2 * count.most() <= moves.len(), "every move is in the list");
        cache.expect(&self.shape, self.cached, 0);
        let units = self.shape.kv_heads * self.shape.head_dim * self.cached.bytes() / 16;
        let parameters = CopyCells {
            keys: cache.keys(0),
            values: cache.values(0),
            moves: moves.address(),
            rows: count.parameter(),
            cells: cache.cells() as u32,
            cell_units: units as u32,
        };
        let (layers, parts) = (cache.layers() as u32, cache.shape().parts() as u32);
        let grid = [blocks(units, THREADS as usize), layers, parts];
        // SAFETY: missing cells are skipped.
        unsafe { self.copy_cells.launch(stream, grid, &parameters) }
    }

    /// Copies the keys and values of accepted drafts to the cells of their positions, for all
    /// requests whose tokens are chosen, in all layers, bit for bit. The moves of one request
    /// run one after the other.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn copy_accepted(
        &self,
        stream: &Stream,
        cache: &mut PagedCache,
        inputs: &Inputs,
    ) -> Result<(), CudaError> {
        let (requests, chosen) = (inputs.requests(), inputs.chosen());
        let most = requests.most();
        if most == 0 {
            return Ok(());
        }
        cache.expect(&self.shape, self.cached, 0);
        let units = self.shape.kv_heads * self.shape.head_dim * self.cached.bytes() / 16;
        let layers = cache.layers() as u32;
        let parameters = CopyAccepted {
            keys: cache.keys(0),
            values: cache.values(0),
            batch: inputs.address(),
            moves: chosen.moves().address(),
            counts: chosen.counts().address(),
            requests: requests.parameter(),
            most: chosen.limits().most as u32,
            layers,
            cells: cache.cells() as u32,
            cell_units: units as u32,
            group: cache.group_in(inputs),
            pad: 0,
        };
        let parts = cache.shape().parts() as u32 * layers;
        let grid = [blocks(units, THREADS as usize), parts, most as u32];
        // SAFETY: missing cells are skipped.
        unsafe { self.copy_accepted.launch(stream, grid, &parameters) }
    }

    /// Columns of a row of `qkv`, or of queries alone.
    pub(super) fn row_width(&self, alone: bool) -> usize {
        let of_row = AttentionShape {
            reads_only: alone,
            ..self.shape
        };
        of_row.qkv_width()
    }

    /// Kernel parameters that leave `tokens` rows of `qkv` as they are.
    fn heads(&self, qkv: &Floats, tokens: usize, alone: bool) -> Heads {
        let shape = &self.shape;
        assert!(shape.latent.is_none(), "latents have kernels of their own");
        qkv.expect(Element::F32, tokens * self.row_width(alone), "qkv");
        Heads {
            sums: Sums::from(qkv).parameter(),
            qkv: qkv.address(),
            q_norm: 0,
            k_norm: 0,
            v_norm: 0,
            cos: 0,
            sin: 0,
            query_scales: 0,
            keys: 0,
            values: 0,
            batch: 0,
            heads: shape.heads as u32,
            kv_heads: if alone { 0 } else { shape.kv_heads as u32 },
            half: 0,
            cells: 0,
            positions: 0,
            most: tokens as u32,
            eps: 0.0,
            group: 0,
            rounds: 0,
            pad: 0,
        }
    }

    fn normed(&self, heads: Heads, norms: HeadNorms<'_>) -> Heads {
        let address = |weight: Option<&Buffer<f32>>| {
            let len = weight.map_or(self.shape.head_dim, Buffer::len);
            assert!(
                len == self.shape.head_dim,
                "a head norm has one weight per column"
            );
            weight.map_or(0, Buffer::address)
        };
        Heads {
            q_norm: address(norms.queries),
            k_norm: address(norms.keys),
            v_norm: address(norms.values),
            eps: norms.eps,
            ..heads
        }
    }

    fn rotated(&self, heads: Heads, rope: &Rope, inputs: &Inputs) -> Heads {
        let (half, angles) = (rope.half, rope.cos.len().min(rope.sin.len()));
        assert!(
            half > 0 && 2 * half <= self.shape.head_dim,
            "pairs lie within a head"
        );
        let factors = rope.queries.as_ref().map_or(usize::MAX, Buffer::len);
        assert!(factors >= angles / half, "every position has a factor");
        Heads {
            cos: rope.cos.address(),
            sin: rope.sin.address(),
            query_scales: rope.queries.as_ref().map_or(0, Buffer::address),
            batch: inputs.address(),
            half: half as u32,
            positions: (angles / half) as u32,
            ..heads
        }
    }

    fn stored(&self, heads: Heads, inputs: &Inputs, cache: &mut PagedCache, layer: usize) -> Heads {
        cache.expect(&self.shape, self.cached, layer);
        Heads {
            keys: cache.keys(layer),
            values: cache.values(layer),
            batch: inputs.address(),
            cells: cache.cells() as u32,
            group: cache.group_in(inputs),
            ..heads
        }
    }

    /// # Safety
    /// Nobody else uses `qkv` where heads are normed or rotated, since the kernel writes it
    /// then.
    unsafe fn run_heads(&self, stream: &Stream, heads: &Heads) -> Result<(), CudaError> {
        let all = (heads.heads + 2 * heads.kv_heads) as usize;
        let grid = [heads.most, blocks(all, HEADS_PER_BLOCK), 1];
        // SAFETY: `qkv` has room for all tokens, and missing cells and positions are skipped.
        unsafe { self.rotate_and_store.launch(stream, grid, heads) }
    }
}
