//! Attention over a paged cache, and the writes to that cache.

mod cache;
mod heads;
mod limits;
mod parameters;
mod stage;
mod work;

use std::sync::Arc;

use lockstep_backend::AttentionShape;

use crate::error::CudaError;
use crate::kernels::{self, Source};
use crate::passes::Inputs;
use crate::runtime::{Buffer, Compiler, Context, Defines, Kernel, Module, Stream};
use crate::tensors::{Element, Floats};
pub use cache::PagedCache;
pub use heads::{HeadNorms, Queries, Rope};
use parameters::{Attend, CopyAccepted, CopyCells, Heads, Merge, Plan};
pub(crate) use stage::{Wide, stage_bytes};
use stage::{blocks_at_once, buffers, wide_queries};
pub use work::{Cut, Work, WorkLimits};

/// Threads of a block.
const THREADS: u32 = 128;
/// Blocks per multiprocessor that merge parts.
const MERGING_PER_MULTIPROCESSOR: u32 = 4;
/// Most bytes of weights that attention fetches ahead. With what else a layer reads they stay in
/// the L2 cache of an H100 or H200 (50 and 60 MB) until the product reads them.
const MOST_AHEAD: usize = 24 << 20;
/// Most tokens of a batch whose attention fetches ahead: that of more keeps the memory busy.
const TOKENS_AHEAD: usize = 8;

/// Parts of an attention beside its queries, keys and values.
#[derive(Clone, Copy, Default)]
pub struct Beside<'a> {
    /// Sinks `[heads]`, if the shape has some.
    pub sinks: Option<&'a Buffer<f32>>,
    /// Weights of the product that reads the output, which attention may fetch meanwhile.
    pub next: Option<&'a Floats>,
}

/// Attention kernels for one head shape, one type of cache and one type of operands. Layers that
/// read the cache of another have the kernels of those that write it.
///
/// # Panics
/// Operations panic where arrays are too short or of another type. Cells, pages and positions
/// of a batch that don't exist are skipped.
pub struct Attention {
    shape: AttentionShape,
    cached: Element,
    operand: Element,
    multiprocessors: u32,
    /// Blocks of `attend` that a multiprocessor runs at once.
    at_once: u32,
    rotate_and_store: Kernel<Heads>,
    copy_cells: Kernel<CopyCells>,
    copy_accepted: Kernel<CopyAccepted>,
    plan: Kernel<Plan>,
    attend: Kernel<Attend>,
    /// True if attention of few tokens fetches weights of the product behind it.
    fetches_ahead: bool,
    /// `None` where heads or the GPU don't allow wide tiles.
    wide: Option<(Wide, Kernel<Attend>)>,
    merge: Kernel<Merge>,
}

impl Attention {
    /// Compiles and loads the kernels.
    ///
    /// # Errors
    /// The errors of [`Self::check`], [`Compiler::compile`] and [`Module::load`].
    pub fn new(
        context: &Arc<Context>,
        compiler: &Compiler,
        shape: &AttentionShape,
        cached: Element,
        operand: Element,
    ) -> Result<Self, CudaError> {
        Self::check(context.gpu(), shape, cached)?;
        let load = |(source, defines): (&Source, Defines)| -> Result<_, CudaError> {
            Module::load(context, &compiler.compile(source, &defines)?)
        };
        let [cells, plan, attention] = sources(shape, cached, operand).map(load);
        let (cells, plan, attention) = (cells?, plan?, attention?);
        let bytes = stage_bytes(shape, cached);
        let wide = Wide::of(shape, cached, context.gpu().block_memory());
        let wide = wide.map(|wide| -> Result<_, CudaError> {
            let module = load(wide_source(shape, operand, &wide))?;
            let kernel = module.kernel("attend_wide", wide.threads, wide.bytes)?;
            Ok((wide, kernel))
        });
        Ok(Self {
            shape: writing(shape),
            cached,
            operand,
            multiprocessors: context.gpu().multiprocessors(),
            at_once: blocks_at_once(shape, cached, context.gpu().shared_memory()),
            fetches_ahead: context.switches().fetches_ahead,
            rotate_and_store: cells.kernel("rotate_and_store", THREADS, 0)?,
            copy_cells: cells.kernel("copy_cells", THREADS, 0)?,
            copy_accepted: cells.kernel("copy_accepted", THREADS, 0)?,
            plan: plan.kernel("attention_plan", 32, 0)?,
            attend: attention.kernel("attend", THREADS, bytes)?,
            wide: wide.transpose()?,
            merge: attention.kernel("attention_merge", THREADS, 0)?,
        })
    }

    /// Returns these kernels without the one for wide tiles: all queries have narrow ones, with
    /// the same bits.
    #[must_use]
    pub fn narrow(self) -> Self {
        Self { wide: None, ..self }
    }

    /// Heads that the kernels were compiled for, as those of a layer that writes to its cache.
    pub fn shape(&self) -> &AttentionShape {
        &self.shape
    }
    /// Element type of the cached keys and values.
    pub fn cached(&self) -> Element {
        self.cached
    }

    /// Cuts a batch into work items, which [`Self::attend`] then uses in all layers.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if the batch has more rows than `work` has room for.
    pub fn plan(&self, stream: &Stream, inputs: &Inputs, work: &mut Work) -> Result<(), CudaError> {
        work.expect(&self.shape, inputs.rows().most());
        let kv_heads = self.shape.kv_heads as u32;
        let least_wide = self.least_wide(inputs);
        work.may_be_wide = least_wide.is_some();
        let parameters = Plan {
            batch: inputs.address(),
            work: work.list(),
            most_rows: work.rows() as u32,
            heads: self.shape.heads as u32,
            // With this many tiles the device is busy without splitting them.
            split_tiles: self.multiprocessors / kv_heads,
            least_wide: least_wide.unwrap_or(u32::MAX),
            blocks: self.shared(self.at_once),
            wide_blocks: self
                .wide
                .as_ref()
                .map_or(0, |(wide, _)| self.shared(wide.at_once)),
            most_parts: work.most_parts() as u32,
            window: window_of(&self.shape),
        };
        // SAFETY: the list has room for `most_rows` rows.
        unsafe { self.plan.launch(stream, [1, 1, 1], &parameters) }
    }

    /// Computes attention. Each of `queries` sees its request's cached positions. Of the new
    /// tokens it sees those up to itself, or those that the row's mask shows. A query that sees
    /// nothing gives zeros. `out` is `[tokens, heads·value_dim]` operands. Keys and values of
    /// new tokens must be in the cache already.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    #[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
    pub fn attend<'a>(
        &self,
        stream: &Stream,
        queries: impl Into<Queries<'a>>,
        inputs: &Inputs,
        cache: &PagedCache,
        layer: usize,
        work: &mut Work,
        out: &mut Floats,
        beside: Beside<'_>,
    ) -> Result<(), CudaError> {
        let (shape, most) = (&self.shape, inputs.tokens().most());
        let queries = queries.into();
        let query_stride = self.row_width(queries.alone);
        queries.expect(most, query_stride);
        out.expect(
            self.operand,
            most * shape.out_width(),
            "the attention output",
        );
        cache.expect(shape, self.cached, layer);
        work.expect(shape, inputs.rows().most());
        let page_size = inputs.limits().page_size;
        assert!(
            page_size == cache.page_size(),
            "a batch's pages are the cache's"
        );
        let has = beside.sinks.map(Buffer::len);
        assert!(
            has == shape.sinks.then_some(shape.heads),
            "heads have sinks if their shape says so, one each"
        );
        let sinks = beside.sinks.map_or(0, Buffer::address);
        let (ahead, ahead_bytes) = self.ahead(beside.next, most);
        let parameters = Attend {
            queries: queries.address,
            keys: cache.keys(layer),
            values: cache.values(layer),
            batch: inputs.address(),
            work: work.list(),
            parts: work.parts(),
            out: out.address(),
            most_rows: work.rows() as u32,
            kv_heads: shape.kv_heads as u32,
            cells: cache.cells() as u32,
            page_size: page_size as u32,
            scale: shape.scale * std::f32::consts::LOG2_E,
            group: cache.group_in(inputs),
            window: window_of(shape),
            rounded: u32::from(queries.rounded),
            softcap: shape.softcap.unwrap_or(0.0) * std::f32::consts::LOG2_E,
            ahead_bytes,
            ahead,
            sinks,
            query_stride: query_stride as u32,
            pad: 0,
        };
        let grid = |at_once| [self.shared(at_once), shape.kv_heads as u32, 1];
        // SAFETY: the plan keeps within the room for parts, all tokens have queries, and room in
        // `out`, and missing cells are not read.
        unsafe {
            if let (Some((wide, kernel)), true) = (&self.wide, work.may_be_wide) {
                kernel.launch(stream, grid(wide.at_once), &parameters)?;
            }
            self.attend
                .launch(stream, grid(self.at_once), &parameters)?;
        }
        self.merge_parts(stream, inputs, work, sinks, out)
    }
}

impl Attention {
    /// Adds the parts of split queries up, in the order of their spans.
    fn merge_parts(
        &self,
        stream: &Stream,
        inputs: &Inputs,
        work: &Work,
        sinks: u64,
        out: &Floats,
    ) -> Result<(), CudaError> {
        let parameters = Merge {
            batch: inputs.address(),
            work: work.list(),
            parts: work.parts(),
            out: out.address(),
            most_rows: work.rows() as u32,
            most_tokens: inputs.tokens().most() as u32,
            heads: self.shape.heads as u32,
            window: window_of(&self.shape),
            sinks,
        };
        let shared = MERGING_PER_MULTIPROCESSOR * self.multiprocessors;
        // SAFETY: the plan keeps within the room for parts, and all tokens have room in `out`.
        unsafe { self.merge.launch(stream, [shared, 1, 1], &parameters) }
    }

    /// Blocks that share the items of one key and value head.
    fn shared(&self, per_multiprocessor: u32) -> u32 {
        let kv_heads = self.shape.kv_heads as u32;
        (per_multiprocessor * self.multiprocessors).div_ceil(kv_heads)
    }

    /// Address and bytes of what attention of `tokens` tokens fetches of the weights `next`.
    fn ahead(&self, next: Option<&Floats>, tokens: usize) -> (u64, u32) {
        let fetched = next.filter(|_| self.fetches_ahead && tokens <= TOKENS_AHEAD);
        fetched.map_or((0, 0), |next| {
            let bytes = next.len() * next.element().bytes();
            // Whole units of 16 bytes.
            (next.address(), (bytes.min(MOST_AHEAD) / 16 * 16) as u32)
        })
    }

    /// Number of wide items for each key and value head that give every multiprocessor one. `None`
    /// if the queries of all rows that may have wide tiles do not fill as many. Then the kernel for
    /// them is not launched, since decode steps would wait for it in vain.
    fn least_wide(&self, inputs: &Inputs) -> Option<u32> {
        self.wide.as_ref()?;
        let AttentionShape {
            heads, kv_heads, ..
        } = self.shape;
        let (group, tile) = (heads / kv_heads, wide_queries(&self.shape));
        let least = self.multiprocessors.div_ceil(kv_heads as u32);
        let tokens = inputs.tokens_in_long_rows(tile.div_ceil(group));
        (tokens * group / tile >= least as usize).then_some(least)
    }
}

/// Sources to compile for a shape and its types, each with its macros.
pub(crate) fn sources(
    shape: &AttentionShape,
    cached: Element,
    operand: Element,
) -> [(&'static Source, Defines); 3] {
    let heads = vec![
        ("HEAD_DIM", shape.head_dim.to_string()),
        ("CACHED", cached.name().to_owned()),
    ];
    let plan = vec![
        ("GROUP", (shape.heads / shape.kv_heads).to_string()),
        ("WIDE_TILE", wide_queries(shape).to_string()),
    ];
    let mut group = tile_defines(shape, cached, operand);
    group.push(("STAGE_BYTES", stage_bytes(shape, cached).to_string()));
    group.push(("BUFFERS", buffers(shape).to_string()));
    [
        (&kernels::CELLS, heads),
        (&kernels::PLAN, plan),
        (&kernels::ATTENTION, group),
    ]
}

/// Source of the kernel for wide tiles, with its macros.
pub(crate) fn wide_source(
    shape: &AttentionShape,
    operand: Element,
    wide: &Wide,
) -> (&'static Source, Defines) {
    let mut defines = tile_defines(shape, Element::Bf16, operand);
    defines.push(("WIDE_TILE", wide_queries(shape).to_string()));
    defines.push(("WIDE_STAGE_BYTES", wide.bytes.to_string()));
    if wide.in_registers {
        return (&kernels::WIDE, defines);
    }
    defines.push(("BUFFERS", wide.buffers.to_string()));
    (&kernels::PAIRS, defines)
}

/// Macros of the kernels that multiply tiles.
fn tile_defines(shape: &AttentionShape, cached: Element, operand: Element) -> Defines {
    let is_bf16 = u32::from(cached == Element::Bf16);
    vec![
        ("HEAD_DIM", shape.head_dim.to_string()),
        ("VALUE_DIM", shape.value_dim().to_string()),
        ("LATENT", u32::from(shape.latent.is_some()).to_string()),
        ("CACHED", cached.name().to_owned()),
        ("GROUP", (shape.heads / shape.kv_heads).to_string()),
        ("OPERAND", operand.name().to_owned()),
        ("CACHED_IS_BF16", is_bf16.to_string()),
    ]
}

/// The shape of a layer that writes to the cache, if one of `shape` reads it.
pub(crate) fn writing(shape: &AttentionShape) -> AttentionShape {
    AttentionShape {
        reads_only: false,
        ..*shape
    }
}

/// The window as kernels know it: as none, one of more positions than there are.
fn window_of(shape: &AttentionShape) -> u32 {
    let window = shape
        .window
        .and_then(|window| u32::try_from(window.get()).ok());
    window.unwrap_or(u32::MAX)
}
