//! Algorithm and descriptors of one kind of product.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;

use cudarc::cublaslt::result::CublasError;
use cudarc::cublaslt::{result, sys};

use super::{Product, failed};
use crate::error::CudaError;
use crate::tensors::Element;

/// `CUBLAS_OP_T` of `cublasOperation_t`.
const TRANSPOSED: i32 = 1;

/// Descriptors and algorithm for one kind of product and a range of rows.
///
/// Matrices of cuBLASLt are column-major: a row-major `[rows, outputs]` is its
/// `outputs × rows`. So the weights come first, transposed.
pub(super) struct Plan {
    description: Description,
    weights: Layout,
    input: Layout,
    output: Layout,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Plan {
    /// Chooses the algorithm for `rows`: the best one for the largest number of rows that also
    /// serves the smallest.
    pub(super) fn new(
        handle: sys::cublasLtHandle_t,
        product: Product,
        rows: RangeInclusive<usize>,
        workspace: usize,
    ) -> Result<Self, CudaError> {
        let (fewest, most) = rows.into_inner();
        let kind = match product.element {
            Element::F32 => sys::cudaDataType::CUDA_R_32F,
            Element::Bf16 => sys::cudaDataType::CUDA_R_16BF,
        };
        let description = Description::new()?;
        let weights = Layout::new(kind, product.inputs, product.outputs)?;
        let input = Layout::new(kind, product.inputs, most)?;
        let output = Layout::new(sys::cudaDataType::CUDA_R_32F, product.outputs, most)?;
        let preference = Preference::new(workspace)?;
        let mut plan = Self {
            description,
            weights,
            input,
            output,
            algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
        };
        let offered = plan.offered(handle, &preference)?;
        plan.set_rows(fewest)?;
        let serves = |algorithm: &sys::cublasLtMatmulAlgo_t| {
            let checked = plan.check(handle, algorithm);
            checked.is_ok_and(|needed| needed <= workspace)
        };
        let none = CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED);
        let chosen = offered.into_iter().find(serves).ok_or(none);
        plan.algorithm = chosen.map_err(failed("cublasLtMatmulAlgoCheck"))?;
        Ok(plan)
    }

    /// Algorithms for the rows set last, the best first.
    fn offered(
        &self,
        handle: sys::cublasLtHandle_t,
        preference: &Preference,
    ) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, CudaError> {
        const MOST: usize = 16;
        let mut results =
            [const { MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::uninit() }; MOST];
        let mut count = 0;
        // SAFETY: all of them live, and there is room for as many results.
        let asked = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                handle,
                self.description.raw,
                self.weights.raw,
                self.input.raw,
                self.output.raw,
                self.output.raw,
                preference.raw,
                MOST as i32,
                results.as_mut_ptr().cast(),
                &raw mut count,
            )
        };
        asked
            .result()
            .map_err(failed("cublasLtMatmulAlgoGetHeuristic"))?;
        let count = usize::try_from(count).unwrap_or_default();
        // SAFETY: `count` results were written.
        let results = results[..count]
            .iter()
            .map(|one| unsafe { one.assume_init_ref() });
        let good = results.filter(|one| one.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        Ok(good.map(|one| one.algo).collect())
    }

    /// Bytes of working memory that `algorithm` takes for the rows set last.
    ///
    /// # Errors
    /// The algorithm does not serve them.
    fn check(
        &self,
        handle: sys::cublasLtHandle_t,
        algorithm: &sys::cublasLtMatmulAlgo_t,
    ) -> Result<usize, CublasError> {
        let mut found = MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::uninit();
        // SAFETY: all of them live, and there is room for the result.
        let checked = unsafe {
            sys::cublasLtMatmulAlgoCheck(
                handle,
                self.description.raw,
                self.weights.raw,
                self.input.raw,
                self.output.raw,
                self.output.raw,
                algorithm,
                found.as_mut_ptr(),
            )
        };
        checked.result()?;
        // SAFETY: it was written.
        let found = unsafe { found.assume_init() };
        found.state.result()?;
        Ok(found.workspaceSize)
    }

    /// Sets the number of rows that are multiplied.
    pub(super) fn set_rows(&mut self, rows: usize) -> Result<(), CudaError> {
        self.input.set_columns(rows)?;
        self.output.set_columns(rows)
    }

    pub(super) fn description(&self) -> sys::cublasLtMatmulDesc_t {
        self.description.raw
    }
    pub(super) fn weights(&self) -> sys::cublasLtMatrixLayout_t {
        self.weights.raw
    }
    pub(super) fn input(&self) -> sys::cublasLtMatrixLayout_t {
        self.input.raw
    }
    pub(super) fn output(&self) -> sys::cublasLtMatrixLayout_t {
        self.output.raw
    }
    pub(super) fn algorithm(&self) -> *const sys::cublasLtMatmulAlgo_t {
        &raw const self.algorithm
    }
}

/// A product whose first matrix is transposed, with sums in f32.
struct Description {
    raw: sys::cublasLtMatmulDesc_t,
}

impl Description {
    fn new() -> Result<Self, CudaError> {
        let sums = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let raw = result::create_matmul_desc(sums, sys::cudaDataType::CUDA_R_32F);
        let description = Self {
            raw: raw.map_err(failed("cublasLtMatmulDescCreate"))?,
        };
        // SAFETY: the description lives, and the attribute is one `i32`.
        let set = unsafe {
            result::set_matmul_desc_attribute(
                description.raw,
                sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA,
                at(&TRANSPOSED),
                size_of::<i32>(),
            )
        };
        set.map_err(failed("cublasLtMatmulDescSetAttribute"))?;
        Ok(description)
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: it was made once.
        let _ = unsafe { result::destroy_matmul_desc(self.raw) };
    }
}

/// A column-major matrix without gaps.
struct Layout {
    raw: sys::cublasLtMatrixLayout_t,
}

impl Layout {
    fn new(kind: sys::cudaDataType, rows: usize, columns: usize) -> Result<Self, CudaError> {
        let raw = result::create_matrix_layout(kind, rows as u64, columns as u64, rows as i64);
        Ok(Self {
            raw: raw.map_err(failed("cublasLtMatrixLayoutCreate"))?,
        })
    }

    fn set_columns(&mut self, columns: usize) -> Result<(), CudaError> {
        let columns = columns as u64;
        // SAFETY: the layout lives, and the attribute is one `u64`.
        let set = unsafe {
            result::set_matrix_layout_attribute(
                self.raw,
                sys::cublasLtMatrixLayoutAttribute_t::CUBLASLT_MATRIX_LAYOUT_COLS,
                at(&columns),
                size_of::<u64>(),
            )
        };
        set.map_err(failed("cublasLtMatrixLayoutSetAttribute"))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: it was made once.
        let _ = unsafe { result::destroy_matrix_layout(self.raw) };
    }
}

/// Working memory that an algorithm may use.
struct Preference {
    raw: sys::cublasLtMatmulPreference_t,
}

impl Preference {
    fn new(workspace: usize) -> Result<Self, CudaError> {
        let raw = result::create_matmul_pref();
        let preference = Self {
            raw: raw.map_err(failed("cublasLtMatmulPreferenceCreate"))?,
        };
        // SAFETY: the preference lives, and the attribute is one `usize`.
        let set = unsafe {
            result::set_matmul_pref_attribute(
                preference.raw,
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                at(&workspace),
                size_of::<usize>(),
            )
        };
        set.map_err(failed("cublasLtMatmulPreferenceSetAttribute"))?;
        Ok(preference)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: it was made once.
        let _ = unsafe { result::destroy_matmul_pref(self.raw) };
    }
}

/// Address of an attribute's value.
fn at<T>(value: &T) -> *const c_void {
    std::ptr::from_ref(value).cast()
}
