//! Folders of weights with unexpected files.

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, symlink},
    path::{Path, PathBuf},
};

use futures::{StreamExt, stream};
use lockstep_process::exit;
use lockstep_tests::{
    MODEL,
    body::{COUNTED, completion, counting},
    row::Row,
    server::Server,
    turns,
    wait::{LIMIT, within},
};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;
use tokio::process::Command;

use crate::{one_rank, options};

const PATH: &str = "/update_weights_from_disk";

fn demo() -> PathBuf {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
    models
        .join("lockstep-demo-7m")
        .canonicalize()
        .expect("the demo model")
}

/// Copies the demo model's files to `folder`, all but `left_out`.
pub fn copy_demo(folder: &Path, left_out: &str) {
    fs::create_dir_all(folder).expect("a folder");
    for entry in fs::read_dir(demo()).expect("the demo model").flatten() {
        if entry.file_name() != left_out {
            fs::copy(entry.path(), folder.join(entry.file_name())).expect("copied");
        }
    }
}

type Make = fn(&Path);

/// Returns odd things that may stand in place of a file, each by name.
fn odd_files() -> Vec<(&'static str, Make)> {
    fn pipe(path: &Path) {
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("made");
    }
    fn outside(path: &Path) {
        let name = path.file_name().expect("a name");
        symlink(demo().join(name), path).expect("linked");
    }
    fn endless(path: &Path) {
        symlink("/dev/zero", path).expect("linked");
    }
    fn itself(path: &Path) {
        symlink(path, path).expect("linked");
    }
    fn folder(path: &Path) {
        fs::create_dir(path).expect("made");
    }
    /// Makes a file that claims a header, or a text, of about a terabyte.
    fn huge(path: &Path) {
        let file = File::create(path).expect("made");
        file.set_len(1 << 40).expect("a hole");
        file.write_all_at(&(1u64 << 39).to_le_bytes(), 0)
            .expect("written");
    }
    fn short(path: &Path) {
        fs::write(path, [0xFF; 12]).expect("written");
    }
    vec![
        ("pipe", pipe),
        ("outside", outside),
        ("endless", endless),
        ("itself", itself),
        ("folder", folder),
        ("huge", huge),
        ("short", short),
    ]
}

#[tokio::test]
async fn odd_files_are_refused_at_once_and_the_old_weights_serve() {
    let _turn = turns::shared().await;
    let updates = tempfile::tempdir().expect("a folder");
    let server = Server::start(options().set(
        "--weight-update-dir",
        updates.path().to_str().expect("UTF-8"),
    ))
    .await;
    let greedy = completion("1, 2, 3,", &json!({"max_tokens": 24}));
    let text = async || {
        let answer = server.ok("/v1/completions", &greedy).await;
        answer["choices"][0]["text"]
            .as_str()
            .expect("a text")
            .to_owned()
    };
    let before = text().await;
    for name in ["config.json", "generation_config.json", "model.safetensors"] {
        for (kind, make) in odd_files() {
            update(&server, updates.path(), (kind, make), name).await;
            assert_eq!(text().await, before, "{kind} {name}");
        }
    }
}

/// Asks for an update from a folder with an odd file, and checks that it is refused.
async fn update(server: &Server, updates: &Path, (kind, make): (&str, Make), name: &str) {
    let folder = format!("{kind}-{name}");
    copy_demo(&updates.join(&folder), name);
    make(&updates.join(&folder).join(name));
    let answer = server.post(PATH, &json!({"model_path": folder})).await;
    assert_eq!(answer.status, 400, "{folder}: {}", answer.text);
    assert_eq!(answer.json()["success"], false, "{folder}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full size"]
async fn odd_files_beside_an_innocent_client() {
    let _turn = turns::alone().await;
    let updates = tempfile::tempdir().expect("a folder");
    let folder = updates.path().to_str().expect("UTF-8");
    let server = Server::start(options().set("--weight-update-dir", folder)).await;
    let row = Row::begin("08", &server);
    for name in ["config.json", "model.safetensors"] {
        for odd in odd_files() {
            update(&server, updates.path(), odd, name).await;
        }
    }
    row.end(&server, "14 updates from odd folders: 400").await;
}

#[tokio::test]
async fn odd_drafts_are_refused_and_the_old_ones_draft() {
    let _turn = turns::shared().await;
    let updates = tempfile::tempdir().expect("a folder");
    let name = |folder: &Path| folder.to_str().expect("UTF-8").to_owned();
    let options = options()
        .set("--weight-update-dir", &name(updates.path()))
        .set("--speculative-algorithm", "STANDALONE")
        .set("--speculative-draft-model-path", &name(&demo()));
    let server = Server::start(options).await;
    let greedy = completion("1, 2, 3,", &json!({"max_tokens": 24}));
    let before = server.ok("/v1/completions", &greedy).await;
    copy_demo(&updates.path().join("good"), "");
    for name in ["config.json", "model.safetensors"] {
        for (kind, make) in odd_files() {
            let folder = format!("{kind}-{name}");
            copy_demo(&updates.path().join(&folder), name);
            make(&updates.path().join(&folder).join(name));
            let update = json!({"model_path": "good", "draft_model_path": folder});
            let answer = server.post(PATH, &update).await;
            assert_eq!(answer.status, 400, "{folder}: {}", answer.text);
            assert_eq!(answer.json()["success"], false, "{folder}");
            let after = server.ok("/v1/completions", &greedy).await;
            assert_eq!(after["choices"], before["choices"], "{folder}");
        }
    }
    let metrics = server.metrics().await;
    assert!(metrics.value("lockstep_spec_accepted_tokens_total") > 0.0);
}

#[tokio::test]
async fn a_start_from_an_odd_folder_ends_and_names_the_file() {
    let _turn = turns::shared().await;
    let models = tempfile::tempdir().expect("a folder");
    let mut starts = Vec::new();
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        for (kind, make) in odd_files() {
            let model = models.path().join(format!("{kind}-{name}"));
            copy_demo(&model, name);
            make(&model.join(name));
            let options = one_rank().set("--model-path", model.to_str().expect("UTF-8"));
            starts.push((kind, name, options));
        }
    }
    let fails = async |(kind, name, options)| {
        let server = Server::launch(options);
        let code = server.exit(LIMIT).await;
        let log = server.log();
        let codes = [exit::START_FAILED, exit::USAGE].map(i32::from);
        assert!(codes.contains(&code), "{kind} {name}: {code}\n{log}");
        assert!(log.contains(name), "{kind} {name}:\n{log}");
    };
    let starts = stream::iter(starts).map(fails);
    starts.buffer_unordered(2).collect::<Vec<()>>().await;
}

#[tokio::test]
async fn odd_files_among_packed_weights_are_passed_over() {
    let _turn = turns::shared().await;
    let cache = tempfile::tempdir().expect("a folder");
    let generate = async || {
        let generate = Command::new(env!("CARGO_BIN_EXE_lockstep-under-test"))
            .args([
                "generate",
                "--tp-size",
                "1",
                "--threads",
                "1",
                "--weight-cache",
            ])
            .arg(cache.path())
            .arg("Count from 3 to 12.")
            .kill_on_drop(true)
            .output();
        let output = within("a text", LIMIT, generate).await.expect("it runs");
        assert!(output.status.success(), "{output:?}");
        output
    };
    let packed = || -> Vec<PathBuf> {
        let entries = fs::read_dir(cache.path()).expect("the cache").flatten();
        let paths = entries.map(|entry| entry.path());
        paths
            .filter(|path| path.extension().is_some_and(|end| end == "packed"))
            .collect()
    };
    let first = generate().await;
    for (kind, make) in odd_files() {
        let [file] = &packed()[..] else {
            panic!("{kind}: {:?}", packed());
        };
        fs::remove_file(file).expect("removed");
        make(file);
        let again = generate().await;
        assert_eq!(again.stdout, first.stdout, "{kind}");
        let said = String::from_utf8_lossy(&again.stderr);
        let told = said.contains("packed anew") || said.contains("no packed weights are kept");
        assert!(told, "{kind}: {said}");
        if file.is_dir() {
            fs::remove_dir(file).expect("removed");
            generate().await;
        }
    }
}

/// The folder has the layout of the Hugging Face Hub's cache.
#[tokio::test]
async fn a_snapshot_of_the_hubs_cache_is_served() {
    let _turn = turns::shared().await;
    let cache = tempfile::tempdir().expect("a folder");
    let repository = cache.path().join("models--lockstep--demo");
    let snapshot = repository.join("snapshots/0a1b2c");
    fs::create_dir_all(&snapshot).expect("made");
    copy_demo(&repository.join("blobs"), "");
    for entry in fs::read_dir(repository.join("blobs"))
        .expect("blobs")
        .flatten()
    {
        let name = entry.file_name();
        symlink(Path::new("../../blobs").join(&name), snapshot.join(&name)).expect("linked");
    }
    let options = options()
        .set("--model-path", snapshot.to_str().expect("UTF-8"))
        .set("--served-model-name", MODEL);
    let server = Server::start(options).await;
    let answer = server
        .ok("/v1/chat/completions", &counting(&json!({})))
        .await;
    assert_eq!(answer["choices"][0]["message"]["content"], COUNTED);
}
