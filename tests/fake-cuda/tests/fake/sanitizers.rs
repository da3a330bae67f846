//! The compiler's sanitizers see CUDA threads and device memory.

use std::process::Command;

use crate::children;
use crate::device::{Buffer, Module, Shape, Stream, begin};

const BLOCK_SUM: &str = include_str!("kernels/block_sum.cu");
const THREADS: u32 = 64;

/// The kernels without the barrier that the detail names.
fn kernels() -> Module {
    begin();
    let without = children::detail().parse().unwrap_or(0u32);
    let macros = [format!("THREADS={THREADS}"), format!("WITHOUT={without}")];
    Module::new(BLOCK_SUM, &macros.each_ref().map(String::as_str))
}

/// Sums blocks. The detail "short" makes the memory too small.
pub(crate) fn block_sum() {
    let kernel = kernels().kernel("block_sum");
    let short = usize::from(children::detail() == "short");
    let values = vec![1.0f32; 2 * THREADS as usize - short];
    let (stream, x, out) = (Stream::new(), Buffer::of(&values), Buffer::new(8));
    kernel.launch(
        &stream,
        Shape::line(2, THREADS),
        &[(&x).into(), (&out).into()],
    );
    children::tell(&format!("sums {:?}", out.read::<f32>(2, &stream)));
}

/// Reads behind a shared array.
pub(crate) fn behind() {
    let kernel = kernels().kernel("behind");
    let values = [1.0f32; THREADS as usize];
    let (stream, x, out) = (Stream::new(), Buffer::of(&values), Buffer::of(&values));
    kernel.launch(
        &stream,
        Shape::line(1, THREADS),
        &[(&x).into(), (&out).into()],
    );
    stream
        .synchronize()
        .expect("whoever watches ends the process");
}

/// Launches the kernel of `faults.cu` that takes vectors from any address.
pub(crate) fn vectors() {
    begin();
    let kernel = Module::new(include_str!("kernels/faults.cu"), &[]).kernel("vectors");
    let (stream, x) = (Stream::new(), Buffer::of(&[1.0f32; 64]));
    kernel.launch(&stream, Shape::line(1, 32), &[(&x).into()]);
    let told = stream.synchronize();
    children::tell(&format!("told {told:?}"));
}

/// Path of a sanitizer's library; `None` if the compiler has none.
fn library(name: &str) -> Option<String> {
    let mut compiler = Command::new(std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned()));
    let output = compiler.arg(format!("-print-file-name={name}")).output();
    let path = String::from_utf8(output.expect("a C++ compiler").stdout).expect("a path");
    let path = path.trim();
    path.contains('/').then(|| path.to_owned())
}

/// Runs a scenario under a sanitizer; `None` if the compiler has none.
pub(crate) fn under(sanitizer: &str, scenario: &str, detail: &str) -> Option<(bool, String)> {
    let short = match sanitizer {
        "thread" => "tsan",
        "undefined" => "ubsan",
        _ => "asan",
    };
    let library = library(&format!("lib{short}.so"))?;
    let mut command = children::command(scenario);
    command.env("FAKE_CUDA_SANITIZE", sanitizer);
    command.env(children::DETAIL, detail);
    command.env("LD_PRELOAD", library);
    command.env(
        "TSAN_OPTIONS",
        "ignore_noninstrumented_modules=1 halt_on_error=1",
    );
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    without_random_addresses(&mut command);
    let (good, text) = children::finish(&mut command);
    // A sanitizer that may not choose addresses does not start.
    let starts = !text.contains("FATAL: ThreadSanitizer");
    starts.then_some((good, text))
}

/// Turns off random addresses, since the thread sanitizer needs certain ones.
fn without_random_addresses(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    const ADDR_NO_RANDOMIZE: libc::c_ulong = 0x0004_0000;
    let set = || {
        // SAFETY: the call changes a flag of the child alone. If the call is forbidden, the
        // sanitizer reports what it lacks.
        unsafe { libc::personality(ADDR_NO_RANDOMIZE) };
        Ok(())
    };
    // SAFETY: between fork and exec the child makes one call, and takes no lock.
    unsafe { command.pre_exec(set) };
}

#[test]
fn misaligned_vectors_are_found() {
    let Some((good, text)) = under("undefined", "vectors", "") else {
        return;
    };
    assert!(!good && text.contains("misaligned address"), "{text}");
    assert!(text.contains("kernels.cu:53"), "{text}");
    // Some processors find misaligned vectors, too.
    if cfg!(target_arch = "x86_64") {
        let (good, text) = children::finish(&mut children::command("vectors"));
        assert!(good && text.contains("told Err(716)"), "{text}");
    }
}

#[test]
fn races_of_shared_memory_are_found() {
    for without in ["1", "2"] {
        let Some((good, text)) = under("thread", "block sum", without) else {
            return;
        };
        assert!(!good && text.contains("data race"), "{without}: {text}");
        assert!(text.contains("kernels.cu:"), "{text}");
    }
    if let Some((good, text)) = under("thread", "block sum", "0") {
        assert!(good && text.contains("sums [64.0, 64.0]"), "{text}");
    }
}

#[test]
fn accesses_outside_of_memory_are_found() {
    for (scenario, detail, words) in [
        ("block sum", "short", "heap-buffer-overflow"),
        ("behind", "0", "global-buffer-overflow"),
    ] {
        let Some((good, text)) = under("address", scenario, detail) else {
            return;
        };
        assert!(!good && text.contains(words), "{scenario}: {text}");
        assert!(text.contains("kernels.cu:"), "{text}");
    }
    if let Some((good, text)) = under("address", "block sum", "0") {
        assert!(good && text.contains("sums [64.0, 64.0]"), "{text}");
    }
}
