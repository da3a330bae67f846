//! Faults of the host and of kernels, each in a process that it may break.

use std::process::Command;

use lockstep_backend::{
    Axis, Batch, Exchange as _, Holds, InputLimits, Memory as _, Ops as _, Passes as _,
};
use lockstep_types::Dtype;

use crate::support::{ALONE, gpu, noise, read, sums};

/// Runs a test of this program with `name` set to `value`. Returns true if it passes, and its
/// output.
fn run(test: &str, name: &str, value: &str) -> (bool, String) {
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new(program);
    child.args(["--exact", test, "--include-ignored", "--nocapture"]);
    let output = child.env(name, value).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// Weights and lists go through pinned memory that is filled again and again.
#[test]
fn a_source_that_changes_before_its_copy_is_found() {
    if !lockstep_fake_cuda::seed(1) {
        return; // A real driver forgets no wait.
    }
    for test in [
        "weights::matrices_arrive_whole_and_rounded",
        "rows::lists_are_those_that_were_given",
    ] {
        let (passed, text) = run(test, "FAKE_CUDA_FORGET", "cuEventSynchronize");
        assert!(!passed && text.contains("assertion"), "{test}: {text}");
    }
}

/// A failed kernel is reported by the call that waits, and by all calls after it.
#[test]
fn a_kernel_that_fails_ends_everything() {
    if !lockstep_fake_cuda::seed(1) {
        return; // A real kernel fails when nobody wants it.
    }
    let (passed, text) = run("faults::fails", "FAKE_CUDA_FAULT", "rms_norm");
    assert!(passed && text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "a process of its own, which another test starts"]
fn fails() {
    let mut gpu = gpu(Dtype::Float32);
    let x = sums(&mut gpu, &noise(1, 8), 4);
    let weight = gpu.load_vector(&[1.0; 4]).unwrap();
    let mut out = gpu.tensor(2, 4, Holds::Operand).unwrap();
    let mut inputs = gpu.inputs(&InputLimits::of(&Batch::default(), 1)).unwrap();
    assert_eq!(read(&mut gpu, &x), noise(1, 8));
    // Queueing reports nothing yet.
    let queued = gpu.pass(
        &mut Default::default(),
        Batch::default().key(),
        &mut |gpu| {
            gpu.rms_norm(&x, &weight, 1e-5, &mut out);
            Ok(())
        },
    );
    queued.unwrap();
    let logits = gpu.tensor(1, 1, Holds::Logits).unwrap();
    let mut space = Vec::new();
    let waited = gpu.gather_to_host(Axis::Alone, &logits, ALONE, &mut space);
    let errors = [
        waited.err(),
        gpu.stage(&Batch::default(), &mut inputs).err(),
        gpu.load_vector(&[1.0]).err(),
        gpu.tensor(1, 1, Holds::Sum).err(),
    ];
    for (number, error) in errors.into_iter().enumerate() {
        let text = error.unwrap().to_string();
        assert!(
            text.contains("a planted fault") && text.contains("Xid"),
            "{number}: {text}"
        );
    }
}
