//! Streams, events, pinned memory, and compiled kernels with their folder.

use std::fs;
use std::path::Path;

use bytemuck::{Pod, Zeroable};
use lockstep_backend_cuda::{
    Buffer, Compiler, CudaError, Event, Kernel, Module, Pinned, Source, Stream,
};

use crate::support::{Gpu, SEEDS};

const DOUBLE: Source = Source {
    name: "double.cu",
    text: r#"
        #include "factor.cuh"
        struct Double { unsigned* x; unsigned len, pad; };
        extern "C" __global__ void times(Double a) {
            const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < a.len) a.x[i] *= FACTOR;
        }
    "#,
    headers: &[("factor.cuh", "#pragma once\n")],
};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Double {
    x: u64,
    len: u32,
    pad: u32,
}

fn times(gpu: &Gpu, compiler: &Compiler, factor: u32) -> Kernel<Double> {
    let code = compiler.compile(&DOUBLE, &[("FACTOR", factor.to_string())]);
    let module = Module::load(&gpu.context, &code.expect("it compiles")).expect("a module");
    module.kernel("times", 64, 0).expect("a kernel")
}

#[test]
fn kernels_run_on_what_they_are_given() {
    let gpu = Gpu::new();
    let kernel = times(&gpu, &gpu.compiler, 3);
    let values: Vec<u32> = (0..100).collect();
    let buffer = gpu.buffer(&values);
    let parameters = Double {
        x: buffer.address(),
        len: 100,
        pad: 0,
    };
    for grid in [[2, 1, 1], [0, 1, 1]] {
        // SAFETY: there are as many values as the kernel is told.
        unsafe { kernel.launch(&gpu.stream, grid, &parameters) }.expect("a launch");
    }
    let mut found = vec![0; 100];
    gpu.stream.download(&buffer, &mut found).expect("a copy");
    assert!(values.iter().map(|x| 3 * x).eq(found));
}

#[test]
fn streams_wait_for_events_and_programs_for_copies() {
    let gpu = Gpu::new();
    let kernel = times(&gpu, &gpu.compiler, 3);
    let other = Stream::new(&gpu.context).expect("a stream");
    let (written, copied) = (
        Event::new(&gpu.context).expect("an event"),
        Event::new(&gpu.context).expect("an event"),
    );
    copied
        .synchronize()
        .expect("what was never recorded is past");
    for seed in SEEDS {
        let _order = lockstep_fake_cuda::order(seed);
        let mut from: Pinned<u32> = Pinned::new(&gpu.context, 50, "a test's").expect("room");
        let mut back: Pinned<u32> = Pinned::new(&gpu.context, 50, "a test's").expect("room");
        assert!(from.as_slice().iter().all(|x| *x == 0));
        from.as_mut_slice().fill(seed as u32);
        let mut buffer: Buffer<u32> = Buffer::new(&gpu.context, 50, "a test's").expect("room");
        let parameters = Double {
            x: buffer.address(),
            len: 50,
            pad: 0,
        };
        // SAFETY: nobody touches `from` and `back` before `copied` happened, and there are as
        // many values as the kernel is told.
        unsafe {
            gpu.stream
                .queue_upload(&from, 0..50, &mut buffer, 0)
                .expect("a copy");
            gpu.stream.record(&written).expect("an event");
            other.wait(&written).expect("a wait");
            kernel
                .launch(&other, [1, 1, 1], &parameters)
                .expect("a launch");
            other
                .queue_download(&buffer, &mut back, 50)
                .expect("a copy");
        }
        other.record(&copied).expect("an event");
        copied.synchronize().expect("copies");
        assert!(back.as_slice().iter().all(|x| *x == 3 * seed as u32));
    }
}

#[test]
fn compiled_kernels_are_kept_and_mended() {
    let gpu = Gpu::new();
    let folder = tempfile::tempdir().expect("a folder");
    let compiler = Compiler::new(gpu.context.gpu(), Some(&folder.path().join("new"))).expect("one");
    let files = || {
        let mut files: Vec<_> = fs::read_dir(folder.path().join("new"))
            .expect("a folder")
            .map(|file| file.expect("a file").path())
            .collect();
        files.sort();
        files
    };
    let defines = |factor: u32| [("FACTOR", factor.to_string())];
    let first = compiler.compile(&DOUBLE, &defines(2)).expect("it compiles");
    let [file] = files().try_into().expect("one file");
    let name = file
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    let place = format!("double.cu-{}-nvrtc", compiler.architecture());
    assert!(name.starts_with(&place), "{name}");

    // A kept file is used as it is if it is whole. Bytes that no compiler would write show that
    // no compiler ran.
    let kept = fs::read(&file).expect("a file");
    let other = b"other code";
    let own = [blake3::hash(other).as_bytes().as_slice(), other].concat();
    fs::write(&file, own).expect("a file");
    assert_eq!(compiler.compile(&DOUBLE, &defines(2)).expect("kept"), other);
    for broken in [&kept[..kept.len() - 1], &kept[..7], &[]] {
        fs::write(&file, broken).expect("a file");
        let again = compiler.compile(&DOUBLE, &defines(2)).expect("it compiles");
        assert!(again == first, "made anew");
        assert!(fs::read(&file).expect("a file") == kept);
    }

    // Another macro, header or text is another file.
    compiler.compile(&DOUBLE, &defines(3)).expect("it compiles");
    let header = Source {
        headers: &[("factor.cuh", "#pragma once\n// other\n")],
        ..DOUBLE
    };
    compiler.compile(&header, &defines(2)).expect("it compiles");
    assert_eq!(files().len(), 3);
}

/// A folder that can't keep files costs the time to compile.
#[test]
fn kernels_are_compiled_where_none_can_be_kept() {
    let gpu = Gpu::new();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("a file");
    let define = [("FACTOR", "2".to_owned())];
    let compile = |folder: Option<&Path>| {
        let compiler = Compiler::new(gpu.context.gpu(), folder).expect("a compiler");
        compiler.compile(&DOUBLE, &define).expect("it compiles")
    };
    let wanted = compile(None);
    assert!(compile(Some(&file.join("below"))) == wanted);
    assert!(compile(Some(&file)) == wanted);
    // A folder has the file's name.
    assert!(compile(Some(folder.path())) == wanted);
    let names = fs::read_dir(folder.path()).expect("a folder");
    let kept = names.map(|file| file.expect("a file").path());
    let kept: Vec<_> = kept.filter(|kept| *kept != file).collect();
    let [kept] = kept.try_into().expect("one file");
    fs::remove_file(&kept).expect("it was there");
    fs::create_dir(&kept).expect("a folder");
    assert!(compile(Some(folder.path())) == wanted);
}

#[test]
fn what_does_not_compile_is_named() {
    let gpu = Gpu::new();
    let source = Source {
        name: "broken.cu",
        text: "extern \"C\" __global__ void broken() { undeclared = 1; }",
        headers: &[],
    };
    let error = gpu
        .compiler
        .compile(&source, &[])
        .expect_err("no such name");
    assert!(matches!(error, CudaError::Compilation { .. }));
    let text = error.to_string();
    assert!(
        text.contains("broken.cu") && text.contains("undeclared"),
        "{text}"
    );
}
