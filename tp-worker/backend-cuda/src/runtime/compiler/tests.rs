//! Compiles all kernels with NVIDIA's own compiler. That needs no GPU, only its library: run as
//! `LD_LIBRARY_PATH=DIR target/debug/deps/… --ignored --nocapture`.

mod occupancy;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use lockstep_backend::{AttentionShape, DeltaShape};

use super::{Defines, Program, Source, library_version, options};
use crate::drafting::{chains, sampling, trees};
use crate::exchange::notes;
use crate::kernels::BITS;
use crate::ops::delta::HeadRule;
use crate::ops::{
    attention, blocks, delta, experts, groups, latent, products, random, rowwise, short, states,
};
use crate::runtime::{bits, meter};
use crate::tensors::{Element, MatrixForm};

/// Heads, key and value heads, and width of a head: Llama 3, Qwen 3, two small models, a width
/// that is no multiple of a tile's, Gemma 4's two.
const SHAPES: [[usize; 3]; 7] = [
    [32, 8, 128],
    [16, 8, 128],
    [8, 4, 64],
    [4, 2, 32],
    [3, 1, 24],
    [8, 1, 256],
    [8, 1, 512],
];
/// Shared memory of a block on H100 and B200.
const MOST_SHARED: usize = 227 << 10;
/// Shared memory of a block on these, on A100, and on GPUs of workstations.
const BLOCK_MEMORY: [usize; 3] = [MOST_SHARED, 163 << 10, 99 << 10];
/// Heads on a rank, columns of a cell and of its latent: DeepSeek V3, Mistral 4, small ones.
const LATENTS: [[usize; 3]; 3] = [[16, 576, 512], [32, 320, 256], [3, 24, 18]];

/// Heads of recurrent layers: Qwen 3.5's, a small model's, the widest; then those of Mamba-2 in
/// Nemotron 3 Nano, in a small model, and the widest.
const DELTAS: [(HeadRule, DeltaShape); 6] = [
    (HeadRule::Delta, DeltaShape::new([16, 32], [128, 128], 4)),
    (HeadRule::Delta, DeltaShape::new([2, 4], [16, 48], 2)),
    (HeadRule::Delta, DeltaShape::new([1, 1], [256, 256], 8)),
    (HeadRule::Mamba2, DeltaShape::new([8, 64], [128, 64], 4)),
    (HeadRule::Mamba2, DeltaShape::new([1, 4], [16, 48], 2)),
    (HeadRule::Mamba2, DeltaShape::new([1, 1], [256, 256], 8)),
];
/// Taps of short convolutions: LFM2's, the fewest, the most.
const TAPS: [usize; 3] = [3, 2, 8];

/// The compiler's log, with its report on registers and memory, and the seconds it took.
fn compiled(architecture: &str, source: &Source, defines: &Defines) -> (String, f64) {
    let mut options = options(architecture, defines);
    // The compiler's own cache would return code without a log.
    options.extend(["--ptxas-options=-v", "--no-cache"].map(str::to_owned));
    let begun = Instant::now();
    let program = Program::new(source).expect("a program");
    let done = program.compile(&options);
    let log = program.log().expect("a log");
    assert!(done.is_ok(), "{} for {architecture}: {log}", source.name);
    assert!(!program.machine_code().expect("machine code").is_empty());
    (log, begun.elapsed().as_secs_f64())
}

/// Every source with every set of macros.
fn programs() -> Vec<(&'static Source, Defines)> {
    let elements = [Element::F32, Element::Bf16];
    let mut all: Vec<(&'static Source, Defines)> =
        elements.into_iter().flat_map(rowwise::sources).collect();
    for triggers_at_half in [false, true] {
        all.extend(elements.map(|element| products::few::source(element, triggers_at_half)));
    }
    all.extend(elements.map(blocks::source));
    for ((rule, shape), element) in DELTAS.iter().zip(elements.into_iter().cycle()) {
        all.extend(delta::sources((*rule, shape), element));
    }
    all.extend(
        elements
            .into_iter()
            .flat_map(|element| TAPS.map(|taps| short::source(taps, element))),
    );
    all.push((states::copies_source(), Defines::new()));
    all.extend(elements.map(groups::source));
    all.extend(elements.map(random::source));
    all.extend(elements.map(experts::source));
    for form in [MatrixForm::Floats, MatrixForm::Mxfp4] {
        all.extend(elements.map(|element| experts::products::source(element, form)));
    }
    all.extend(meter::sources());
    all.push((notes::SOURCE, Defines::new()));
    all.extend(sampling::SOURCES.map(|source| (source, Defines::new())));
    all.push((chains::SOURCE, Defines::new()));
    all.push((trees::SOURCE, Defines::new()));
    for operand in elements {
        all.extend(elements.map(|cached| latent::source(operand, cached)));
    }
    let dense = SHAPES
        .map(|[heads, kv_heads, head_dim]| AttentionShape::dense(heads, kv_heads, head_dim, 1.0));
    let latents = LATENTS.map(|[heads, cell, latent]| AttentionShape {
        latent: Some(latent),
        ..AttentionShape::dense(heads, 1, cell, 1.0)
    });
    for shape in dense.into_iter().chain(latents) {
        for cached in elements {
            for operand in elements {
                // The kernels that store keys and values don't depend on the operands' type.
                for program in attention::sources(&shape, cached, operand) {
                    add(&mut all, program);
                }
                // Wide tiles have one buffer or two, by the GPU's memory.
                for memory in BLOCK_MEMORY {
                    if let Some(wide) = attention::Wide::of(&shape, cached, memory) {
                        add(&mut all, attention::wide_source(&shape, operand, &wide));
                    }
                }
            }
        }
    }
    all
}

/// Adds a program, unless it is there.
fn add(all: &mut Vec<(&'static Source, Defines)>, (source, defines): (&'static Source, Defines)) {
    let same = |of: &(&Source, Defines)| of.0.name == source.name && of.1 == defines;
    if !all.iter().any(same) {
        all.push((source, defines));
    }
}

/// A program's report as lines to print, and the lines about spilled registers.
fn told(architecture: &str, (source, defines): &(&Source, Defines)) -> (String, Vec<String>) {
    let (log, seconds) = compiled(architecture, source, defines);
    let mut text = format!("{} {architecture} {defines:?}: {seconds:.2} s", source.name);
    let (mut spilled, mut kernel, mut looked_at) = (Vec::new(), "", 0);
    for line in log.lines() {
        kernel = line.split('\'').nth(1).unwrap_or(kernel);
        if line.contains("registers") {
            text += &format!("\n    {kernel}: {}", line.trim());
        }
        let none = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads";
        looked_at += usize::from(line.contains("spill"));
        if line.contains("spill") && !line.contains(none) {
            spilled.push(format!("{kernel} {architecture} {defines:?}: {line}"));
        }
    }
    let kernels = source.text.matches("__global__").count();
    assert!(
        looked_at >= kernels,
        "{} tells of spills: {log}",
        source.name
    );
    (text, spilled)
}

/// Compiles everything for one architecture, on as many threads as there are cores, and prints each
/// program when it is done.
fn compile_without_spills(architecture: &str) {
    println!("libnvrtc {}", library_version().expect("libnvrtc"));
    let (programs, begun) = (programs(), Instant::now());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut spilled = Vec::new();
        while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (text, more) = told(architecture, program);
            println!("{text}");
            spilled.extend(more);
        }
        spilled
    };
    let spilled: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let done = threads.into_iter();
        let done = done.map(|thread| thread.join().expect("it compiles"));
        done.flatten().collect()
    });
    let (count, seconds) = (programs.len(), begun.elapsed().as_secs_f64());
    println!("{architecture}: {count} programs on {threads} threads, {seconds:.1} s in all");
    assert!(spilled.is_empty(), "{}", spilled.join("\n"));
}

// A test for each architecture of GPUs, from the oldest that serves on.
#[test]
#[ignore = "needs NVIDIA's compiler, libnvrtc"]
fn all_kernels_compile_without_spills_for_sm_80() {
    compile_without_spills("sm_80");
}

#[test]
#[ignore = "needs NVIDIA's compiler, libnvrtc"]
fn all_kernels_compile_without_spills_for_sm_86() {
    compile_without_spills("sm_86");
}

#[test]
#[ignore = "needs NVIDIA's compiler, libnvrtc"]
fn all_kernels_compile_without_spills_for_sm_89() {
    compile_without_spills("sm_89");
}

#[test]
#[ignore = "needs NVIDIA's compiler, libnvrtc"]
fn all_kernels_compile_without_spills_for_sm_90() {
    compile_without_spills("sm_90");
}

#[test]
#[ignore = "needs NVIDIA's compiler, libnvrtc"]
fn all_kernels_compile_without_spills_for_sm_100() {
    compile_without_spills("sm_100");
}

#[test]
#[ignore = "needs NVIDIA's compiler, libnvrtc"]
fn all_kernels_compile_without_spills_for_sm_120() {
    compile_without_spills("sm_120");
}

#[test]
#[ignore = "needs NVIDIA's compiler, libnvrtc"]
fn the_comparison_of_bits_compiles_without_spills() {
    let (text, spilled) = told(bits::ARCHITECTURE, &(&BITS, Defines::new()));
    println!("{text}");
    assert!(spilled.is_empty(), "{}", spilled.join("\n"));
}
