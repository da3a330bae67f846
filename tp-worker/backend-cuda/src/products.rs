//! Matrix products, by cuBLASLt.

mod plan;

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

use cudarc::cublaslt::result::CublasError;
use cudarc::cublaslt::{result, sys};

use crate::context::Context;
use crate::error::CudaError;
use crate::floats::{Element, Floats};
use crate::memory::Buffer;
use crate::stream::Stream;
use plan::Plan;

/// Working memory of algorithms, as NVIDIA recommends for its newer GPUs.
pub(crate) const WORKSPACE: usize = 32 << 20;
/// Products of up to so many rows share an algorithm.
const SMALLEST_BUCKET: usize = 64;

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

/// Products and the algorithms that were chosen for them.
///
/// An algorithm is chosen for rows up to a power of two, 64 at least, and may
/// have other bits than that of another one: a row's result depends on its
/// operands and on which of these numbers the rows keep within, on nothing else.
pub struct Products {
    handle: sys::cublasLtHandle_t,
    workspace: Buffer<u8>,
    plans: HashMap<(Product, usize), Plan>,
}

// SAFETY: the handle may be used by any thread; it and the plans have one owner.
unsafe impl Send for Products {}

impl Products {
    /// Finds the library.
    ///
    /// # Errors
    /// [`CudaError::Missing`], [`CudaError::OutOfMemory`], [`CudaError::Product`].
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        // SAFETY: looks for a library and does nothing with it.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::Missing {
                library: "libcublasLt.so",
                remedy: "install CUDA's matrix products (nvidia-cublas) and name its folder in LD_LIBRARY_PATH",
            });
        }
        context.bind()?;
        let workspace = Buffer::new(context, WORKSPACE, "working memory of products")?;
        Ok(Self {
            handle: result::create_handle().map_err(failed("cublasLtCreate"))?,
            workspace,
            plans: HashMap::new(),
        })
    }

    /// Chooses the algorithms for up to `rows` rows, so that [`Self::run`] has
    /// no choice to make, which it couldn't while a graph is recorded.
    ///
    /// # Errors
    /// [`CudaError::Product`], also where there is no algorithm.
    pub fn prepare(&mut self, product: Product, rows: usize) -> Result<(), CudaError> {
        let mut rows_of_bucket = SMALLEST_BUCKET;
        loop {
            self.plan(product, rows_of_bucket)?;
            if rows_of_bucket >= bucket(rows) {
                return Ok(());
            }
            rows_of_bucket *= 2;
        }
    }

    /// `out = x · wᵀ` for the first `rows` rows of `x`; rows are not counted on
    /// the device.
    ///
    /// # Errors
    /// [`CudaError::Product`].
    ///
    /// # Panics
    /// If arrays are too short or of another type.
    pub fn run(
        &mut self,
        stream: &Stream,
        x: &Floats,
        w: &Floats,
        product: Product,
        rows: usize,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        let Product {
            outputs,
            inputs,
            element,
        } = product;
        x.expect(element, rows * inputs, "the product's input");
        w.expect(element, outputs * inputs, "the product's weights");
        out.expect(Element::F32, rows * outputs, "the product's output");
        if rows == 0 {
            return Ok(());
        }
        stream.context().bind()?;
        let (handle, workspace) = (self.handle, self.workspace.address());
        let plan = self.plan(product, bucket(rows))?;
        plan.set_rows(rows)?;
        let (one, zero) = (1f32, 0f32);
        // SAFETY: the plan's descriptors live, and the arrays have the sizes and
        // types that these say; scales are read before the call returns.
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
                Ok(place.insert(Plan::new(self.handle, product, bucket, WORKSPACE)?))
            }
        }
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        self.plans.clear();
        // SAFETY: it was made once, and what was queued needs it no more; nobody
        // is left to be told of a failure.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// The rows that an algorithm for `rows` rows is chosen for.
fn bucket(rows: usize) -> usize {
    rows.next_power_of_two().max(SMALLEST_BUCKET)
}

/// For `map_err`: a call of cuBLASLt that failed.
fn failed(call: &'static str) -> impl Fn(CublasError) -> CudaError {
    move |source| CudaError::Product { call, source }
}
