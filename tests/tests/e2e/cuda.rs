//! Tests of a server on a GPU. Cargo puts fake CUDA libraries on the library path of
//! the tests and of all processes that they start.

use std::path::Path;
use std::process::Command;

use lockstep_process::exit;
use lockstep_tests::{
    body::{COUNTED, counting},
    server::{Options, Server},
    turns,
    wait::{LIMIT, until},
};
use rustix::process::Signal;
use serde_json::json;

use crate::{options, weights::copy_demo};

mod ranks;

/// Serves the demo model and its head on one GPU.
fn on_gpu() -> Options {
    small_on_gpus(options())
        .without("--tp-size")
        .set("--context-length", "256")
}

/// Serves the demo model and its head with a small cache, one rank on each GPU.
fn small_on_gpus(options: Options) -> Options {
    options
        .without("--threads-per-rank")
        .set("--max-total-tokens", "2048")
        .set("--max-running-requests", "4")
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
    assert!(log.contains(", cuda 0 "), "{log}");
}

/// Without being asked the server takes a GPU, and one rank of the demo model for it.
#[tokio::test]
async fn a_gpu_serves_where_there_is_one() {
    let _turn = turns::alone().await;
    let options = on_gpu().without("--device").without_env("LOCKSTEP_DEVICE");
    let server = Server::start(options).await;
    let answer = server
        .ok("/v1/chat/completions", &counting(&json!({})))
        .await;
    assert_eq!(answer["choices"][0]["message"]["content"], COUNTED);
    let log = server.log();
    assert!(
        log.contains(", cuda 0 ") && log.contains("1 rank "),
        "{log}"
    );
    assert!(!log.contains("Note: --device"), "{log}");
}

/// If the GPU can't be used, the processor serves, and the start says why. The demo model then
/// has its two ranks.
#[tokio::test]
async fn the_processor_serves_where_a_gpu_cannot() {
    if !lockstep_fake_cuda::seed(1) {
        return; // Only a fake machine can be made to lack something.
    }
    let _turn = turns::alone().await;
    let driver = libraries(&["libcuda.so"]);
    let path = driver.path().to_string_lossy().into_owned();
    for (name, value, said) in [
        ("LD_LIBRARY_PATH", &*path, "libnvrtc.so was not found"),
        ("FAKE_CUDA_CAPABILITY", "75", "compute capability 7.5"),
        ("FAKE_CUDA_MEMORY", "120000000", "--mem-fraction-static"),
    ] {
        let options = on_gpu().without("--device").without_env("LOCKSTEP_DEVICE");
        let server = Server::start(options.env(name, value)).await;
        let log = server.log();
        let note = log
            .lines()
            .find(|line| line.starts_with("Note: --device auto takes the processor: "));
        assert!(
            note.is_some_and(|note| note.contains(said)),
            "{said}: {log}"
        );
        assert!(log.contains("2 ranks "), "{log}");
    }
}

/// Runs a command, and returns its stdout.
fn printed(words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep-under-test"));
    let output = command.args(words).env_remove("LOCKSTEP_DEVICE").output();
    let output = output.expect("the program runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[tokio::test]
async fn commands_without_a_server_compute_on_a_gpu() {
    let _turn = turns::alone().await;
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().to_string_lossy().into_owned();
    // The first one compiles kernels, which the others find.
    let first = printed(&["pack", "--device", "cuda", "--weight-cache", &cache]);
    assert!(first.contains("files of compiled kernels"), "{first}");
    let again = printed(&["pack", "--weight-cache", &cache]);
    assert_eq!(first, again, "nothing is compiled twice");
    let text = printed(&["generate", "Count from 3 to 12.", "--weight-cache", &cache]);
    assert!(text.contains(COUNTED), "{text}");
}

/// Two copies of the weights do not fit into memory. The update is refused at once, and
/// the server goes on with the present weights.
#[tokio::test]
async fn an_update_without_room_is_refused_with_sizes() {
    if !lockstep_fake_cuda::seed(1) {
        return; // A real GPU has room.
    }
    let _turn = turns::alone().await;
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("same");
    copy_demo(&folder);
    let options = on_gpu()
        .set("--weight-update-dir", &dir.path().to_string_lossy())
        // With fixed depths no steps are timed before serving.
        .flag("--speculative-adaptive=false")
        // The memory kept free for graphs is more than the fake's graphs take.
        .flag("--disable-cuda-graph")
        .env("FAKE_CUDA_CODE", "67108864")
        .env("FAKE_CUDA_MEMORY", "186000000");
    let server = Server::start(options).await;
    let path = json!({"model_path": folder});
    let answer = server.post("/update_weights_from_disk", &path).await;
    assert_eq!(answer.status, 400, "{}", answer.text);
    for words in [
        "beside the present ones",
        "GiB free",
        "--mem-fraction-static",
    ] {
        assert!(
            answer.text.contains(words),
            "{words:?} is not in {}",
            answer.text
        );
    }
    let asked = counting(&json!({}));
    let answer = server.ok("/v1/chat/completions", &asked).await;
    assert_eq!(answer["choices"][0]["message"]["content"], COUNTED);
}

/// Makes a folder with the CUDA libraries `names`.
fn libraries(names: &[&str]) -> tempfile::TempDir {
    let path = std::env::var("LD_LIBRARY_PATH").expect("cargo sets it");
    let mut all = path
        .split(':')
        .map(|folder| Path::new(folder).join("libcuda.so"));
    let fake = all
        .find_map(|file| file.canonicalize().ok())
        .expect("the fake libraries");
    let folder = tempfile::tempdir().expect("a folder");
    for name in names {
        std::os::unix::fs::symlink(&fake, folder.path().join(name)).expect("a link");
    }
    folder
}

/// Lets a kernel fail while a request runs. The client gets an error, and the server
/// ends with [`exit::PROCESS_DIED`]. The log must contain all of `reasons`.
async fn fails_at(launch: &str, options: Options, reasons: &[&str]) {
    let server = Server::start(options.env("FAKE_CUDA_FAULT", launch)).await;
    let asked = counting(&json!({}));
    let answer = server.post("/v1/chat/completions", &asked).await;
    assert!(answer.status >= 500, "{}", answer.text);
    let code = server.exit(LIMIT).await;
    let log = server.log();
    assert_eq!(code, i32::from(exit::PROCESS_DIED), "{log}");
    for reason in ["attend: a planted fault"].iter().chain(reasons) {
        assert!(log.contains(reason), "{reason:?} is not in:\n{log}");
    }
}

#[tokio::test]
async fn a_kernel_that_fails_ends_the_server() {
    if !lockstep_fake_cuda::seed(1) {
        return; // A real kernel fails when nobody wants it.
    }
    let _turn = turns::alone().await;
    // Without drafts and graphs, the number of steps before serving does not matter.
    let options = on_gpu()
        .set("--speculative-algorithm", "none")
        .flag("--disable-cuda-graph");
    fails_at("attend:40", options, &["Xid"]).await;
}

/// Stops a start while the copy of the weights to the device hangs.
#[tokio::test]
async fn a_load_that_is_stopped_ends_as_it_was_asked_to() {
    if !lockstep_fake_cuda::seed(1) {
        return; // A real device hangs when nobody wants it.
    }
    let _turn = turns::shared().await;
    let folder = tempfile::tempdir().expect("a folder");
    let hangs = folder.path().join("hangs");
    let server = Server::launch(on_gpu().env("FAKE_CUDA_HANG", &hangs.to_string_lossy()));
    until("weights on their way", LIMIT, async || {
        assert_eq!(server.ended(), None, "{}", server.log());
        hangs.exists().then_some(())
    })
    .await;
    server.signal(Signal::TERM).await;
    let code = server.exit(LIMIT).await;
    let log = server.log();
    assert_eq!(code, i32::from(exit::OK), "{log}");
    assert!(log.contains("SIGTERM during the start"), "{log}");
    assert!(!log.contains("panicked"), "{log}");
}

/// The weights file ends in the middle of a matrix.
#[tokio::test]
async fn a_load_that_fails_ends_the_start() {
    let _turn = turns::shared().await;
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("shorter");
    copy_demo(&folder);
    let weights = folder.join("model.safetensors");
    let weights = std::fs::File::options().write(true).open(weights);
    let weights = weights.expect("the weights");
    let len = weights.metadata().expect("a file").len();
    weights.set_len(len / 2).expect("a shorter file");
    let server = Server::launch(
        on_gpu()
            .set("--model-path", &folder.to_string_lossy())
            .set("--speculative-algorithm", "none"),
    );
    let code = server.exit(LIMIT).await;
    let log = server.log();
    assert_eq!(code, i32::from(exit::START_FAILED), "{log}");
    assert!(
        log.contains("model.safetensors") && log.contains("download"),
        "{log}"
    );
    assert!(!log.contains("panicked"), "{log}");
}

/// The start fails if another process takes memory that the configuration counted on.
#[tokio::test]
async fn a_worker_without_memory_ends_the_start() {
    if !lockstep_fake_cuda::seed(1) {
        return; // A real GPU has what it says.
    }
    let _turn = turns::shared().await;
    let options = on_gpu()
        .flag("--disable-cuda-graph")
        .env("FAKE_CUDA_MEMORY", "60000000")
        .env("FAKE_CUDA_HIDDEN", "200000000");
    let server = Server::launch(options);
    let code = server.exit(LIMIT).await;
    let log = server.log();
    assert_eq!(code, i32::from(exit::START_FAILED), "{log}");
    let said = "bytes, which the device does not have; lower --mem-fraction-static";
    assert!(log.contains(said), "{log}");
}

/// A missing library, GPU or amount of memory is named before any process starts.
#[tokio::test]
async fn gpus_that_cannot_serve_are_refused_with_the_remedy() {
    if !lockstep_fake_cuda::seed(1) {
        return; // Only a fake machine can be made to lack something.
    }
    let _turn = turns::shared().await;
    let driver = libraries(&["libcuda.so"]);
    let compiler = libraries(&["libcuda.so", "libnvrtc.so"]);
    let path = |folder: &tempfile::TempDir| folder.path().to_string_lossy().into_owned();
    for (options, said) in [
        (
            on_gpu().env("LD_LIBRARY_PATH", &path(&driver)),
            "libnvrtc.so was not found: install CUDA's run-time compiler",
        ),
        (
            on_gpu().env("LD_LIBRARY_PATH", &path(&compiler)),
            "libcublasLt.so was not found: install CUDA's matrix products",
        ),
        (
            on_gpu().env("FAKE_NVRTC_BUILTINS", "missing"),
            "libnvrtc-builtins",
        ),
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
            on_gpu().env("FAKE_CUDA_MEMORY", "120000000"),
            "--mem-fraction-static",
        ),
        (on_gpu().set("--base-gpu-id", "9"), "there is no GPU 9"),
        (
            on_gpu().set("--tp-size", "4").env("FAKE_CUDA_DEVICES", "2"),
            "--gpu-id-step 0",
        ),
    ] {
        let server = Server::launch(options);
        let code = server.exit(LIMIT).await;
        let log = server.log();
        assert_eq!(code, i32::from(exit::USAGE), "{log}");
        assert!(log.contains(said), "{said:?} is not in:\n{log}");
    }
}
