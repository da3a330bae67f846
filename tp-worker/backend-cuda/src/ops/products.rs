//! Matrix products: few rows by a kernel of our own, more rows by cuBLASLt.

pub(crate) mod few;
mod plan;

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

use cudarc::cublaslt::result::CublasError;
use cudarc::cublaslt::{result, sys};
use lockstep_types::Activation;

use crate::error::CudaError;
use crate::ops::{Sums, SumsWithSpace};
use crate::runtime::{Buffer, Compiler, Context, Gpu, Stream};
use crate::tensors::{CudaMatrix, Element, Floats, Rows};
use crate::version::Version;
use few::FewRows;
use plan::Plan;

/// Bytes of working memory, for cuBLASLt's algorithms as NVIDIA recommends for its newer GPUs,
/// and for sums in parts.
pub(crate) const WORKSPACE: usize = 32 << 20;
/// Smallest number of rows that a cuBLASLt algorithm is chosen for.
const SMALLEST_BUCKET: usize = 2 * few::MOST_ROWS;

/// A kind of product: `[rows, inputs] × [outputs, inputs]ᵀ → [rows, outputs]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Product {
    /// Rows of the weight matrix.
    pub outputs: usize,
    /// Columns of the weight matrix.
    pub inputs: usize,
    /// Type of both operands; results are f32.
    pub element: Element,
}

impl Product {
    /// Returns the kind of product with `weights`.
    pub(crate) fn of(weights: &CudaMatrix) -> Self {
        Self {
            outputs: weights.rows,
            inputs: weights.cols,
            element: weights.floats().element(),
        }
    }
}

/// Operands of a product: the first `rows` rows of `x`, multiplied by `w`.
#[derive(Clone, Copy)]
pub struct Operands<'a> {
    /// `[rows, inputs]`, of the product's type.
    pub x: &'a Floats,
    /// `[outputs, inputs]`, of the product's type.
    pub w: &'a Floats,
    /// `[outputs]`, added to every row.
    pub bias: Option<&'a Buffer<f32>>,
    /// Shape and type of the product.
    pub product: Product,
    /// Rows of `x`. cuBLASLt multiplies all of them, present or not. It serves more than 256
    /// rows, and more than 64 rows that the device does not count.
    pub rows: Rows<'a>,
}

impl Operands<'_> {
    /// # Panics
    /// Panics if arrays are too short or of another type.
    fn expect(&self) {
        let Product {
            outputs,
            inputs,
            element,
        } = self.product;
        let bias = self.bias.is_none_or(|bias| bias.len() == outputs);
        assert!(bias, "a bias has one value per output");
        self.x
            .expect(element, self.rows.most() * inputs, "the product's input");
        self.w
            .expect(element, outputs * inputs, "the product's weights");
    }
}

/// Products of operands of one type, and the algorithms that were chosen for them.
///
/// With up to 64 rows, a row's bits depend on the row, the weights and the device alone.
/// cuBLASLt multiplies more rows. Its algorithm is chosen for each power of two, and another
/// algorithm may give other bits. Example: 65 and 128 rows share an algorithm, 129 rows have
/// the next one. So a row's result depends on its operands and on the power of two, on nothing
/// else. Up to 256 rows that the device counts go to the kernel for few rows, with its bits: if
/// the count is zero, that kernel reads no weights, and cuBLASLt could not skip them.
///
/// All work goes to one stream: products share their working memory.
pub struct Products {
    context: Arc<Context>,
    handle: sys::cublasLtHandle_t,
    workspace: Buffer<u8>,
    few: FewRows,
    /// All products that were prepared.
    prepared: Vec<Product>,
    plans: HashMap<(Product, usize), Plan>,
    /// Number of rows that all of them are prepared for.
    most_rows: usize,
}

// SAFETY: the handle may be used by any thread; it and the plans have one owner.
unsafe impl Send for Products {}

impl Products {
    /// Looks for the library. Takes nothing of the GPU.
    ///
    /// # Errors
    /// [`CudaError::Missing`], [`CudaError::OldDriver`].
    pub fn find(gpu: &Gpu) -> Result<(), CudaError> {
        // SAFETY: looks for a library and does nothing with it.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::Missing {
                library: "libcublasLt.so",
                remedy: "install CUDA's matrix products (nvidia-cublas) and name its folder in LD_LIBRARY_PATH",
            });
        }
        // SAFETY: the call only asks.
        let number = unsafe { sys::cublasLtGetVersion() } as u32;
        let version = Version {
            major: number / 10_000,
            minor: number % 10_000 / 100,
        };
        gpu.check_library("libcublasLt", version)
    }

    /// Opens the library, and compiles the kernels for operands of type `operand`.
    ///
    /// # Errors
    /// The errors of [`Self::find`], [`Compiler::compile`] and
    /// [`Module::load`](crate::Module::load); [`CudaError::OutOfMemory`],
    /// [`CudaError::Product`].
    pub fn new(
        context: &Arc<Context>,
        compiler: &Compiler,
        operand: Element,
    ) -> Result<Self, CudaError> {
        Self::find(context.gpu())?;
        context.bind()?;
        let workspace = Buffer::new(context, WORKSPACE, "working memory of products")?;
        Ok(Self {
            few: FewRows::new(context, compiler, operand)?,
            prepared: Vec::new(),
            handle: result::create_handle().map_err(failed("cublasLtCreate"))?,
            context: context.clone(),
            workspace,
            plans: HashMap::new(),
            most_rows: 0,
        })
    }

    /// Chooses the algorithms for up to `rows` rows, for all products prepared so far and for
    /// all prepared later.
    ///
    /// # Errors
    /// The errors of [`Self::prepare`].
    pub fn prepare_all(&mut self, rows: usize) -> Result<(), CudaError> {
        self.most_rows = self.most_rows.max(rows);
        (0..self.prepared.len()).try_for_each(|at| self.prepare(self.prepared[at], rows))
    }

    /// Chooses the algorithms of `product` for up to `rows` rows, and at least for the rows of
    /// [`Self::prepare_all`]. Then [`Self::run`] has no choice to make, which it could not do
    /// while a graph is recorded.
    ///
    /// # Errors
    /// [`CudaError::Product`], also if there is no algorithm.
    pub fn prepare(&mut self, product: Product, rows: usize) -> Result<(), CudaError> {
        self.context.bind()?;
        if !self.prepared.contains(&product) {
            self.prepared.push(product);
        }
        let rows = rows.max(self.most_rows);
        let mut rows_of_bucket = SMALLEST_BUCKET;
        while rows > rows_of_bucket / 2 {
            self.plan(product, rows_of_bucket)?;
            rows_of_bucket *= 2;
        }
        Ok(())
    }

    /// Number of slices that the columns of `product` are cut into when it has few rows. It
    /// sets the order of sums.
    pub fn slices(&self, product: Product) -> usize {
        self.few.slices(product)
    }

    /// `out = x · wᵀ + bias`.
    ///
    /// # Errors
    /// [`CudaError::Product`], [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if arrays are too short or of another type.
    pub fn run(
        &mut self,
        stream: &Stream,
        operands: Operands<'_>,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        let (rows, outputs) = (operands.rows, operands.product.outputs);
        operands.expect();
        out.expect(Element::F32, rows.most() * outputs, "the product's output");
        if !self.few.serve(&operands) {
            self.multiply_many(stream, operands, out)?;
            return match operands.bias {
                Some(bias) => self.few.add_bias(stream, bias, rows, out),
                None => Ok(()),
            };
        }
        if self.slices(operands.product) == 1 {
            let to = out.address();
            // SAFETY: there is room for one slice.
            return unsafe { self.few.multiply(stream, operands, operands.bias, to) };
        }
        let few = &self.few;
        let sums = few.multiply_in_parts(stream, operands, &mut self.workspace)?;
        few.sum_up(stream, sums, rows, outputs, out)
    }

    /// Does the same as [`Self::run`] for an operation that accepts sums in parts. `space` has
    /// room for the product.
    ///
    /// # Errors
    /// [`CudaError::Product`], [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if arrays are too short or of another type.
    pub fn sums<'a>(
        &'a mut self,
        stream: &Stream,
        operands: Operands<'a>,
        space: &'a mut Floats,
    ) -> Result<Sums<'a>, CudaError> {
        if self.few.serve(&operands) && self.slices(operands.product) > 1 {
            operands.expect();
            return self
                .few
                .multiply_in_parts(stream, operands, &mut self.workspace);
        }
        let plain = Operands {
            bias: None,
            ..operands
        };
        self.run(stream, plain, space)?;
        Ok(Sums::with_bias(space, operands.bias))
    }

    /// Does the same as [`Self::sums`] for an operation that overwrites `space` while it reads the
    /// sums.
    ///
    /// # Errors
    /// [`CudaError::Product`], [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if arrays are too short or of another type.
    pub fn sums_with_space<'a>(
        &'a mut self,
        stream: &Stream,
        operands: Operands<'a>,
        space: &'a mut Floats,
    ) -> Result<SumsWithSpace<'a>, CudaError> {
        let sums = self.sums(stream, operands, &mut *space)?;
        // SAFETY: sums lie in `space`, or in the working memory that is borrowed as long.
        let sums = unsafe { sums.borrowed(operands.bias) };
        Ok(SumsWithSpace { sums, space })
    }

    /// `out = f(gate) · up` with the activation `f` of a product whose first half of outputs are the gates. Returns
    /// `Some(sums)` instead if `out` has still to be computed from these sums.
    ///
    /// # Errors
    /// [`CudaError::Product`], [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if arrays are too short or of another type.
    pub fn gated<'a>(
        &'a mut self,
        stream: &Stream,
        operands: Operands<'a>,
        activation: Activation,
        space: &'a mut Floats,
        out: &mut Floats,
    ) -> Result<Option<Sums<'a>>, CudaError> {
        if self.few.serve(&operands) && self.slices(operands.product) == 1 {
            operands.expect();
            self.few.multiply_gated(stream, operands, activation, out)?;
            return Ok(None);
        }
        self.sums(stream, operands, space).map(Some)
    }

    /// `out = x · wᵀ` by cuBLASLt.
    fn multiply_many(
        &mut self,
        stream: &Stream,
        operands: Operands<'_>,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        let Operands {
            x,
            w,
            product,
            rows,
            ..
        } = operands;
        let rows = rows.most();
        let [w_at, x_at, out_at] = [w.address(), x.address(), out.address()];
        let asked = [w_at, x_at, out_at, rows as u64, product.outputs as u64];
        if !stream.tape().note(&asked, &[]) {
            return Ok(());
        }
        stream.context().bind()?;
        let (handle, workspace) = (self.handle, self.workspace.address());
        let plan = self.plan(product, bucket(rows))?;
        plan.set_rows(rows)?;
        let (one, zero) = (1f32, 0f32);
        // SAFETY: the plan's descriptors live, and the arrays have the sizes and types that the
        // descriptors say; scales are read before the call returns.
        let queued = unsafe {
            result::matmul(
                handle,
                plan.description(),
                std::ptr::from_ref(&one).cast(),
                std::ptr::from_ref(&zero).cast(),
                w.address() as *const c_void,
                plan.weights(),
                x.address() as *const c_void,
                plan.input(),
                out.address() as *const c_void,
                plan.output(),
                out.address() as *mut c_void,
                plan.output(),
                plan.algorithm(),
                workspace as *mut c_void,
                WORKSPACE,
                stream.raw().cast(),
            )
        };
        queued.map_err(failed("cublasLtMatmul"))
    }

    fn plan(&mut self, product: Product, bucket: usize) -> Result<&mut Plan, CudaError> {
        use std::collections::hash_map::Entry;
        match self.plans.entry((product, bucket)) {
            Entry::Occupied(plan) => Ok(plan.into_mut()),
            Entry::Vacant(place) => {
                let rows = bucket / 2 + 1..=bucket;
                Ok(place.insert(Plan::new(self.handle, product, rows, WORKSPACE)?))
            }
        }
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        if self.context.bind().is_err() {
            return;
        }
        self.plans.clear();
        // SAFETY: it was made once, and queued work does not need it any more; nobody is left
        // to be told of a failure.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// Number of rows that the algorithm for `rows` rows is chosen for.
pub(crate) fn bucket(rows: usize) -> usize {
    rows.next_power_of_two().max(SMALLEST_BUCKET)
}

/// For `map_err`: the error of a failed call of cuBLASLt.
fn failed(call: &'static str) -> impl Fn(CublasError) -> CudaError {
    move |source| CudaError::Product { call, source }
}
