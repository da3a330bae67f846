//! Backends to test, and data for them.

use lockstep_backend::{
    Batch, CheckpointDtype, Holds, HostBlock, HostFloats, HostMatrix, InputLimits, Memory as _,
    Passes as _, WeightFormat,
};
use lockstep_backend_cpu::{CpuBackend, CpuInputs, CpuMatrix, CpuOptions, CpuTensor, Isa};
use lockstep_collective::Single;
use lockstep_types::Dtype;

pub fn backend(isa: Isa, dtype: Dtype, threads: usize) -> CpuBackend {
    let options = CpuOptions {
        threads,
        dtype,
        pin: None,
        isa: Some(isa),
    };
    CpuBackend::new(options, Box::new(Single::new())).unwrap()
}

/// Every instruction set of this machine in both arithmetics.
pub fn variants() -> impl Iterator<Item = (Isa, Dtype)> {
    Isa::available().flat_map(|isa| [(isa, Dtype::Bfloat16), (isa, Dtype::Float32)])
}

/// Returns true if tiles can be compared with their emulation here; says why not otherwise.
#[expect(clippy::print_stderr, reason = "a test says what it leaves out")]
pub fn runs_amx() -> bool {
    let lacks = Isa::Amx.lacks();
    if let Some(reason) = &lacks {
        eprintln!("AMX is not compared with its emulation: {reason}");
    }
    lacks.is_none()
}

/// A small generator (Marsaglia's xorshift), so that data depends on a seed alone.
pub struct Values(u64);

impl Values {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 11) as usize % limit
    }

    /// `len` values in ±1.
    pub fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len)
            .map(|_| (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
            .collect()
    }
}

/// Packs f32 values `[rows, cols]` as floats.
pub fn matrix(backend: &mut CpuBackend, values: &[f32], cols: usize) -> CpuMatrix {
    matrix_in(backend, WeightFormat::Float, values, cols)
}

/// Packs f32 values `[rows, cols]` in `format`.
pub fn matrix_in(
    backend: &mut CpuBackend,
    format: WeightFormat,
    values: &[f32],
    cols: usize,
) -> CpuMatrix {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let block = HostBlock {
        bytes: &bytes,
        offset: 0,
        stride: cols * 4,
        rows: values.len() / cols,
    };
    let matrix = HostMatrix::Floats(HostFloats {
        cols,
        dtype: CheckpointDtype::F32,
        blocks: vec![block],
    });
    backend.load_matrix(&matrix, format).unwrap()
}

/// A batch staged for operations, over pages of `page_size` tokens.
pub fn staged(backend: &mut CpuBackend, batch: &Batch<'_>, page_size: usize) -> CpuInputs {
    let mut inputs = backend.inputs(&InputLimits::of(batch, page_size)).unwrap();
    backend.stage(batch, &mut inputs).unwrap();
    inputs
}

/// A staged batch of tokens that nothing attends to, each at the position of its number.
pub fn tokens(backend: &mut CpuBackend, tokens: &[u32]) -> CpuInputs {
    let batch = Batch {
        tokens,
        positions: tokens,
        cells: tokens,
        ..Batch::default()
    };
    staged(backend, &batch, 1)
}

/// Activations `[_, width]`.
pub fn tensor(backend: &mut CpuBackend, values: &[f32], width: usize) -> CpuTensor {
    let mut tensor = backend
        .tensor(values.len() / width, width, Holds::Operand)
        .unwrap();
    tensor.values_mut().copy_from_slice(values);
    tensor
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

pub fn rounded(x: f32, dtype: Dtype) -> f64 {
    f64::from(match dtype {
        Dtype::Float32 => x,
        Dtype::Bfloat16 => half::bf16::from_f32(x).to_f32(),
    })
}
