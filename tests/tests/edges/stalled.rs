//! Weights on a disk that stops answering in the middle of a file.

use std::{
    env,
    fs::{self, OpenOptions},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use lockstep_tests::{body::completion, server::Server, turns, wait::LIMIT, wait::until};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use serde_json::{Value, json};

use crate::{folders::copy_demo, options};

const PATH: &str = "/update_weights_from_disk";

/// Source of a library that is preloaded before the system's own. Reads in the range
/// from `FROM` to `TO` of a file inside a folder `stalled` block until the pipe `GATE`
/// has a writer.
const STALLS: &str = r#"
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

extern "C" ssize_t pread64(int fd, void *into, size_t size, off64_t at) {
    typedef ssize_t (*Read)(int, void *, size_t, off64_t);
    static Read real = (Read)dlsym(RTLD_NEXT, "pread64");
    const char *gate = getenv("GATE"), *from = getenv("FROM"), *to = getenv("TO");
    if (gate && from && to && at >= atoll(from) && at < atoll(to)) {
        char link[64], path[4096];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, path, sizeof path - 1);
        path[length < 0 ? 0 : length] = 0;
        if (strstr(path, "/stalled/")) close(open(gate, O_RDONLY));
    }
    return real(fd, into, size, at);
}
"#;

/// Compiles [`STALLS`] to a library in `folder`.
fn library(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("stalls.cc"), folder.join("stalls.so"));
    fs::write(&source, STALLS).expect("written");
    let compiler = env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let compiled = Command::new(compiler)
        .args(["-shared", "-fPIC", "-D_GNU_SOURCE", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .status();
    assert!(compiled.expect("a compiler").success());
    library
}

/// Returns the offsets in the file of the upper half of the matrix `name`. Only the
/// first of two ranks reads this half.
fn upper_half(file: &Path, name: &str) -> (u64, u64) {
    let bytes = fs::read(file).expect("weights");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    let end = 8 + usize::try_from(header).expect("a size");
    let described: Value = serde_json::from_slice(&bytes[8..end]).expect("a header");
    let offset = |at: usize| described[name]["data_offsets"][at].as_u64().expect("one");
    let (start, end) = (offset(0), offset(1));
    (8 + header + start, 8 + header + start.midpoint(end))
}

#[tokio::test]
async fn a_disk_that_stalls_leaves_the_old_weights_serving() {
    let _turn = turns::shared().await;
    let folder = tempfile::tempdir().expect("a folder");
    let updates = folder.path().join("updates");
    for name in ["stalled", "good"] {
        copy_demo(&updates.join(name), "");
    }
    let gate = folder.path().join("gate");
    mknodat(CWD, &gate, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("made");
    let matrix = "model.layers.1.mlp.gate_proj.weight";
    let (from, to) = upper_half(&updates.join("stalled/model.safetensors"), matrix);
    let name = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let options = options()
        .set("--weight-update-dir", &name(&updates))
        .set("--weight-update-timeout", "2")
        .env("LD_PRELOAD", &name(&library(folder.path())))
        .env("GATE", &name(&gate))
        .env("FROM", &from.to_string())
        .env("TO", &to.to_string());
    let server = Server::start(options).await;
    let greedy = completion("1, 2, 3,", &json!({"max_tokens": 24}));
    let before = server.ok("/v1/completions", &greedy).await;
    let processes = server.processes();

    let answer = server.post(PATH, &json!({"model_path": "stalled"})).await;
    assert_eq!(answer.status, 400, "{}", answer.text);
    let error = answer.json()["message"].as_str().map(str::to_owned);
    let error = error.unwrap_or_default();
    assert!(error.contains("--weight-update-timeout"), "{}", answer.text);
    let after = server.ok("/v1/completions", &greedy).await;
    assert_eq!(after["choices"], before["choices"]);

    // The read that still hangs does not block the reading of other weights.
    let good = server.ok(PATH, &json!({"model_path": "good"})).await;
    assert_eq!(good["success"], true, "{good}");
    assert_eq!(server.processes(), processes, "nobody was replaced");
    let writer = || {
        let mut gate_options = OpenOptions::new();
        gate_options.write(true);
        gate_options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        gate_options.open(&gate)
    };
    // A rank must have been blocked at the gate, or the test has shown nothing.
    drop(until("the reader", LIMIT, async || writer().ok()).await);
    let after = server.ok("/v1/completions", &greedy).await;
    assert_eq!(after["choices"], before["choices"]);
}
