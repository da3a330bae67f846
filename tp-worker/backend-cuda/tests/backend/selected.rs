//! Measurements of single kernels, and of instructions.

use lockstep_backend::{Holds, Memory as _, Ops as _};
use lockstep_types::{Activation, Dtype};

use crate::support::{gpu, read, sums};

/// Two operations are called, of which only the selected kernel runs and is counted.
#[test]
fn only_selected_kernels_run() {
    let mut gpu = gpu(Dtype::Float32);
    let x = sums(&mut gpu, &[1.0, 2.0, 3.0, 4.0], 4);
    let weight = gpu.load_vector(&[1.0; 4]).unwrap();
    let mut out = sums(&mut gpu, &[7.0; 4], 4);
    gpu.rms_norm(&x, &weight, 1e-5, &mut out);
    let expected = read(&mut gpu, &out);
    assert!(expected.iter().all(|value| *value < 7.0));

    let mut out = sums(&mut gpu, &[7.0; 4], 4);
    let mut gated = gpu.tensor(1, 2, Holds::Operand).unwrap();
    assert_eq!(gpu.select_kernels(&["silu_mul"]), 0);
    gpu.rms_norm(&x, &weight, 1e-5, &mut out);
    gpu.gate(&x, Activation::Silu, &mut gated);
    assert_eq!(gpu.select_kernels(&[]), 1, "one of two launches");
    assert_eq!(read(&mut gpu, &out), [7.0; 4], "the norm was left out");
    let silu = |x: f32| x / (1.0 + (-x).exp());
    let found = read(&mut gpu, &gated);
    for (found, (gate, up)) in found.iter().zip([(1.0, 3.0), (2.0, 4.0)]) {
        assert!((found - silu(gate) * up).abs() < 1e-5, "{found}");
    }
    gpu.rms_norm(&x, &weight, 1e-5, &mut out);
    assert_eq!(read(&mut gpu, &out), expected, "everything runs again");
}

/// A GPU without wgmma, and the fake one, say that they have nothing to compare.
#[test]
fn bits_are_compared_or_the_reason_is_told() {
    match gpu(Dtype::Bfloat16).compare_bits() {
        Ok(found) => {
            println!("{found:?}");
            assert!(!lockstep_fake_cuda::seed(1) && found.sums > 0);
        }
        Err(why) => {
            let why = why.to_string();
            assert!(why.contains("wgmma"), "{why}");
            // The architecture with that instruction, not the GPU's plain one.
            assert!(why.contains("sm_90a"), "{why}");
        }
    }
}
