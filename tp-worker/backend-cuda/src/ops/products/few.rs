//! Products of few rows, by a kernel of our own.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use lockstep_types::Activation;

use super::{Operands, Product, WORKSPACE};
use crate::error::CudaError;
use crate::kernels::{self, Source};
use crate::ops::{Sums, SumsParameter, number_of};
use crate::runtime::{Buffer, Compiler, Context, Defines, Kernel, Module, Stream};
use crate::tensors::{Element, Floats, Rows, RowsParameter, blocks};

/// Largest number of rows that counts as few.
pub(crate) const MOST_ROWS: usize = 64;
/// Largest number of rows that this kernel serves if the device counts them. Blocks share the
/// rows, at most [`MOST_ROWS`] to each. The largest pass recorded by default has as many.
pub(crate) const MOST_COUNTED: usize = 4 * MOST_ROWS;
/// Threads of a block that multiplies (`THREADS`), and of a block that sums up.
const THREADS: u32 = 128;
const SUM_THREADS: u32 = 256;
/// Bytes of a row that are staged at a time.
const CHUNK: usize = 128;
/// Outputs of the smallest tile.
const SMALLEST_TILE: usize = 64;
/// Least number of chunks of a slice: about as many as are on their way at once.
const SLICE: usize = 4;
/// Largest number of slices. More would cost more to sum up than they bring.
const MOST_SLICES: usize = 16;

/// The kernels of `few_rows.cu`. Their order of sums follows from the matrix's shape and the
/// device, never from the number of rows.
pub(super) struct FewRows {
    element: Element,
    multiprocessors: usize,
    /// Kernels with their sizes, ascending by the rows that they serve.
    products: [(Sizes, Kernel<Parameters>); 4],
    sum_up: Kernel<SumUp>,
}

/// Rows and outputs of a tile, and number of stages, as in `few_rows.cuh`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) name: &'static str,
    pub(crate) rows: usize,
    pub(crate) outputs: usize,
    pub(crate) stages: usize,
}

const SIZES: [Sizes; 4] = Sizes::named(["product_8", "product_16", "product_32", "product_64"]);

impl Sizes {
    /// Sizes of kernels for 8, 16, 32 and 64 rows.
    pub(crate) const fn named(names: [&'static str; 4]) -> [Self; 4] {
        let [first, second, third, fourth] = names;
        [
            Self::new(first, 8, SMALLEST_TILE, 6),
            Self::new(second, 16, SMALLEST_TILE, 5),
            Self::new(third, 32, 2 * SMALLEST_TILE, 4),
            Self::new(fourth, MOST_ROWS, 2 * SMALLEST_TILE, 4),
        ]
    }

    const fn new(name: &'static str, rows: usize, outputs: usize, stages: usize) -> Self {
        Self {
            name,
            rows,
            outputs,
            stages,
        }
    }

    /// Bytes of shared memory of a block.
    pub(crate) fn shared_bytes(&self) -> usize {
        self.stages * (self.rows + self.outputs) * CHUNK
    }
}

impl FewRows {
    pub(super) fn new(
        context: &Arc<Context>,
        compiler: &Compiler,
        element: Element,
    ) -> Result<Self, CudaError> {
        let (source, defines) = source(element, context.switches().triggers_at_half);
        let module = Module::load(context, &compiler.compile(source, &defines)?)?;
        let kernel = |sizes: Sizes| -> Result<_, CudaError> {
            let kernel = module.kernel(sizes.name, THREADS, sizes.shared_bytes())?;
            Ok((sizes, kernel))
        };
        let [first, second, third, fourth] = SIZES.map(kernel);
        Ok(Self {
            element,
            multiprocessors: context.gpu().multiprocessors() as usize,
            products: [first?, second?, third?, fourth?],
            sum_up: module.kernel("sum_up", SUM_THREADS, 0)?,
        })
    }

    /// Number of slices that the columns are cut into. It makes about one and a half blocks for
    /// each multiprocessor, so that a matrix of few outputs keeps the device busy, too.
    pub(super) fn slices(&self, product: Product) -> usize {
        let Product {
            outputs,
            inputs,
            element,
        } = product;
        let tiles = outputs.div_ceil(SMALLEST_TILE).max(1);
        let wanted = (3 * self.multiprocessors).div_ceil(2 * tiles);
        let chunks = (inputs * element.bytes()).div_ceil(CHUNK);
        let room = WORKSPACE / (size_of::<f32>() * MOST_ROWS * outputs.max(1));
        let most = (chunks / SLICE).min(room).min(MOST_SLICES);
        wanted.min(most).max(1)
    }

    /// Returns true if these kernels serve such a product.
    pub(super) fn serve(&self, operands: &Operands<'_>) -> bool {
        let (rows, outputs) = (operands.rows, operands.product.outputs);
        if rows.most() <= MOST_ROWS {
            return true;
        }
        let parts = match self.slices(operands.product) {
            1 => 0,
            slices => slices * rows.most() * outputs * size_of::<f32>(),
        };
        rows.are_counted() && rows.most() <= MOST_COUNTED && parts <= WORKSPACE
    }

    /// Multiplies. One slice writes sums at `out`; several slices write as many parts there.
    ///
    /// # Safety
    /// There is room for them at `out`.
    pub(super) unsafe fn multiply(
        &self,
        stream: &Stream,
        operands: Operands<'_>,
        bias: Option<&Buffer<f32>>,
        out: u64,
    ) -> Result<(), CudaError> {
        let outputs = operands.product.outputs;
        let parameters = self.parameters(operands, outputs, bias, out);
        let slices = self.slices(operands.product);
        // SAFETY: the operands have their sizes, and the caller answers for `out`.
        unsafe { self.launch(stream, operands, slices, &parameters) }
    }

    /// Multiplies in several slices to parts in `space`, which has [`WORKSPACE`] bytes.
    pub(super) fn multiply_in_parts<'a>(
        &self,
        stream: &Stream,
        operands: Operands<'a>,
        space: &'a mut Buffer<u8>,
    ) -> Result<Sums<'a>, CudaError> {
        let slices = self.slices(operands.product);
        let len = operands.rows.most() * operands.product.outputs;
        let bytes = slices * len * size_of::<f32>();
        assert!(bytes <= space.len(), "all parts have room");
        let at = space.address();
        // SAFETY: there is room.
        unsafe { self.multiply(stream, operands, None, at) }?;
        // SAFETY: the parts lie in `space`, which is borrowed as long.
        Ok(unsafe { Sums::in_parts(at, slices, len, operands.bias) })
    }

    /// `out = f(gate) · up` with the activation `f` of a product of one slice. The first half of the outputs are the
    /// gates.
    pub(super) fn multiply_gated(
        &self,
        stream: &Stream,
        operands: Operands<'_>,
        activation: Activation,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        let outputs = operands.product.outputs;
        assert!(
            outputs.is_multiple_of(2),
            "every gate lets something through"
        );
        let width = outputs / 2;
        out.expect(
            self.element,
            operands.rows.most() * width,
            "the activation's output",
        );
        let gated = Parameters {
            gated: number_of(activation),
            ..self.parameters(operands, width, operands.bias, out.address())
        };
        // SAFETY: the operands have their sizes, and `out` has room.
        unsafe { self.launch(stream, operands, 1, &gated) }
    }

    fn parameters(
        &self,
        operands: Operands<'_>,
        outputs: usize,
        bias: Option<&Buffer<f32>>,
        out: u64,
    ) -> Parameters {
        let Operands {
            x,
            w,
            product,
            rows,
            ..
        } = operands;
        assert!(product.element == self.element, "operands are of one type");
        let aligned = (product.inputs * self.element.bytes()).is_multiple_of(16);
        Parameters {
            x: x.address(),
            w: w.address(),
            bias: bias.map_or(0, Buffer::address),
            out,
            rows: rows.parameter(),
            outputs: outputs as u32,
            inputs: product.inputs as u32,
            gated: 0,
            aligned: u32::from(aligned),
        }
    }

    /// # Safety
    /// The memory that `parameters` name exists.
    unsafe fn launch(
        &self,
        stream: &Stream,
        operands: Operands<'_>,
        slices: usize,
        parameters: &Parameters,
    ) -> Result<(), CudaError> {
        assert!(self.serve(&operands), "there are few rows");
        let rows = operands.rows.most();
        let [smaller @ .., largest] = &self.products;
        let serves = |(sizes, _): &&(Sizes, _)| rows <= sizes.rows;
        let (sizes, kernel) = smaller.iter().find(serves).unwrap_or(largest);
        let tiles = blocks(operands.product.outputs, sizes.outputs) * blocks(rows, sizes.rows);
        // SAFETY: the caller answers for this.
        unsafe { kernel.launch(stream, [tiles, slices as u32, 1], parameters) }
    }

    /// `out = sums`.
    pub(super) fn sum_up(
        &self,
        stream: &Stream,
        sums: Sums<'_>,
        rows: Rows<'_>,
        width: usize,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        sums.expect(rows.most(), width, "a sum in parts");
        // SAFETY: the sums lie elsewhere.
        unsafe { self.write(stream, sums.parameter(), rows, width, out) }
    }

    /// `out += bias` in every row.
    pub(super) fn add_bias(
        &self,
        stream: &Stream,
        bias: &Buffer<f32>,
        rows: Rows<'_>,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        let sums = Sums::with_bias(out, Some(bias)).parameter();
        // SAFETY: each value is read by the thread that writes it.
        unsafe { self.write(stream, sums, rows, bias.len(), out) }
    }

    /// # Safety
    /// There are as many sums at `sums`. They may be those in `out`.
    unsafe fn write(
        &self,
        stream: &Stream,
        sums: SumsParameter,
        rows: Rows<'_>,
        width: usize,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        out.expect(Element::F32, rows.most() * width, "the product's output");
        let parameters = SumUp {
            sums,
            out: out.address(),
            rows: rows.parameter(),
            width: width as u32,
            pad: 0,
        };
        let grid = [rows.most() as u32, blocks(width, SUM_THREADS as usize), 1];
        // SAFETY: `out` has room; the caller answers for `sums`.
        unsafe { self.sum_up.launch(stream, grid, &parameters) }
    }
}

/// Name, threads and bytes of shared memory of each kernel that multiplies.
#[cfg(test)]
pub(crate) fn launched() -> [(&'static str, usize, usize); 4] {
    SIZES.map(|sizes| (sizes.name, THREADS as usize, sizes.shared_bytes()))
}

/// Source to compile, with its macros. Products let the kernel behind them begin at once, or when
/// half of their chunks are on their way.
pub(crate) fn source(element: Element, triggers_at_half: bool) -> (&'static Source, Defines) {
    let is_bf16 = u32::from(element == Element::Bf16);
    let defines = vec![
        ("OPERAND", element.name().to_owned()),
        ("OPERAND_IS_BF16", is_bf16.to_string()),
        ("TRIGGERS_AT_HALF", u32::from(triggers_at_half).to_string()),
    ];
    (&kernels::FEW_ROWS, defines)
}

/// `Product` of `few_rows.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Parameters {
    x: u64,
    w: u64,
    bias: u64,
    out: u64,
    rows: RowsParameter,
    outputs: u32,
    inputs: u32,
    gated: u32,
    aligned: u32,
}

/// `SumUp` of `few_rows.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct SumUp {
    sums: SumsParameter,
    out: u64,
    rows: RowsParameter,
    width: u32,
    pad: u32,
}
