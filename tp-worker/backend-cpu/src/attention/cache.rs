//! Paged keys and values of the layers of a group.
//!
//! `[layer][keys, values][page][kv head][offset in page][head_dim]`: a head's
//! part of a page is contiguous, so that a long page streams and a page of one
//! token still reads whole rows. An int8 cache keeps its scales apart, in the
//! same order, so that rows of codes stay aligned.

use lockstep_backend::{AttentionShape, BackendError, KvShape};
use lockstep_types::KvCacheDtype;

use super::cells::Plane;
use super::quantize::quantize;
use crate::gemm::Element;
use crate::isa::{Isa, is_amd};
use crate::memory::Buffer;
use crate::number::to_bf16;
use crate::partition::{Shared, share};
use crate::pool::Pool;

/// The widest head that kernels take: latents with the key behind them are wider than heads.
pub(crate) const MAX_HEAD_DIM: usize = 1024;
/// The widest head of 8-bit codes, whose products with queries add up to less than 2³¹.
pub(crate) const MAX_CODES: usize = 512;
/// The reason why latents are no codes: the shared key behind a latent is not normed, and with one
/// scale for both it would leave few codes for the latent.
pub(crate) const NO_CODES: &str = "latents of tokens are cached as floats alone, as one scale of \
     8-bit codes does not suit a latent and the key behind it";
/// Tokens of a page from which on a head's rows count as lying together.
const TOGETHER: usize = 16;
/// Number of elements below which the caller writes keys and values alone.
const WRITE_ALONE: usize = 8_192;

/// Paged keys and values; memory is committed as pages are first written.
pub struct CpuKvCache {
    pub(crate) shape: KvShape,
    pub(super) data: Data,
    /// True if rows that are read soon are asked for into the first-level cache: rows of
    /// bf16 on AMD's cores. On Zen 5 that is faster than the second level where pages keep a
    /// head's rows together, and more so for longer rows; 8-bit codes gain nothing. Rows
    /// that lie apart, like those in pages of one token, drive each other out of the few
    /// places in the first level. Other processors were not measured.
    pub(super) near: bool,
}

/// Rows of `head_dim` elements.
pub(super) enum Data {
    Bf16(Buffer<u16>),
    F32(Buffer<f32>),
    /// Codes, and one scale per row.
    Int8(Buffer<i8>, Buffer<f32>),
}

impl CpuKvCache {
    pub(crate) fn new(shape: &KvShape) -> Result<Self, BackendError> {
        const WHAT: &str = "the KV cache";
        Self::serves(shape.latent, shape.head_dim, shape.dtype)?;
        if shape.page_size == 0 {
            let message = "the CPU backend needs pages of at least one token, not page_size 0";
            return Err(BackendError::Unsupported(message.to_owned()));
        }
        let factors = [shape.layers, shape.pages, shape.kv_heads, shape.page_size];
        let product = |start: usize| {
            let mut factors = factors.iter();
            factors.try_fold(start, |n, &factor| n.checked_mul(factor))
        };
        let counts =
            product(shape.parts()).and_then(|rows| Some((rows, rows.checked_mul(shape.head_dim)?)));
        let (rows, elements) = counts.ok_or(BackendError::OutOfMemory {
            what: WHAT,
            bytes: usize::MAX,
        })?;
        let data = match shape.dtype {
            KvCacheDtype::Bfloat16 => Data::Bf16(Buffer::zeroed(elements, WHAT)?),
            KvCacheDtype::Float32 => Data::F32(Buffer::zeroed(elements, WHAT)?),
            KvCacheDtype::Int8 => {
                Data::Int8(Buffer::zeroed(elements, WHAT)?, Buffer::zeroed(rows, WHAT)?)
            }
        };
        let mut cache = Self {
            shape: *shape,
            near: matches!(data, Data::Bf16(_)) && shape.page_size >= TOGETHER && is_amd(),
            data,
        };
        if cfg!(debug_assertions) {
            cache.spoil_page_0();
        }
        Ok(cache)
    }

    /// Checks that caches hold keys of `head_dim` columns, of which the `latent` ones are values too,
    /// in the type `dtype`.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] with the remedy.
    pub fn serves(
        latent: Option<usize>,
        head_dim: usize,
        dtype: KvCacheDtype,
    ) -> Result<(), BackendError> {
        let (step, widest) = match dtype {
            KvCacheDtype::Int8 if latent.is_some() => {
                return Err(BackendError::Unsupported(NO_CODES.to_owned()));
            }
            KvCacheDtype::Int8 => (4, MAX_CODES),
            KvCacheDtype::Bfloat16 | KvCacheDtype::Float32 => (2, MAX_HEAD_DIM),
        };
        if head_dim.is_multiple_of(step) && head_dim <= widest {
            return Ok(());
        }
        Err(BackendError::Unsupported(format!(
            "the CPU backend needs a head size of at most {widest} that is a multiple of {step}, not \
             head_dim {head_dim}"
        )))
    }

    /// Fills page 0 with values that are no numbers. It stands in page tables where a request
    /// has no page, so tests see if such a page is read.
    fn spoil_page_0(&mut self) {
        let (head_dim, page) = (self.shape.head_dim, self.shape.page_size);
        let parts = self.shape.parts() * self.shape.layers;
        for part in 0..parts * usize::from(self.shape.pages > 0) {
            let first = part * self.plane_rows();
            for row in first..first + self.shape.kv_heads * page {
                let values = row * head_dim..(row + 1) * head_dim;
                match &mut self.data {
                    Data::Bf16(data) => data[values].fill(u16::MAX),
                    Data::F32(data) => data[values].fill(f32::NAN),
                    Data::Int8(_, scales) => scales[row] = f32::NAN,
                }
            }
        }
    }

    /// Panics unless the cache holds heads of this shape. Models size caches, so a mismatch
    /// is a bug in a model.
    pub(crate) fn expect(&self, shape: &AttentionShape) {
        assert!(
            (self.shape.kv_heads, self.shape.head_dim, self.shape.latent)
                == (shape.kv_heads, shape.head_dim, shape.latent)
                && shape.heads.is_multiple_of(shape.kv_heads),
            "attention of {} heads, {} key heads of {} does not fit a cache of {} heads of {}",
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            self.shape.kv_heads,
            self.shape.head_dim
        );
    }

    /// The type of scores and weighted sums on a machine that computes in `compute`. It is
    /// bf16 if bf16 holds every value of the cache, the whole numbers of int8 included.
    pub(crate) fn element(&self, compute: Element) -> Element {
        match self.data {
            Data::F32(_) => Element::F32,
            Data::Bf16(_) | Data::Int8(..) => compute,
        }
    }

    /// Bytes of the cache when it is full.
    pub(crate) fn allocated(&self) -> usize {
        match &self.data {
            Data::Bf16(data) => data.bytes(),
            Data::F32(data) => data.bytes(),
            Data::Int8(codes, scales) => codes.bytes() + scales.bytes(),
        }
    }

    /// Returns true if rows have scales.
    pub(super) fn has_scales(&self) -> bool {
        matches!(self.data, Data::Int8(..))
    }

    /// The address of row 0, and the bytes of a row.
    pub(super) fn bytes(&self) -> (*const u8, usize) {
        let head_dim = self.shape.head_dim;
        match &self.data {
            Data::Bf16(data) => (data.as_ptr().cast(), 2 * head_dim),
            Data::F32(data) => (data.as_ptr().cast(), 4 * head_dim),
            Data::Int8(codes, _) => (codes.as_ptr().cast(), head_dim),
        }
    }

    /// The keys of one head of a layer. All heads of latents have the same keys.
    pub(crate) fn keys(&self, layer: usize, head: usize) -> Plane {
        let shape = &self.shape;
        assert!(layer < shape.layers, "layer {layer} has no cache");
        let head = if shape.latent.is_some() { 0 } else { head };
        Plane {
            start: shape.parts() * layer * self.plane_rows() + head * shape.page_size,
            page_stride: shape.kv_heads * shape.page_size,
            page_size: shape.page_size,
            pages: shape.pages,
        }
    }

    /// Number of rows from a token's key to its value. A latent's value begins where its key does.
    pub(crate) fn values_after(&self) -> usize {
        match self.shape.latent {
            None => self.plane_rows(),
            Some(_) => 0,
        }
    }

    /// Number of rows of the keys, or of the values, of a layer.
    fn plane_rows(&self) -> usize {
        self.shape.pages * self.shape.kv_heads * self.shape.page_size
    }

    /// Returns true if keys and values are whole multiples of `columns` columns.
    pub(super) fn is_in_units_of(&self, columns: usize) -> bool {
        let KvShape {
            head_dim, latent, ..
        } = self.shape;
        [head_dim, latent.unwrap_or(head_dim)]
            .into_iter()
            .all(|width| width.is_multiple_of(columns))
    }

    /// Rows of keys and values, of all layers.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn rows(&self) -> usize {
        self.shape.parts() * self.shape.layers * self.plane_rows()
    }

    /// Copies the keys and values of one cell to another, in all layers.
    pub(crate) fn copy_cell(&mut self, from: u32, to: u32) {
        let (head_dim, page_size) = (self.shape.head_dim, self.shape.page_size);
        let values_after = self.values_after();
        let at = |plane: &Plane, cell: u32| {
            plane.row(cell as usize / page_size, cell as usize % page_size)
        };
        for layer in 0..self.shape.layers {
            for head in 0..self.shape.kv_heads {
                let plane = self.keys(layer, head);
                for part in [0, values_after].into_iter().take(self.shape.parts()) {
                    let (from, to) = (at(&plane, from) + part, at(&plane, to) + part);
                    let range = from * head_dim..(from + 1) * head_dim;
                    match &mut self.data {
                        Data::Bf16(data) => data.copy_within(range, to * head_dim),
                        Data::F32(data) => data.copy_within(range, to * head_dim),
                        Data::Int8(codes, scales) => {
                            codes.copy_within(range, to * head_dim);
                            scales[to] = scales[from];
                        }
                    }
                }
            }
        }
    }

    /// Stores keys and values of `qkv` rows at `cells`. Threads split the work by head, so a
    /// cell that is named twice holds the whole of its last row.
    pub(crate) fn write(
        &mut self,
        pool: &mut Pool,
        isa: Isa,
        layer: usize,
        qkv: &[f32],
        width: usize,
        cells: &[u32],
    ) {
        let head_dim = self.shape.head_dim;
        let target = Target {
            keys: self.keys(layer, 0),
            values_after: self.values_after(),
            kv_heads: self.shape.kv_heads,
            parts: self.shape.parts(),
            cells,
        };
        let first_key = width - target.parts * self.shape.kv_heads * head_dim;
        let source = |token: usize, index: usize| {
            let start = token * width + first_key + index * head_dim;
            &qkv[start..start + head_dim]
        };
        let shares = match cells.len() * (width - first_key) {
            0..=WRITE_ALONE => 1,
            _ => pool.threads(),
        };
        match &mut self.data {
            Data::Bf16(data) => {
                let data = Shared::new(data);
                target.scatter(pool, shares, |token, index, row| {
                    // SAFETY: heads are disjoint and each belongs to one thread.
                    let out = unsafe { data.slice(row * head_dim..(row + 1) * head_dim) };
                    to_bf16(isa, source(token, index), out);
                });
            }
            Data::F32(data) => {
                let data = Shared::new(data);
                target.scatter(pool, shares, |token, index, row| {
                    // SAFETY: as above.
                    let out = unsafe { data.slice(row * head_dim..(row + 1) * head_dim) };
                    out.copy_from_slice(source(token, index));
                });
            }
            Data::Int8(codes, scales) => {
                let (codes, scales) = (Shared::new(codes), Shared::new(scales));
                target.scatter(pool, shares, |token, index, row| {
                    // SAFETY: as above.
                    let out = unsafe { codes.slice(row * head_dim..(row + 1) * head_dim) };
                    // SAFETY: as above.
                    let scale = unsafe { scales.slice(row..row + 1) };
                    quantize(isa, source(token, index), out, &mut scale[0]);
                });
            }
        }
    }
}

/// The rows that new tokens' keys and values go to.
struct Target<'a> {
    /// Keys of head 0.
    keys: Plane,
    values_after: usize,
    kv_heads: usize,
    /// Rows of a head in a cell.
    parts: usize,
    cells: &'a [u32],
}

impl Target<'_> {
    /// Calls `store(token, index, row)` for every token and every index of a
    /// key head and then a value head, on `shares` threads.
    fn scatter(&self, pool: &mut Pool, shares: usize, store: impl Fn(usize, usize, usize) + Sync) {
        let page_size = self.keys.page_size;
        let work = |thread: usize| {
            for index in share(self.parts * self.kv_heads, shares, thread) {
                let (part, head) = (index / self.kv_heads, index % self.kv_heads);
                let offset = part * self.values_after + head * page_size;
                for (token, &cell) in self.cells.iter().enumerate() {
                    let cell = cell as usize;
                    let row = self.keys.row(cell / page_size, cell % page_size);
                    store(token, index, row + offset);
                }
            }
        };
        if shares == 1 { work(0) } else { pool.run(work) }
    }
}
