//! cudarc's safe layer finds all functions that it calls.

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

use crate::device::compile;

#[test]
fn the_safe_layer_works_with_its_events() {
    let context = CudaContext::new(0).expect("a device");
    assert_eq!(context.name().expect("told"), "Fake CUDA device");
    assert_eq!(context.compute_capability().expect("told"), (9, 0));
    let source = include_str!("kernels/small.cu");
    let image = compile(source, &["--gpu-architecture=sm_90"]).expect("compiled");
    let module = context
        .load_module(Ptx::from_binary(image))
        .expect("loaded");
    let scale = module.load_function("scale").expect("it exists");
    let (first, second) = (
        context.new_stream().expect("a stream"),
        context.new_stream().expect("another"),
    );
    let x = first.clone_htod(&[1.0f32, 2.0, 3.0]).expect("copied");
    // The layer's events order the two streams.
    let mut y = second.alloc_zeros::<f32>(3).expect("there is memory");
    let (by, n) = (2.0f32, 3u32);
    let shape = LaunchConfig {
        grid_dim: (1, 1, 1),
        block_dim: (32, 1, 1),
        shared_mem_bytes: 0,
    };
    let mut launch = second.launch_builder(&scale);
    launch.arg(&x).arg(&mut y).arg(&by).arg(&n);
    // SAFETY: the parameters are the kernel's.
    unsafe { launch.launch(shape) }.expect("launched");
    assert_eq!(first.clone_dtoh(&y).expect("copied"), [2.0, 4.0, 6.0]);
}
