//! Every kernel under the compiler's sanitizers: races of shared memory, reads
//! and writes outside of arrays, what C++ leaves undefined.

use std::os::unix::process::CommandExt;
use std::process::Command;

use lockstep_backend::{AttentionShape, KvShape};
use lockstep_backend_cuda::{
    Attention, CudaError, Element, HeadNorms, Indices, Operations, PagedCache, Rope, Rows,
};
use lockstep_types::KvCacheDtype;

use crate::requests::{Request, Run, attend};
use crate::support::{Gpu, Noise, tokens};

/// Where the compiler keeps a sanitizer's library; nowhere, where it has none.
fn library(name: &str) -> Option<String> {
    let mut compiler = Command::new(std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned()));
    let output = compiler.arg(format!("-print-file-name={name}")).output();
    let path = String::from_utf8(output.expect("a C++ compiler").stdout).expect("a path");
    let path = path.trim();
    path.contains('/').then(|| path.to_owned())
}

/// Runs every kernel in a process where `sanitizer` watches them, if the compiler
/// has its library.
fn watched(sanitizer: &str, library_name: &str) {
    if !lockstep_fake_cuda::seed(1) {
        return; // A real device has tools of its own.
    }
    let Some(library) = library(library_name) else {
        return;
    };
    let program = std::env::current_exe().expect("this test's file");
    let mut child = Command::new(program);
    child.args(["--exact", "sanitizers::every_kernel", "--ignored"]);
    child.env("FAKE_CUDA_SANITIZE", sanitizer);
    child.env("LD_PRELOAD", library);
    child.env(
        "TSAN_OPTIONS",
        "ignore_noninstrumented_modules=1 halt_on_error=1",
    );
    child.env("ASAN_OPTIONS", "detect_leaks=0");
    let fixed_addresses = || {
        // SAFETY: the call changes a flag of the child alone: the thread
        // sanitizer needs addresses where it expects them.
        unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) };
        Ok(())
    };
    // SAFETY: between fork and exec it makes that one call, and takes no lock.
    unsafe { child.pre_exec(fixed_addresses) };
    let output = child.output().expect("a process");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

#[test]
fn shared_memory_has_no_races() {
    watched("thread", "libtsan.so");
}

#[test]
fn nothing_is_touched_outside_of_arrays() {
    watched("address", "libasan.so");
}

#[test]
fn nothing_is_undefined() {
    watched("undefined", "libubsan.so");
}

/// Little of everything: others look at the results.
#[test]
#[ignore = "a process of its own, which other tests start"]
fn every_kernel() {
    let gpu = Gpu::new();
    rows(&gpu);
    let run = Run {
        shape: AttentionShape {
            heads: 2,
            kv_heads: 1,
            head_dim: 24,
            scale: 0.2,
        },
        cached: Element::Bf16,
        operand: Element::Bf16,
        page_size: 4,
        parts: 50,
    };
    let made = Attention::new(
        &gpu.context,
        &gpu.compiler,
        &run.shape,
        run.cached,
        run.operand,
    );
    let attention = made.expect("kernels");
    let requests = [
        Request::causal(1, 0, 20),
        Request::causal(2, 257, 2),
        Request::tree(3, 253, 5, &mut Noise(1)),
    ];
    let found = attend(&gpu, &attention, &run, &requests);
    assert!(found.concat().iter().all(|value| value.is_finite()));
    cells(&gpu, &attention, &run.shape);
}

fn rows(gpu: &Gpu) {
    let operand = Element::Bf16;
    let operations = Operations::new(&gpu.context, &gpu.compiler, operand).expect("kernels");
    let (stream, width, count) = (&gpu.stream, 35, 5);
    let all = Rows::fixed(count);
    let inputs = gpu.inputs(&tokens(&[3, 0, 9, 2, 1]), 1);
    let table = gpu.floats(operand, &Noise(1).floats(4 * width));
    let weight = gpu.buffer(&Noise(2).floats(width));
    let list = gpu.buffer(&[9u32, 4, 0, 2, 1, 3]);
    let listed = Indices::List(&list, 1);
    let sums = || gpu.poisoned(Element::F32, count * width);
    let (mut x, mut y, mut wide) = (
        sums(),
        sums(),
        gpu.poisoned(Element::F32, 2 * count * width),
    );
    let mut out = gpu.poisoned(operand, count * width);
    let mut run = || -> Result<(), CudaError> {
        operations.embed(stream, &table, width, 0, &inputs, &mut x)?;
        operations.cast(stream, &x, width, all, &mut out)?;
        operations.cast(stream, &out, width, all, &mut y)?;
        operations.add(stream, &mut x, &y, width, all)?;
        operations.add_bias(stream, &mut x, &weight, all)?;
        operations.add_rms_norm(stream, &mut x, &y, &weight, 1e-5, all, &mut out)?;
        operations.place_columns(stream, &x, width, all, &mut wide, 2 * width, 0)?;
        operations.copy_rows(stream, &x, listed, width, all, &mut y, listed)?;
        operations.place_columns(stream, &y, width, all, &mut wide, 2 * width, width)?;
        operations.silu_mul(stream, &wide, width, all, &mut out)
    };
    run().expect("launches");
    assert!(gpu.read(&out).iter().all(|value| value.is_finite()));
}

fn cells(gpu: &Gpu, attention: &Attention, shape: &AttentionShape) {
    let (stream, positions) = (&gpu.stream, [2, 0, 1]);
    let inputs = gpu.inputs(&tokens(&positions), 1);
    let kv = KvShape {
        layers: 2,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        pages: 3,
        page_size: 1,
        dtype: KvCacheDtype::Bfloat16,
    };
    let mut cache = PagedCache::new(&gpu.context, &kv).expect("room");
    let mut qkv = gpu.floats(Element::F32, &Noise(3).floats(3 * shape.qkv_width()));
    let angles = Noise(4).floats(3 * shape.head_dim / 2);
    let rope = Rope {
        half: shape.head_dim / 2,
        cos: gpu.buffer(&angles),
        sin: gpu.buffer(&angles),
    };
    let weight = gpu.buffer(&Noise(5).floats(shape.head_dim));
    let norms = HeadNorms {
        queries: Some(&weight),
        keys: Some(&weight),
        eps: 1e-6,
    };
    let moves = gpu.buffer(&[0u32, 2, 2, 1]);
    attention
        .rotate_and_store(stream, &mut qkv, norms, &rope, &inputs, &mut cache, 1)
        .and_then(|()| attention.copy_cells(stream, &mut cache, &moves, Rows::fixed(2)))
        .expect("launches");
    stream.synchronize().expect("all is done");
}
