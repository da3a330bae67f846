//! Latent attention around its attention to cells: what is rotated and stored, and products of each
//! head with its own matrices. Compiled when a model first asks for one.
//!
//! A token's bits depend on the token and the weights alone: a sum has one order in tiles of any
//! height.

mod parameters;

use std::sync::Arc;

use lockstep_backend::{AttendLatent, LatentShape};

use super::attention::{PagedCache, Queries, Rope};
use super::products::few::Sizes;
use crate::error::CudaError;
use crate::kernels::{self, Source};
use crate::passes::Inputs;
use crate::runtime::{Buffer, Compiler, Context, Defines, Kernel, Module, Stream};
use crate::tensors::{CudaMatrix, Element, Floats, blocks};
use parameters::{HeadProduct, Latents};

/// Threads of a block, and warps.
const THREADS: u32 = 128;
const WARPS: usize = 4;
/// Kernels that multiply, with their tiles.
const SIZES: [Sizes; 4] = Sizes::named(["heads_8", "heads_16", "heads_32", "heads_64"]);

/// A latent attention on this device.
pub(crate) type LatentOp<'a> = AttendLatent<'a, CudaMatrix, Buffer<f32>, Rope>;

/// The kernels for operands of one type and caches of one type.
///
/// # Panics
/// Operations panic where arrays are too short or of another type. Cells and positions of a batch
/// that don't exist are skipped.
pub(crate) struct LatentOps {
    operand: Element,
    cached: Element,
    store: Kernel<Latents>,
    products: [(Sizes, Kernel<HeadProduct>); 4],
}

/// Places of tokens and of their heads in an array, in values of its type.
#[derive(Clone, Copy)]
struct Places {
    address: u64,
    element: Element,
    token: usize,
    head: usize,
}

impl Places {
    /// Heads of `each` values, of tokens of `width` values.
    fn dense(floats: &Floats, width: usize, each: usize) -> Self {
        Self {
            address: floats.address(),
            element: floats.element(),
            token: width,
            head: each,
        }
    }

    /// Returns these places where each head has values of type `element` at the beginning of its place.
    fn rounded(self, element: Element) -> Self {
        let more = self.element.bytes() / element.bytes();
        Self {
            element,
            token: more * self.token,
            head: more * self.head,
            ..self
        }
    }

    /// True if all heads begin at multiples of 16 bytes.
    fn are_aligned(&self) -> bool {
        let whole = |values: usize| (values * self.element.bytes()).is_multiple_of(16);
        whole(self.token) && whole(self.head)
    }
}

impl LatentOps {
    /// Compiles and loads the kernels.
    ///
    /// # Errors
    /// The errors of [`Compiler::compile`] and [`Module::load`].
    pub(crate) fn new(
        context: &Arc<Context>,
        compiler: &Compiler,
        operand: Element,
        cached: Element,
    ) -> Result<Self, CudaError> {
        let (source, defines) = source(operand, cached);
        let module = Module::load(context, &compiler.compile(source, &defines)?)?;
        let kernel = |sizes: Sizes| -> Result<_, CudaError> {
            let kernel = module.kernel(sizes.name, THREADS, sizes.shared_bytes())?;
            Ok((sizes, kernel))
        };
        let [first, second, third, fourth] = SIZES.map(kernel);
        Ok(Self {
            operand,
            cached,
            store: module.kernel("store_latents", THREADS, 0)?,
            products: [first?, second?, third?, fourth?],
        })
    }

    /// Returns true if the kernels write caches of this type.
    pub(crate) fn serve(&self, cached: Element) -> bool {
        self.cached == cached
    }

    /// Norms and rotates the tokens' cells and writes them to layer `layer` of the cache; makes
    /// their queries, absorbed and rotated, in `qkv`. What `query` has afterwards is unspecified.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`] for lists of addresses, [`CudaError::Driver`].
    pub(crate) fn prepare<'a>(
        &self,
        stream: &Stream,
        (query, cell): (&mut Floats, &Floats),
        op: &LatentOp<'_>,
        inputs: &Inputs,
        (cache, layer): (&mut PagedCache, usize),
        qkv: &'a mut Floats,
    ) -> Result<Queries<'a>, CudaError> {
        let (shape, most) = (op.shape, inputs.tokens().most());
        query.expect(Element::F32, most * shape.query_width(), "the queries");
        cell.expect(Element::F32, most * shape.cell(), "the cells");
        let width = shape.absorbed().qkv_width();
        qkv.expect(Element::F32, most * width, "qkv");
        cache.expect(&shape.absorbed(), self.cached, layer);
        let parameters = self.latents(op, (query, cell), inputs, (cache, layer), qkv);
        let grid = [most as u32, blocks(shape.heads + 1, WARPS), 1];
        // SAFETY: all have room for the batch's tokens, and missing cells and positions are
        // skipped. Queries are rounded in place by the warp that reads them.
        unsafe { self.store.launch(stream, grid, &parameters) }?;
        let of_heads = Places::dense(query, shape.query_width(), shape.nope).rounded(self.operand);
        let absorbed = Places::dense(qkv, width, shape.cell()).rounded(self.cached);
        // SAFETY: heads are as wide as their matrices say.
        unsafe { self.multiply(stream, of_heads, op.keys, Some(op.rope), inputs, absorbed) }?;
        Ok(Queries::rounded(qkv))
    }

    /// Multiplies the means of latents by the value matrices.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`] for lists of addresses, [`CudaError::Driver`].
    pub(crate) fn values(
        &self,
        stream: &Stream,
        means: &Floats,
        op: &LatentOp<'_>,
        inputs: &Inputs,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        let (shape, most) = (op.shape, inputs.tokens().most());
        let [from, to] = [shape.latent, shape.value].map(|each| (shape.heads * each, each));
        means.expect(self.operand, most * from.0, "the means of latents");
        out.expect(self.operand, most * to.0, "the attention output");
        let means = Places::dense(means, from.0, from.1);
        let out = Places::dense(out, to.0, to.1);
        // SAFETY: heads are as wide as their matrices say.
        unsafe { self.multiply(stream, means, op.values, None, inputs, out) }
    }

    fn latents(
        &self,
        op: &LatentOp<'_>,
        (query, cell): (&Floats, &Floats),
        inputs: &Inputs,
        (cache, layer): (&PagedCache, usize),
        qkv: &Floats,
    ) -> Latents {
        let LatentShape {
            heads,
            nope,
            rotated,
            latent,
            ..
        } = *op.shape;
        let rope = op.rope;
        Latents {
            query: query.address(),
            cell: cell.address(),
            qkv: qkv.address(),
            cells: cache.keys(layer),
            norm: op.norm.address(),
            cos: rope.cos.address(),
            sin: rope.sin.address(),
            query_scales: rope.queries.as_ref().map_or(0, Buffer::address),
            batch: inputs.address(),
            heads: heads as u32,
            nope: nope as u32,
            rotated: rotated as u32,
            latent: latent as u32,
            most: inputs.tokens().most() as u32,
            positions: rope.positions() as u32,
            cell_count: cache.cells() as u32,
            group: cache.group_in(inputs),
            eps: op.eps,
            pad: 0,
        }
    }

    /// Multiplies each head's columns by its matrix, and the results by the token's factor of
    /// queries if there is a `rope`.
    ///
    /// # Safety
    /// Each head of each token has the columns of its matrix at `x`, and room at `out`.
    unsafe fn multiply(
        &self,
        stream: &Stream,
        x: Places,
        matrices: &[CudaMatrix],
        rope: Option<&Rope>,
        inputs: &Inputs,
        out: Places,
    ) -> Result<(), CudaError> {
        let (heads, most) = (matrices.len(), inputs.tokens().most());
        let (outputs, columns) = (matrices[0].rows, matrices[0].cols);
        assert!(x.element == self.operand, "operands are of one type");
        assert!(
            [self.operand, self.cached].contains(&out.element),
            "results are operands, or cached"
        );
        let whole = (columns * self.operand.bytes()).is_multiple_of(16);
        let scales = rope.and_then(|rope| rope.queries.as_ref());
        let parameters = HeadProduct {
            x: x.address,
            w: CudaMatrix::addresses(stream, matrices)?,
            out: out.address,
            scales: scales.map_or(0, Buffer::address),
            batch: inputs.address(),
            x_token: x.token as u32,
            x_head: x.head as u32,
            out_token: out.token as u32,
            out_head: out.head as u32,
            outputs: outputs as u32,
            inputs: columns as u32,
            most: most as u32,
            positions: rope.map_or(0, Rope::positions) as u32,
            aligned: u32::from(whole && x.are_aligned()),
            to_cached: u32::from(out.element == self.cached),
        };
        let [smaller @ .., largest] = &self.products;
        let fits = |(sizes, _): &&(Sizes, Kernel<HeadProduct>)| most <= sizes.rows;
        let (sizes, kernel) = smaller.iter().find(fits).unwrap_or(largest);
        let grid = [
            blocks(outputs, sizes.outputs),
            heads as u32,
            blocks(most, sizes.rows),
        ];
        // SAFETY: the caller answers for `x` and `out`, and matrices have their sizes.
        unsafe { kernel.launch(stream, grid, &parameters) }
    }
}

/// Source to compile, with its macros.
pub(crate) fn source(operand: Element, cached: Element) -> (&'static Source, Defines) {
    let is_bf16 = u32::from(operand == Element::Bf16);
    let defines = vec![
        ("OPERAND", operand.name().to_owned()),
        ("OPERAND_IS_BF16", is_bf16.to_string()),
        ("CACHED", cached.name().to_owned()),
        ("TRIGGERS_AT_HALF", "0".to_owned()),
    ];
    (&kernels::LATENT, defines)
}

/// Name, threads and bytes of shared memory of each kernel.
#[cfg(test)]
pub(crate) fn launched() -> [(&'static str, usize, usize); 5] {
    let [first, second, third, fourth] =
        SIZES.map(|sizes| (sizes.name, THREADS as usize, sizes.shared_bytes()));
    let store = ("store_latents", THREADS as usize, 0);
    [store, first, second, third, fourth]
}
