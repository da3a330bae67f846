//! cuBLASLt's products, compared with sums in f64.

use std::ffi::c_void;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use half::bf16;
use proptest::prelude::{ProptestConfig, any, prop_assert, prop_oneof, proptest};

use crate::device::{Answer, Buffer, Stream, begin};

const F32: sys::cudaDataType = sys::cudaDataType::CUDA_R_32F;
const BF16: sys::cudaDataType = sys::cudaDataType::CUDA_R_16BF;
const WORKSPACE: usize = 4 << 20;

fn code<T>(answer: Result<T, CublasError>) -> Answer<T> {
    answer.map_err(|error| error.0 as i32)
}

/// y = x · wᵀ (+ bias): rows and columns of y, and terms of a sum.
#[derive(Clone, Copy, Debug)]
struct Shape {
    rows: usize,
    columns: usize,
    depth: usize,
}

/// The library's objects for one product: y's columns are the library's rows.
struct Described {
    handle: sys::cublasLtHandle_t,
    product: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    preference: sys::cublasLtMatmulPreference_t,
}

impl Described {
    fn new(
        shape: Shape,
        kind: sys::cudaDataType,
        bias: Option<(&Buffer, sys::cudaDataType)>,
    ) -> Self {
        let Shape {
            rows,
            columns,
            depth,
        } = shape;
        let layout = |kind, rows: usize, columns: usize| {
            let made = result::create_matrix_layout(kind, rows as u64, columns as u64, rows as i64);
            made.expect("a layout")
        };
        let layouts = [
            layout(kind, depth, columns),
            layout(kind, depth, rows),
            layout(F32, columns, rows),
        ];
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let made = Self {
            handle: result::create_handle().expect("a handle"),
            product: result::create_matmul_desc(compute, F32).expect("a descriptor"),
            layouts,
            preference: result::create_matmul_pref().expect("a preference"),
        };
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        made.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &1i32);
        if let Some((bias, kind)) = bias {
            let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
            made.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue);
            made.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias.address);
            made.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &kind);
        }
        let most =
            sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let bytes = (&raw const WORKSPACE_BYTES).cast::<c_void>();
        // SAFETY: the preference exists, and the value has that many bytes.
        let set = unsafe { result::set_matmul_pref_attribute(made.preference, most, bytes, 8) };
        set.expect("set");
        made
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) {
        let at = std::ptr::from_ref(value).cast::<c_void>();
        // SAFETY: the descriptor exists, and the value has that many bytes.
        let set = unsafe {
            result::set_matmul_desc_attribute(self.product, attribute, at, size_of::<T>())
        };
        set.expect("set");
    }

    fn algorithms(&self) -> Answer<Vec<sys::cublasLtMatmulAlgo_t>> {
        let [a, b, y] = self.layouts;
        let (handle, product, preference) = (self.handle, self.product, self.preference);
        let mut count = 0;
        // SAFETY: everything exists, and there is room for as many results as are asked for;
        // zeros are valid bits of a result.
        let found = unsafe {
            let mut found: [sys::cublasLtMatmulHeuristicResult_t; 8] = std::mem::zeroed();
            let first = found.as_mut_ptr();
            let asked = sys::cublasLtMatmulAlgoGetHeuristic(
                handle,
                product,
                a,
                b,
                y,
                y,
                preference,
                8,
                first,
                &raw mut count,
            );
            code(asked.result())?;
            found
        };
        let found = found.iter().take(count as usize);
        Ok(found.map(|found| found.algo).collect())
    }

    fn run(
        &self,
        operands: [&Buffer; 3],
        algorithm: Option<&sys::cublasLtMatmulAlgo_t>,
        stream: &Stream,
    ) -> Answer {
        let workspace = Buffer::new(WORKSPACE);
        self.run_in(workspace.address, operands, algorithm, stream)
    }

    fn run_in(
        &self,
        workspace: u64,
        [x, w, y]: [&Buffer; 3],
        algorithm: Option<&sys::cublasLtMatmulAlgo_t>,
        stream: &Stream,
    ) -> Answer {
        let (one, zero) = (1.0f32, 0.0f32);
        let scale = |value: &f32| std::ptr::from_ref(value).cast::<c_void>();
        let [a, b, d] = self.layouts;
        let at = |buffer: &Buffer| buffer.address as *mut c_void;
        // SAFETY: everything exists; the fake refuses memory that is too small.
        let asked = unsafe {
            result::matmul(
                self.handle,
                self.product,
                scale(&one),
                scale(&zero),
                at(w),
                a,
                at(x),
                b,
                at(y),
                d,
                at(y),
                d,
                algorithm.map_or(std::ptr::null(), std::ptr::from_ref),
                workspace as *mut c_void,
                WORKSPACE,
                stream.0.cast(),
            )
        };
        code(asked)?;
        stream.synchronize()
    }
}

static WORKSPACE_BYTES: u64 = WORKSPACE as u64;

impl Drop for Described {
    fn drop(&mut self) {
        // SAFETY: each was made once.
        unsafe {
            for layout in self.layouts {
                let _ = result::destroy_matrix_layout(layout);
            }
            let _ = result::destroy_matmul_desc(self.product);
            let _ = result::destroy_matmul_pref(self.preference);
            let _ = result::destroy_handle(self.handle);
        }
    }
}

/// Numbers between -1 and 1.
fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| draw()).collect()
}

/// The values on the device, and the same values after rounding.
fn place(values: &[f32], rounded: bool) -> (Buffer, Vec<f32>) {
    if rounded {
        let values: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
        let bits: Vec<u16> = values.iter().map(|value| value.to_bits()).collect();
        (
            Buffer::of(&bits),
            values.iter().map(|value| value.to_f32()).collect(),
        )
    } else {
        (Buffer::of(values), values.to_vec())
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn products_are_close_to_exact_ones(
        rows in prop_oneof![1usize..40, 97usize..103],
        columns in 1usize..40,
        depth in 1usize..70,
        rounded in any::<bool>(),
        biased in any::<bool>(),
        seed in any::<u64>(),
    ) {
        begin();
        let stream = Stream::new();
        let (x, exact_x) = place(&noise(rows * depth, seed), rounded);
        let (w, exact_w) = place(&noise(columns * depth, !seed), rounded);
        let (bias, exact_bias) = place(&noise(columns, seed ^ 1), rounded);
        let kind = if rounded { BF16 } else { F32 };
        let shape = Shape { rows, columns, depth };
        let described = Described::new(shape, kind, biased.then_some((&bias, kind)));
        let y = Buffer::new(4 * rows * columns);
        let algorithms = described.algorithms().expect("there are some");
        let all = rows >= 100 || columns.is_multiple_of(2);
        prop_assert!(algorithms.len() == 1 + usize::from(all));
        for algorithm in algorithms.iter().map(Some).chain([None]) {
            described.run([&x, &w, &y], algorithm, &stream).expect("it runs");
            let found = y.read::<f32>(rows * columns, &stream);
            for (at, found) in found.iter().enumerate() {
                let (row, column) = (at / columns, at % columns);
                let term = |k: usize| {
                    f64::from(exact_x[row * depth + k]) * f64::from(exact_w[column * depth + k])
                };
                let bias = if biased { f64::from(exact_bias[column]) } else { 0.0 };
                let exact = (0..depth).map(term).sum::<f64>() + bias;
                let error = (f64::from(*found) - exact).abs();
                prop_assert!(error < 1e-4, "row {row}, column {column}: {found}, not {exact}");
            }
        }
    }
}

#[test]
fn another_number_of_rows_may_have_another_best_algorithm_and_other_bits() {
    begin();
    let (columns, depth) = (8, 333);
    let (x, _) = place(&noise(110 * depth, 1), true);
    let (w, _) = place(&noise(columns * depth, 2), true);
    let stream = Stream::new();
    let first_row = |rows: usize, algorithm: Option<usize>| {
        let described = Described::new(
            Shape {
                rows,
                columns,
                depth,
            },
            BF16,
            None,
        );
        let algorithms = described.algorithms().expect("there are some");
        let y = Buffer::new(4 * rows * columns);
        let algorithm = algorithm.map(|number| &algorithms[number]);
        described
            .run([&x, &w, &y], algorithm, &stream)
            .expect("it runs");
        y.read::<f32>(columns, &stream)
    };
    assert_eq!(
        first_row(1, None),
        first_row(1, Some(0)),
        "the best one by default"
    );
    assert_ne!(first_row(1, None), first_row(110, None));
    assert_eq!(
        first_row(1, Some(0)),
        first_row(110, Some(1)),
        "the same algorithm"
    );
}

#[test]
fn what_the_library_refuses() {
    begin();
    let stream = Stream::new();
    let shape = Shape {
        rows: 4,
        columns: 8,
        depth: 16,
    };
    let described = Described::new(shape, F32, None);
    let algorithm = described.algorithms().expect("there are some")[0];
    let (x, w, y) = (Buffer::new(256), Buffer::new(512), Buffer::new(128));
    described
        .run([&x, &w, &y], Some(&algorithm), &stream)
        .expect("it fits");
    let other = sys::cublasLtMatmulAlgo_t { data: [5; 8] };
    assert_eq!(described.run([&x, &w, &y], Some(&other), &stream), Err(7));
    let operands = [&x, &w, &y];
    let workspace = Buffer::new(WORKSPACE);
    for bad in [256, workspace.address + 8, workspace.address + 256] {
        let refused = described.run_in(bad, operands, Some(&algorithm), &stream);
        assert_eq!(refused, Err(7), "no workspace");
    }
    let odd = Shape {
        columns: 7,
        ..shape
    };
    let many = Shape { rows: 110, ..odd };
    let of_many = Described::new(many, F32, None).algorithms();
    let of_many = of_many.expect("there are some")[0];
    let few = Described::new(odd, F32, None);
    assert_eq!(
        few.run(operands, Some(&of_many), &stream),
        Err(15),
        "of many"
    );
    // The heuristic does not answer inside of a capture.
    stream.begin_capture().expect("begun");
    assert_eq!(described.algorithms().map(|_| ()), Err(14));
    stream.end_capture().expect("nothing was spoiled");
    let made = result::create_matrix_layout(F32, 8, 8, 7);
    assert_eq!(code(made).map(|_| ()), Err(7), "columns that overlap");
    let made = result::create_matrix_layout(sys::cudaDataType::CUDA_R_8I, 8, 8, 8);
    assert_eq!(
        code(made).map(|_| ()),
        Err(15),
        "a type that it does not know"
    );
}
