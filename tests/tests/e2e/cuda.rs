//! A server on a GPU: cargo puts fake libraries of CUDA's where libraries are
//! looked for, here and in all that is started from here.

use lockstep_process::exit;
use lockstep_tests::{
    body::{COUNTED, counting},
    server::{Options, Server},
    turns,
    wait::LIMIT,
};
use serde_json::json;

use crate::options;

/// The demo model and its head on one GPU.
fn on_gpu() -> Options {
    options()
        .without("--tp-size")
        .without("--threads-per-rank")
        .set("--max-total-tokens", "2048")
        .set("--max-running-requests", "4")
        .set("--context-length", "256")
        .set("--device", "cuda")
}

#[tokio::test]
async fn a_text_is_served_from_a_gpu() {
    let _turn = turns::alone().await;
    let server = Server::start(on_gpu()).await;
    let answer = server
        .ok("/v1/chat/completions", &counting(&json!({})))
        .await;
    assert_eq!(answer["choices"][0]["message"]["content"], COUNTED);
    let log = server.log();
    assert!(log.contains(", cuda "), "{log}");
}

/// What is missing is said before any process starts.
#[tokio::test]
async fn gpus_that_cannot_serve_are_refused_with_the_remedy() {
    if !lockstep_fake_cuda::seed(1) {
        return; // Only a fake machine can be made to lack something.
    }
    let _turn = turns::shared().await;
    for (options, said) in [
        (
            on_gpu().env("FAKE_CUDA_DEVICES", "0"),
            "the NVIDIA driver sees no GPU",
        ),
        (
            on_gpu().env("LD_LIBRARY_PATH", "/nowhere"),
            "libcuda.so was not found: install the NVIDIA driver",
        ),
        (
            on_gpu().env("FAKE_CUDA_CAPABILITY", "75"),
            "compute capability 7.5",
        ),
        (
            on_gpu().env("FAKE_CUDA_MEMORY", "70000000"),
            "--mem-fraction-static",
        ),
        (on_gpu().set("--base-gpu-id", "9"), "there is no GPU 9"),
        (on_gpu().set("--tp-size", "2"), "--device cuda"),
    ] {
        let server = Server::launch(options);
        let code = server.exit(LIMIT).await;
        let log = server.log();
        assert_eq!(code, i32::from(exit::USAGE), "{log}");
        assert!(log.contains(said), "{said:?} is not in:\n{log}");
    }
}
