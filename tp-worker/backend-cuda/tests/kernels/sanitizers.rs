//! Every kernel under the compiler's sanitizers: races of shared memory, accesses outside of
//! arrays, undefined behaviour of C++.

use std::os::unix::process::CommandExt;
use std::process::Command;

use lockstep_backend::{
    AttentionShape, BlockEnd, CountedKeys, KvShape, LogitScaling, Norm, RmsNorm, WholeNorms,
};
use lockstep_backend_cuda::{
    Attention, BlockOps, CudaError, Element, HeadNorms, Indices, Operands, PagedCache, Product,
    Products, Rope, Rows, RowwiseOps,
};
use lockstep_types::{Activation, KvCacheDtype};

use crate::requests::{Request, Run, attend};
use crate::support::{ELEMENTS, Gpu, Noise, tokens};
use crate::{accepting, chains, experts, recurrent, sampling};

/// Path of a sanitizer's library; `None` if the compiler has none.
fn library(name: &str) -> Option<String> {
    let mut compiler = Command::new(std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned()));
    let output = compiler.arg(format!("-print-file-name={name}")).output();
    let path = String::from_utf8(output.expect("a C++ compiler").stdout).expect("a path");
    let path = path.trim();
    path.contains('/').then(|| path.to_owned())
}

/// Runs kernels in processes under `sanitizers`, if the compiler has their libraries.
fn watched(sanitizers: &str, libraries: &[&str]) {
    // Apart, since the thread sanitizer gets slower with every thread that has run, and takes
    // 8,128 of them.
    for kernels in ["every_kernel", "latents", "recurrences"] {
        watched_alone(&format!("sanitizers::{kernels}"), sanitizers, libraries);
    }
}

fn watched_alone(kernels: &str, sanitizers: &str, libraries: &[&str]) {
    if !lockstep_fake_cuda::seed(1) {
        return; // A real device has tools of its own.
    }
    let libraries: Option<Vec<String>> = libraries.iter().map(|name| library(name)).collect();
    let Some(libraries) = libraries else {
        return;
    };
    let program = std::env::current_exe().expect("this test's file");
    let mut child = Command::new(program);
    child.args(["--exact", kernels, "--ignored"]);
    child.env("FAKE_CUDA_SANITIZE", sanitizers);
    child.env("LD_PRELOAD", libraries.join(":"));
    child.env(
        "TSAN_OPTIONS",
        "ignore_noninstrumented_modules=1 halt_on_error=1",
    );
    child.env("ASAN_OPTIONS", "detect_leaks=0");
    let fixed_addresses = || {
        // SAFETY: the call changes a flag of the child alone: the thread sanitizer needs
        // addresses where it expects them.
        unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) };
        Ok(())
    };
    // SAFETY: between fork and exec the child makes one call, and takes no lock.
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
    watched("thread", &["libtsan.so"]);
}

#[test]
fn nothing_is_touched_outside_of_arrays_or_undefined() {
    watched("address,undefined", &["libasan.so", "libubsan.so"]);
}

/// Heads, key and value heads, width, and type of the cache. Groups of heads fill a part of a
/// tile, more than one tile, or are single heads. Widths are with and without padding, and
/// warps share them once and twice.
const SHAPES: [(usize, usize, usize, Element); 3] = [
    (6, 2, 24, Element::Bf16),
    (20, 1, 80, Element::Bf16),
    (2, 2, 20, Element::F32),
];

/// A little of every other kernel. Other tests check the results.
#[test]
#[ignore = "a process of its own, which other tests start"]
fn every_kernel() {
    let gpu = Gpu::new();
    // Attention first: the thread sanitizer's clocks grow with every thread of every module
    // that has run.
    let attentions = SHAPES.map(|(heads, kv_heads, head_dim, cached)| {
        let shape = AttentionShape {
            sinks: true,
            ..AttentionShape::dense(heads, kv_heads, head_dim, 0.2)
        };
        let made = Attention::new(&gpu.context, &gpu.compiler, &shape, cached, cached);
        let attention = made.expect("kernels");
        attention_of(&gpu, &attention);
        attention
    });
    for attention in &attentions {
        cells(&gpu, attention, true);
        cells(&gpu, attention, false);
    }
    for element in ELEMENTS {
        products(&gpu, element);
    }
    chains::early(&gpu, Element::Bf16);
    for element in ELEMENTS {
        blocks(&gpu, element);
    }
    experts::every_kernel();
    sampling::every_kernel(&gpu);
    accepting::every_kernel(&gpu);
    let made = RowwiseOps::new(&gpu.context, &gpu.compiler, Element::Bf16);
    let operations = made.expect("kernels");
    // Rows that are copied in units of 2, 4 and 16 bytes.
    for width in [35, 38, 264] {
        rows(&gpu, &operations, width);
    }
}

/// Recurrent layers.
#[test]
#[ignore = "a process of its own, which other tests start"]
fn recurrences() {
    recurrent::every_kernel();
}

/// Attention over latents.
#[test]
#[ignore = "a process of its own, which other tests start"]
fn latents() {
    let gpu = Gpu::new();
    let latents = AttentionShape {
        latent: Some(16),
        ..AttentionShape::dense(20, 1, 24, 0.2)
    };
    let element = Element::Bf16;
    let made = Attention::new(&gpu.context, &gpu.compiler, &latents, element, element);
    attention_of(&gpu, &made.expect("kernels"));
}

/// Chains and trees of one span and of several, some split and some not, over pages of one
/// position and of sixteen, in two orders.
fn attention_of(gpu: &Gpu, attention: &Attention) {
    // Several tiles of queries, and one; a mask of several words for narrow heads.
    let kv_heads = attention.shape().kv_heads;
    let group = attention.shape().heads / kv_heads;
    let wide = if group < 16 { 66 } else { 3 };
    let requests = [
        Request::causal(1, 0, 3),
        Request::causal(2, 257, 2),
        Request::causal(3, 513, 1),
        Request::tree(4, 253, 4, &mut Noise(1)),
        Request::tree(5, 3, wide, &mut Noise(2)),
        // As many queries as wide tiles need on the fake device.
        Request::causal(6, 250, 2 + 64 * 4usize.div_ceil(kv_heads) / group),
    ];
    for (seed, page_size, parts) in [(1, 1, 1 << 12), (2, 16, 0)] {
        let _order = lockstep_fake_cuda::order(seed);
        let run = Run {
            shape: *attention.shape(),
            cached: attention.cached(),
            operand: attention.cached(),
            page_size,
            parts,
        };
        let found = attend(gpu, attention, &run, &requests);
        assert!(found.concat().iter().all(|value| value.is_finite()));
    }
}

fn rows(gpu: &Gpu, operations: &RowwiseOps, width: usize) {
    let (stream, operand, count) = (&gpu.stream, operations.operand(), 5);
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
    let mut gathered = gpu.poisoned(operand, count * width);
    let mut run = || -> Result<(), CudaError> {
        operations.embed(stream, &table, width, (0, 1.0), &inputs, &mut x)?;
        operations.cast(stream, &x, width, all, &mut out)?;
        operations.cast(stream, &out, width, all, &mut y)?;
        operations.add_rms_norm(stream, &mut x, &y, &weight, 1e-5, all, &mut out)?;
        operations.place_columns(stream, &x, width, all, &mut wide, 2 * width, 0)?;
        operations.copy_rows(stream, &x, listed, width, all, &mut y, listed)?;
        operations.place_columns(stream, &y, width, all, &mut wide, 2 * width, width)?;
        operations.gate(stream, &wide, Activation::Silu, width, all, &mut out)?;
        operations.gather_rows(stream, &out, width, Some(listed), all, &mut gathered)?;
        operations.rms_norm(stream, &x, &weight, 1e-5, all, &mut out)
    };
    run().expect("launches");
    assert!(gpu.read(&out).iter().all(|value| value.is_finite()));
}

/// The kernels of blocks, each behind the one whose results it reads, without a wait in between.
fn blocks(gpu: &Gpu, element: Element) {
    let made = BlockOps::new(&gpu.context, &gpu.compiler, element);
    let (operations, stream, count) = (made.expect("kernels"), &gpu.stream, 3);
    let shape = AttentionShape::dense(4, 2, 20, 0.2);
    let width = shape.qkv_width();
    let (queries, keys) = (gpu.buffer(&[0.5f32; 80]), gpu.buffer(&[0.7f32; 40]));
    let norms = WholeNorms {
        queries: &queries,
        keys: &keys,
        widths: [80, 40],
        eps: 1e-5,
    };
    let counted = CountedKeys {
        first: 0,
        served: 2,
        group: 2,
    };
    let (weight, bias) = (
        gpu.buffer(&vec![0.9f32; width]),
        gpu.buffer(&vec![0.1f32; width]),
    );
    let norm = RmsNorm {
        weight: &weight,
        eps: 1e-5,
    };
    let end = BlockEnd {
        output: Some(norm),
        next: Some(Norm::Layer { norm, bias: &bias }),
    };
    let scaling = LogitScaling {
        divisor: 2.0,
        softcap: Some(30.0),
    };
    let mut qkv = gpu.floats(Element::F32, &Noise(6).floats(count * width));
    let mut residual = gpu.floats(Element::F32, &Noise(7).floats(count * width));
    let mut sums = gpu.poisoned(Element::F32, 2 * count);
    let mut out = gpu.poisoned(element, count * width);
    let all = Rows::fixed(count);
    let mut run = || -> Result<(), CudaError> {
        operations.square_sums(stream, &qkv, &shape, counted, all, &mut sums)?;
        operations.whole_norm(stream, &mut qkv, &shape, &sums, &norms, all)?;
        let delta = Some((&qkv).into());
        operations.end_block(stream, &mut residual, delta, (end, width), all, &mut out)?;
        operations.activate(
            stream,
            &residual,
            Activation::GeluTanh,
            width,
            all,
            &mut out,
        )?;
        operations.scale_logits(stream, &mut residual, scaling, width, all)
    };
    run().expect("launches");
    for floats in [&residual, &out] {
        assert!(gpu.read(floats).iter().all(|value| value.is_finite()));
    }
}

/// Every kernel for few rows, with columns in one slice and in several, with columns that are
/// copied 16 bytes at a time and columns that are not, with gates and without.
fn products(gpu: &Gpu, element: Element) {
    let made = Products::new(&gpu.context, &gpu.compiler, element);
    let mut products = made.expect("kernels");
    // The last shapes have rows that the device counts and blocks share.
    let shapes = [
        (3, 70, 21),
        (16, 9, 600),
        (30, 66, 104),
        (64, 130, 40),
        (70, 130, 40),
    ];
    for (rows, outputs, inputs) in shapes {
        let product = Product {
            outputs,
            inputs,
            element,
        };
        let (x, w) = (
            gpu.floats(element, &Noise(1).floats(rows * inputs)),
            gpu.floats(element, &Noise(2).floats(outputs * inputs)),
        );
        let bias = gpu.buffer(&Noise(3).floats(outputs));
        let counts = gpu.buffer(&[rows as u32]);
        let operands = Operands {
            x: &x,
            w: &w,
            bias: Some(&bias),
            product,
            rows: Rows::counted(rows, &counts, 0),
        };
        let mut out = gpu.poisoned(Element::F32, rows * outputs);
        products
            .run(&gpu.stream, operands, &mut out)
            .expect("a product");
        assert!(gpu.read(&out).iter().all(|value| value.is_finite()));
        if outputs % 2 == 0 {
            let mut gated = gpu.poisoned(element, rows * outputs / 2);
            let done = products.gated(
                &gpu.stream,
                operands,
                Activation::Silu,
                &mut out,
                &mut gated,
            );
            assert!(done.expect("a product").is_none(), "there is one slice");
            assert!(gpu.read(&gated).iter().all(|value| value.is_finite()));
        }
    }
}

fn cells(gpu: &Gpu, attention: &Attention, normed: bool) {
    let (stream, positions, shape) = (&gpu.stream, [2, 0, 1], attention.shape());
    let inputs = gpu.inputs(&tokens(&positions), 1);
    let kv = KvShape {
        latent: None,
        group: 0,
        layers: 2,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        pages: 3,
        page_size: 1,
        dtype: match attention.cached() {
            Element::F32 => KvCacheDtype::Float32,
            Element::Bf16 => KvCacheDtype::Bfloat16,
        },
    };
    let mut cache = PagedCache::new(&gpu.context, &kv).expect("room");
    let mut qkv = gpu.floats(Element::F32, &Noise(3).floats(3 * shape.qkv_width()));
    let angles = Noise(4).floats(3 * shape.head_dim / 2);
    let rope = Rope {
        half: shape.head_dim / 2,
        cos: gpu.buffer(&angles),
        sin: gpu.buffer(&angles),
        queries: None,
    };
    let weight = gpu.buffer(&Noise(5).floats(shape.head_dim));
    let norms = HeadNorms {
        queries: normed.then_some(&weight),
        keys: normed.then_some(&weight),
        values: None,
        eps: 1e-6,
    };
    let moves = gpu.buffer(&[0u32, 2, 2, 1]);
    attention
        .rotate_and_store(stream, &mut qkv, norms, &rope, &inputs, &mut cache, 1)
        .and_then(|_| attention.copy_cells(stream, &mut cache, &moves, Rows::fixed(2)))
        .expect("launches");
    stream.synchronize().expect("all is done");
}
