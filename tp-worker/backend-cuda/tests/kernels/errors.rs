//! Errors for missing, old or too many things, with the remedy.

use std::process::Command;

use lockstep_backend::{AttentionShape, DeltaShape, KvShape, Recurrence};
use lockstep_backend_cuda::{
    Attention, Buffer, Compiler, Context, CudaError, Element, PagedCache, Pinned, Products,
    check_recurrence,
};
use lockstep_types::KvCacheDtype;

use crate::support::Gpu;

/// Output of a process that opens a GPU with these variables set or unset.
fn opened(variables: &[(&str, Option<&str>)]) -> String {
    let program = std::env::current_exe().expect("this test's file");
    let mut child = Command::new(program);
    child.args(["--exact", "errors::opens_a_gpu", "--ignored", "--nocapture"]);
    for (name, value) in variables {
        match value {
            Some(value) => child.env(name, value),
            None => child.env_remove(name),
        };
    }
    let output = child.output().expect("a process");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
#[ignore = "a process of its own, which another test starts"]
fn opens_a_gpu() {
    let ordinal = std::env::var("TEST_ORDINAL").map_or(0, |text| text.parse().expect("a number"));
    let opened = Context::open(ordinal).and_then(|context| {
        let compiler = Compiler::new(context.gpu(), None)?;
        compiler.probe()?;
        Products::new(&context, &compiler, Element::F32)?;
        let head_dim = std::env::var("TEST_HEAD_DIM").map_or(64, |text| text.parse().expect("one"));
        let shape = AttentionShape::dense(1, 1, head_dim, 1.0);
        Attention::check(context.gpu(), &shape, Element::F32)?;
        Ok(context.gpu().describe())
    });
    match opened {
        Ok(device) => println!("opened {device}"),
        Err(error) => println!("failed: {error}"),
    }
}

#[test]
fn machines_that_cannot_serve_are_told_why() {
    if !lockstep_fake_cuda::seed(1) {
        return; // Only a fake machine can be made to lack something.
    }
    assert!(opened(&[]).contains("opened Fake CUDA device, sm_90, driver for CUDA 13.0"));
    let cases = [
        (
            "LD_LIBRARY_PATH",
            None,
            "libcuda.so was not found: install the NVIDIA driver",
        ),
        (
            "FAKE_CUDA_DRIVER",
            Some("11080"),
            "one for CUDA 11.8, and this program needs one for CUDA 12.0",
        ),
        (
            "FAKE_CUDA_DRIVER",
            Some("12040"),
            "libnvrtc 13.0 needs one for CUDA 13.0: install a newer driver, or name the folder of libnvrtc 12 first",
        ),
        (
            "FAKE_CUDA_DEVICES",
            Some("0"),
            "the NVIDIA driver sees no GPU",
        ),
        (
            "FAKE_CUDA_CAPABILITY",
            Some("75"),
            "has compute capability 7.5, and 8.0 is needed",
        ),
        (
            "FAKE_CUDA_MEMORY",
            Some("1000000"),
            "working memory of products needs 33554432 bytes, which the GPU does not have",
        ),
        (
            "FAKE_NVRTC_BUILTINS",
            Some("missing"),
            "install the whole libnvrtc that belongs to the driver, its libnvrtc-builtins with it",
        ),
        (
            "FAKE_NVRTC_ARCHITECTURES",
            Some("75,80,89,100"),
            "libnvrtc 13.0 compiles nothing for Fake CUDA device, sm_90",
        ),
        (
            "FAKE_CUDA_EXCLUSIVE",
            Some("1"),
            "cuDevicePrimaryCtxRetain failed",
        ),
        (
            "TEST_ORDINAL",
            Some("7"),
            "there is no GPU 7, as the driver sees 4 of them",
        ),
    ];
    for (name, value, wanted) in cases {
        let said = opened(&[(name, value)]);
        assert!(said.contains(wanted), "{name}={value:?}: {said}");
    }
}

/// Differences between GPUs and compilers, served or not.
#[test]
fn machines_serve_what_they_can() {
    if !lockstep_fake_cuda::seed(1) {
        return; // A real machine has the GPU that it has.
    }
    const CAPABILITY: &str = "FAKE_CUDA_CAPABILITY";
    const KNOWN: &str = "FAKE_NVRTC_ARCHITECTURES";
    const HEADS: &str = "TEST_HEAD_DIM";
    let cases: [(&[(&str, &str)], &str); 5] = [
        // Machine code of a generation runs on later GPUs of it.
        (&[(CAPABILITY, "121"), (KNOWN, "80,90,120")], "opened"),
        (&[(CAPABILITY, "89"), (KNOWN, "80,90")], "opened"),
        (&[(CAPABILITY, "100"), (KNOWN, "80,90")], "compiles nothing"),
        (&[(CAPABILITY, "80"), (HEADS, "256")], "opened"),
        (
            &[(CAPABILITY, "86"), (HEADS, "256")],
            "need 155200 bytes of shared memory, and blocks on this GPU (Fake CUDA device, sm_86, driver for CUDA 13.0) have 101376: give --kv-cache-dtype bfloat16",
        ),
    ];
    for (variables, wanted) in cases {
        let variables: Vec<_> = variables
            .iter()
            .map(|(name, value)| (*name, Some(*value)))
            .collect();
        let said = opened(&variables);
        assert!(said.contains(wanted), "{variables:?}: {said}");
    }
}

#[test]
fn too_much_memory_is_refused() {
    let gpu = Gpu::new();
    let (free, all) = gpu.context.memory().expect("numbers");
    assert!(free <= all);
    let error = Buffer::<f32>::new(&gpu.context, all, "a giant").err();
    let text = error.expect("no room").to_string();
    assert!(
        text.contains("a giant needs") && text.contains("the GPU"),
        "{text}"
    );
    let small = Pinned::<u8>::new(&gpu.context, 0, "nothing").expect("room");
    assert!(small.as_slice().is_empty());
}

#[test]
fn unsupported_shapes_name_a_way_out() {
    let gpu = Gpu::new();
    let attention = |heads, kv_heads, head_dim, cached| {
        let shape = AttentionShape::dense(heads, kv_heads, head_dim, 1.0);
        let made = Attention::new(&gpu.context, &gpu.compiler, &shape, cached, Element::F32);
        made.err().expect("unsupported").to_string()
    };
    let latents = |cell, latent| {
        let shape = AttentionShape {
            latent: Some(latent),
            ..AttentionShape::dense(4, 1, cell, 1.0)
        };
        let checked = Attention::check(gpu.context.gpu(), &shape, Element::Bf16);
        checked.expect_err("unsupported").to_string()
    };
    let heads = |key_dim, value_dim| {
        let rule = Recurrence::Mamba2(DeltaShape {
            key_heads: 1,
            value_heads: 2,
            key_dim,
            value_dim,
            taps: 4,
        });
        let error = check_recurrence(&rule).expect_err("unsupported");
        error.to_string()
    };
    for (text, wanted) in [
        (
            attention(6, 4, 32, Element::F32),
            "6 query heads do not divide among 4",
        ),
        (
            attention(4, 2, 20, Element::Bf16),
            "heads of 20 columns are not served",
        ),
        (attention(4, 2, 520, Element::Bf16), "run on the CPU"),
        (
            latents(584, 512),
            "latents of 512 columns in cells of 584 are not served on GPUs",
        ),
        (latents(560, 520), "a latent has up to 512"),
        (latents(40, 25), "an even number of them"),
        (heads(272, 64), "recurrent layers are 272 and 64 wide"),
        (heads(128, 40), "multiples of 16 up to 256"),
    ] {
        assert!(text.contains(wanted), "{text}");
    }
    let shape = KvShape {
        latent: None,
        group: 0,
        layers: 1,
        kv_heads: 1,
        head_dim: 32,
        pages: 1,
        page_size: 1,
        dtype: KvCacheDtype::Int8,
    };
    let error = PagedCache::new(&gpu.context, &shape)
        .err()
        .expect("unsupported");
    assert!(matches!(error, CudaError::Unsupported(_)));
    assert!(error.to_string().contains("--kv-cache-dtype bfloat16"));
}
