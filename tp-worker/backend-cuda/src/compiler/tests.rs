//! Kernels by NVIDIA's own compiler, which needs no GPU: run where its library is
//! found, as `LD_LIBRARY_PATH=DIR target/debug/deps/… --ignored --nocapture`.

use std::time::Instant;

use lockstep_backend::AttentionShape;

use super::{Defines, Program, Source, library_version, options};
use crate::floats::Element;
use crate::{attention, operations};

/// From the oldest that serves on.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90a", "sm_100a"];
/// Heads, key and value heads, width: Llama 3, Qwen 3, small models, the widest.
const SHAPES: [[usize; 3]; 5] = [
    [32, 8, 128],
    [16, 8, 128],
    [8, 4, 64],
    [4, 2, 32],
    [8, 1, 256],
];

/// What the compiler says of registers and memory, and the seconds it took.
fn compiled(architecture: &str, source: &Source, defines: &Defines) -> (String, f64) {
    let mut options = options(architecture, defines);
    options.push("--ptxas-options=-v".to_owned());
    let begun = Instant::now();
    let program = Program::new(source).expect("a program");
    let done = program.compile(&options);
    let log = program.log().expect("a log");
    assert!(done.is_ok(), "{} for {architecture}: {log}", source.name);
    assert!(!program.machine_code().expect("machine code").is_empty());
    (log, begun.elapsed().as_secs_f64())
}

#[test]
#[ignore = "needs NVIDIA's compiler, libnvrtc"]
fn all_kernels_compile_without_spills() {
    println!("libnvrtc {}", library_version().expect("libnvrtc"));
    let mut spilled = Vec::new();
    for architecture in ARCHITECTURES {
        let elements = [Element::F32, Element::Bf16];
        let mut all: Vec<(&Source, Defines)> =
            elements.into_iter().flat_map(operations::sources).collect();
        for [heads, kv_heads, head_dim] in SHAPES {
            let shape = AttentionShape {
                heads,
                kv_heads,
                head_dim,
                scale: 1.0,
            };
            for element in elements {
                all.extend(attention::sources(&shape, element, element));
            }
        }
        for (source, defines) in all {
            let (log, seconds) = compiled(architecture, source, &defines);
            println!("{} {architecture} {defines:?}: {seconds:.2} s", source.name);
            let mut kernel = "";
            for line in log.lines() {
                kernel = line.split('\'').nth(1).unwrap_or(kernel);
                if line.contains("registers") {
                    println!("    {kernel}: {}", line.trim());
                }
                let none = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads";
                if line.contains("spill") && !line.contains(none) {
                    spilled.push(format!("{kernel} {architecture} {defines:?}: {line}"));
                }
            }
        }
    }
    assert!(spilled.is_empty(), "{}", spilled.join("\n"));
}
