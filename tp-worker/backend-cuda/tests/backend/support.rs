//! A device, and copies of its rows on the host.

use std::sync::{Mutex, MutexGuard, PoisonError};

use lockstep_backend::{
    Axis, Batch, Exchange as _, Holds, InputLimits, Memory as _, Ops as _, Owners, Passes as _,
};
use lockstep_backend_cuda::{
    CollectiveOptions, CudaBackend, CudaError, CudaOptions, CudaTensor, Inputs,
};
use lockstep_collective::Single;
use lockstep_types::Dtype;

pub const DTYPES: [Dtype; 2] = [Dtype::Float32, Dtype::Bfloat16];

pub fn options(dtype: Dtype) -> CudaOptions {
    CudaOptions {
        ordinal: 0,
        dtype,
        kernels: None,
        graphs: Vec::new(),
        collectives: CollectiveOptions::default(),
    }
}

pub fn open(options: &CudaOptions) -> Result<CudaBackend, CudaError> {
    CudaBackend::new(options, Box::new(Single::new()))
}

pub fn gpu(dtype: Dtype) -> CudaBackend {
    open(&options(dtype)).unwrap()
}

/// The batch on the device, in room for it and no more.
pub fn staged(gpu: &mut CudaBackend, batch: &Batch<'_>, page_size: usize) -> Inputs {
    let mut inputs = gpu.inputs(&InputLimits::of(batch, page_size)).unwrap();
    gpu.stage(batch, &mut inputs).unwrap();
    inputs
}

/// Sums `[values / width, width]`.
pub fn sums(gpu: &mut CudaBackend, values: &[f32], width: usize) -> CudaTensor {
    let table = matrix(values, width);
    let host = host_matrix(&table, width);
    // A lookup brings the values to a tensor.
    let table = gpu.load_matrix(&host, lockstep_backend::WeightFormat::Float);
    let ids: Vec<u32> = (0..(values.len() / width) as u32).collect();
    let batch = Batch {
        tokens: &ids,
        positions: &ids,
        cells: &ids,
        ..Batch::default()
    };
    let inputs = staged(gpu, &batch, 1);
    let mut out = gpu.tensor(ids.len(), width, Holds::Sum).unwrap();
    gpu.embed(&table.unwrap(), 0, 1.0, &inputs, &mut out);
    out
}

/// Owner of one value: the only rank.
pub const ALONE: Owners<'_> = Owners {
    widths: &[1],
    rows: &[0..1; 1],
};

/// All values of a tensor, as 32-bit floats.
pub fn read(gpu: &mut CudaBackend, x: &CudaTensor) -> Vec<f32> {
    let mut logits = gpu.tensor(x.rows(), x.width(), Holds::Logits).unwrap();
    gpu.place_columns(x, &mut logits, 0);
    let mut space = Vec::new();
    let owners = Owners {
        widths: &[x.width()],
        rows: &[0..x.rows(); 1],
    };
    gpu.gather_to_host(Axis::Alone, &logits, owners, &mut space)
        .unwrap()
        .to_vec()
}

/// The bytes of a matrix of floats.
pub fn matrix(values: &[f32], width: usize) -> Vec<u8> {
    assert!(values.len().is_multiple_of(width));
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// A matrix of floats with `width` columns, from its bytes.
pub fn host_matrix(bytes: &[u8], width: usize) -> lockstep_backend::HostMatrix<'_> {
    lockstep_backend::HostMatrix::Floats(lockstep_backend::HostFloats {
        cols: width,
        dtype: lockstep_backend::CheckpointDtype::F32,
        blocks: vec![lockstep_backend::HostBlock {
            bytes,
            offset: 0,
            stride: 4 * width,
            rows: bytes.len() / (4 * width),
        }],
    })
}

/// Numbers in -2..2 that look random (splitmix64).
pub fn noise(seed: u64, len: usize) -> Vec<f32> {
    let number = |i: usize| {
        let mut x = (seed << 32)
            .wrapping_add(i as u64 + 1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 40) as f32 / (1 << 22) as f32 - 2.0
    };
    (0..len).map(number).collect()
}

/// Lock of the GPUs behind the first one. Tests of several ranks use them, and so does a test
/// that counts the memory of one.
pub fn other_gpus() -> MutexGuard<'static, ()> {
    static GPUS: Mutex<()> = Mutex::new(());
    // A failed test leaves the GPUs as usable as any other test does.
    GPUS.lock().unwrap_or_else(PoisonError::into_inner)
}
