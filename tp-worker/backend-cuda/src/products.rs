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
use crate::gpu::Gpu;
use crate::memory::Buffer;
use crate::stream::Stream;
use crate::version::Version;
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
    context: Arc<Context>,
    handle: sys::cublasLtHandle_t,
    workspace: Buffer<u8>,
    plans: HashMap<(Product, usize), Plan>,
    /// Rows that all of them are prepared for.
    most_rows: usize,
}

// SAFETY: the handle may be used by any thread; it and the plans have one owner.
unsafe impl Send for Products {}

impl Products {
    /// Looks for the library, and takes nothing of the GPU.
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

    /// Opens the library.
    ///
    /// # Errors
    /// Those of [`Self::find`]; [`CudaError::OutOfMemory`], [`CudaError::Product`].
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        Self::find(context.gpu())?;
        context.bind()?;
        let workspace = Buffer::new(context, WORKSPACE, "working memory of products")?;
        Ok(Self {
            handle: result::create_handle().map_err(failed("cublasLtCreate"))?,
            context: context.clone(),
            workspace,
            plans: HashMap::new(),
            most_rows: 0,
        })
    }

    /// Chooses the algorithms of all products that were prepared, and of those
    /// that will be, for up to `rows` rows.
    ///
    /// # Errors
    /// Those of [`Self::prepare`].
    pub fn prepare_all(&mut self, rows: usize) -> Result<(), CudaError> {
        self.most_rows = self.most_rows.max(rows);
        let smallest =
            |(product, bucket): &(Product, usize)| (*bucket == SMALLEST_BUCKET).then_some(*product);
        let all: Vec<Product> = self.plans.keys().filter_map(smallest).collect();
        all.into_iter()
            .try_for_each(|product| self.prepare(product, rows))
    }

    /// Chooses the algorithms for up to `rows` rows, and for as many as all are
    /// [prepared](Self::prepare_all) for, so that [`Self::run`] has no choice to
    /// make, which it couldn't while a graph is recorded.
    ///
    /// # Errors
    /// [`CudaError::Product`], also where there is no algorithm.
    pub fn prepare(&mut self, product: Product, rows: usize) -> Result<(), CudaError> {
        self.context.bind()?;
        let rows = rows.max(self.most_rows);
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
                let rows = match bucket {
                    SMALLEST_BUCKET => 1..=bucket,
                    _ => bucket / 2 + 1..=bucket,
                };
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
