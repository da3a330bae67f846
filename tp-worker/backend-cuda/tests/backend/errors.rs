//! Requests that can't be served, and failures, are errors that say what to do.

use lockstep_backend::{
    AttentionShape, BackendError, Batch, ChainLimits, CheckpointDtype, ChoiceLimits, Exchange as _,
    Holds, HostBlock, HostFloats, HostMatrix, InputLimits, KvShape, Memory as _, Ops as _,
    Passes as _, WeightFormat,
};
use lockstep_backend_cuda::{Context, CudaBackend};
use lockstep_types::{Dtype, KvCacheDtype};

use crate::support::{ALONE, gpu, host_matrix, matrix, noise, read, sums};

#[test]
fn options_that_gpus_do_not_serve_are_refused_with_a_way_out() {
    let mut gpu = gpu(Dtype::Bfloat16);
    let bytes = matrix(&noise(1, 8), 4);
    let error = gpu.load_matrix(&host_matrix(&bytes, 4), WeightFormat::Int8);
    let error = error.err().unwrap().to_string();
    assert!(
        error.contains("--quantization") && error.contains("--device cpu"),
        "{error}"
    );
    let shape = KvShape {
        latent: None,
        group: 0,
        layers: 1,
        kv_heads: 1,
        head_dim: 16,
        pages: 1,
        page_size: 1,
        dtype: KvCacheDtype::Int8,
    };
    let error = gpu.kv_cache(&shape).err().unwrap();
    assert!(matches!(error, BackendError::Unsupported(_)));
    assert!(error.to_string().contains("--kv-cache-dtype"), "{error}");
}

/// Requests for more memory than there is. Earlier allocations stay usable.
#[test]
fn too_much_is_out_of_memory() {
    let mut gpu = gpu(Dtype::Bfloat16);
    let x = sums(&mut gpu, &noise(1, 8), 4);
    let (_, all) = Context::open(0).unwrap().memory().unwrap();
    for much in [all, 1 << 60] {
        let cache = KvShape {
            latent: None,
            group: 0,
            layers: 8,
            kv_heads: 8,
            head_dim: 64,
            pages: much,
            page_size: 16,
            dtype: KvCacheDtype::Bfloat16,
        };
        let limits = InputLimits {
            tokens: much,
            requests: much,
            groups: 1,
            pages: much,
            page_size: 1,
            mask_words: 2 * much,
            replays: 0,
            choices: ChoiceLimits::default(),
            chain: ChainLimits::default(),
        };
        let matrix = HostMatrix::Floats(HostFloats {
            cols: 1024,
            dtype: CheckpointDtype::F32,
            blocks: vec![HostBlock {
                bytes: &[],
                offset: 0,
                stride: 0,
                rows: much,
            }],
        });
        let errors = [
            gpu.kv_cache(&cache).err(),
            gpu.inputs(&limits).err(),
            gpu.tensor(much, 1 << 10, Holds::Sum).err(),
            gpu.load_matrix(&matrix, WeightFormat::Float).err(),
        ];
        for error in errors {
            let error = error.unwrap();
            let text = error.to_string();
            assert!(matches!(error, BackendError::OutOfMemory { .. }), "{text}");
            assert!(text.contains("--mem-fraction-static"), "{text}");
        }
    }
    assert_eq!(read(&mut gpu, &x).len(), 8);
}

/// A file that ends inside of a matrix ends the load. The next load has nothing of the bytes
/// that were on their way.
#[test]
fn a_load_that_ends_early_leaves_nothing_behind() {
    let mut gpu = gpu(Dtype::Float32);
    let values = noise(3, 40);
    let bytes = matrix(&values, 4);
    let mut cut = host_matrix(&bytes, 4);
    let HostMatrix::Floats(floats) = &mut cut else {
        panic!("it is made of floats");
    };
    floats.blocks[0].bytes = &bytes[..100];
    let error = gpu.load_matrix(&cut, WeightFormat::Float).err().unwrap();
    assert!(error.to_string().contains("copy or download"), "{error}");
    let x = sums(&mut gpu, &values, 4);
    assert_eq!(read(&mut gpu, &x), values);
}

/// Operations that return nothing leave their failure to the next operation that returns a
/// result.
#[test]
fn failures_are_told_by_the_next_result() {
    let mut gpu = gpu(Dtype::Bfloat16);
    let x = sums(&mut gpu, &noise(1, 8), 4);
    // No kernel has heads as wide as this.
    let shape = AttentionShape::dense(1, 1, 1000, 1.0);
    let weight = gpu.load_vector(&[1.0; 1000]).unwrap();
    let fail = |gpu: &mut CudaBackend| {
        let mut qkv = gpu.tensor(2, shape.qkv_width(), Holds::Sum).unwrap();
        gpu.head_norm(&mut qkv, &shape, 0..1, &weight, 1e-5);
    };
    let mut inputs = gpu.inputs(&InputLimits::of(&Batch::default(), 1)).unwrap();
    fail(&mut gpu);
    let staged = gpu.stage(&Batch::default(), &mut inputs);
    let mut space = Vec::new();
    fail(&mut gpu);
    let logits = gpu.tensor(1, 1, Holds::Logits).unwrap();
    let axis = lockstep_backend::Axis::Alone;
    let gathered = gpu.gather_to_host(axis, &logits, ALONE, &mut space).err();
    for error in [staged.err(), gathered] {
        let text = error.unwrap().to_string();
        assert!(text.contains("heads of 1000 columns"), "{text}");
    }
    gpu.stage(&Batch::default(), &mut inputs).unwrap();
    assert_eq!(read(&mut gpu, &x).len(), 8);
}
