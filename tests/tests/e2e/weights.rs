//! Updates of the weights while the server runs. Running requests finish on the old
//! weights, new requests get the new weights, and speculation goes on with both models
//! changed.

use std::{
    fs,
    os::unix::fs::{FileExt, symlink},
    path::{Path, PathBuf},
};

use lockstep_tests::{
    MODEL,
    body::{completion, with},
    processes::Process,
    server::Server,
    sse, turns,
    wait::{LIMIT, until},
};
use serde_json::{Value, json};

use crate::options;

const PATH: &str = "/update_weights_from_disk";
/// Prompt that the demo model continues by counting.
const PROMPT: &str = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,";
/// Answer length in tokens: long enough to be running when the ranks have checked the
/// update.
const LONG: u32 = 800;
const SHORT: u32 = 40;

fn demo() -> PathBuf {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
    models
        .join("lockstep-demo-7m")
        .canonicalize()
        .expect("the demo model")
}

/// Copies the demo model with a reversed matrix in the first layer: the shapes stay,
/// the texts change.
pub fn other_weights(folder: &Path) {
    turned(folder, "model.layers.0.mlp.down_proj.weight");
}

/// Copies the demo model with the elements of the matrix `name` in reverse order.
fn turned(folder: &Path, name: &str) {
    copy_demo(folder);
    let file = folder.join("model.safetensors");
    let mut bytes = fs::read(&file).expect("weights");
    let header = usize::try_from(u64::from_le_bytes(
        bytes[..8].try_into().expect("eight bytes"),
    ))
    .expect("a size");
    let described: Value = serde_json::from_slice(&bytes[8..8 + header]).expect("a header");
    let matrix = &described[name];
    let at = |end: usize| {
        let offset = matrix["data_offsets"][end].as_u64().expect("an offset");
        8 + header + usize::try_from(offset).expect("a size")
    };
    let size = match matrix["dtype"].as_str() {
        Some("F32") => 4,
        _ => 2,
    };
    let (start, end) = (at(0), at(1));
    let turned: Vec<u8> = bytes[start..end].rchunks(size).flatten().copied().collect();
    bytes[start..end].copy_from_slice(&turned);
    fs::write(file, bytes).expect("written");
}

/// Copies the demo model to a new folder.
pub fn copy_demo(folder: &Path) {
    copy(&demo(), folder);
}

fn copy(from: &Path, folder: &Path) {
    fs::create_dir(folder).expect("a folder");
    for entry in fs::read_dir(from).expect("a model").flatten() {
        fs::copy(entry.path(), folder.join(entry.file_name())).expect("copied");
    }
}

fn counting(tokens: u32, fields: &Value) -> Value {
    let fields = with(json!({"max_tokens": tokens, "ignore_eos": true}), fields);
    completion(PROMPT, &fields)
}

/// Returns a text and the share of drafted tokens that were accepted.
async fn text(server: &Server, fields: &Value) -> (String, f64) {
    let answer = server.ok("/v1/completions", &counting(SHORT, fields)).await;
    let text = answer["choices"][0]["text"].as_str().expect("a text");
    let count = |field: &str| answer["usage"]["speculative"][field].as_f64();
    let share = count("accepted_tokens").zip(count("draft_tokens"));
    (
        text.to_owned(),
        share.map_or(0.0, |(accepted, drafted)| accepted / drafted),
    )
}

/// Starts a server that drafts with the target itself: nearly every draft is accepted
/// while both have the same weights. Updates may come from folders inside `updates`.
async fn server(updates: &Path) -> Server {
    let demo = demo();
    let options = options()
        .set("--speculative-algorithm", "STANDALONE")
        .set(
            "--speculative-draft-model-path",
            demo.to_str().expect("UTF-8"),
        )
        .flag("--speculative-adaptive=false");
    let options = options.set("--weight-update-dir", updates.to_str().expect("UTF-8"));
    Server::start(options).await
}

#[tokio::test]
async fn texts_change_with_the_weights_and_running_ones_do_not() {
    let _turn = turns::shared().await;
    let folder = tempfile::tempdir().expect("a folder");
    let updates = folder.path().canonicalize().expect("real");
    let other = updates.join("other");
    other_weights(&other);
    let other = other.to_str().expect("UTF-8");
    copy_demo(&updates.join("demo"));
    let server = server(&updates).await;
    let streaming = json!({"stream": true});
    let long = counting(LONG, &streaming);
    let alone = server.stream("/v1/completions", &long).await;
    let alone = sse::text(&alone.chunks().await, 0);
    let (before, share) = text(&server, &json!({})).await;
    assert!(share > 0.9, "{share}");

    let mut running = server.stream("/v1/completions", &long).await;
    let first = running.next().await;
    let update = json!({
        "model_path": other, "draft_model_path": other, "weight_version": "other",
    });
    let (answer, rest) = tokio::join!(server.ok(PATH, &update), running.chunks());
    assert_eq!(answer["success"], true, "{answer}");
    let sse::Event::Json(first) = first else {
        panic!("{first:?}");
    };
    let chunks: Vec<Value> = std::iter::once(first).chain(rest).collect();
    assert_eq!(sse::text(&chunks, 0), alone, "the old text, bit for bit");

    let (after, share) = text(&server, &json!({})).await;
    assert_ne!(after, before);
    assert!(share > 0.9, "the draft has the new weights too: {share}");
    let plain = text(&server, &json!({"speculative": {"enabled": false}})).await;
    assert_eq!(plain, (after, 0.0), "speculation changes no text");
    let info = server.get("/model_info").await.ok();
    assert_eq!(info["model_path"], other);
    assert_eq!(info["weight_version"], "other");
    assert_eq!(info["speculative"]["draft_model_path"], other);

    // Back to the old weights, with nothing left over.
    let back = json!({"model_path": "demo", "draft_model_path": "demo"});
    server.ok(PATH, &back).await;
    assert_eq!(text(&server, &json!({})).await.0, before);
    let metrics = server.metrics().await;
    assert_eq!(metrics.value("lockstep_kv_leaked_pages"), 0.0);
    assert_eq!(metrics.value("lockstep_kv_tokens_used"), 0.0);
}

/// A head reads the target's tables and hidden states. The head's folder is gone, but
/// the head drafts well for the new target, the model that it was made for.
#[tokio::test]
async fn a_draft_that_is_not_named_stays_and_its_folder_is_not_looked_at() {
    let _turn = turns::shared().await;
    let folder = tempfile::tempdir().expect("a folder");
    let updates = folder.path().canonicalize().expect("real");
    let (target, head) = (updates.join("target"), updates.join("head"));
    turned(&target, "model.embed_tokens.weight");
    copy(&demo().with_file_name("lockstep-demo-7m-eagle"), &head);
    copy_demo(&updates.join("demo"));
    let path = |folder: &Path| folder.to_str().expect("UTF-8").to_owned();
    let options = options()
        .set("--model-path", &path(&target))
        .set("--served-model-name", MODEL)
        .set("--speculative-algorithm", "EAGLE")
        .set("--speculative-draft-model-path", &path(&head))
        .flag("--speculative-adaptive=false")
        .set("--weight-update-dir", &path(&updates));
    let server = Server::start(options).await;
    let (_, share) = text(&server, &json!({})).await;
    assert!(
        share < 0.5,
        "the target's tables are those of no model: {share}"
    );
    fs::remove_dir_all(&head).expect("gone");
    server.ok(PATH, &json!({"model_path": "demo"})).await;
    let (after, share) = text(&server, &json!({})).await;
    assert!(after.contains("14, 15, 16"), "{after}");
    assert!(share > 0.5, "{share}");
    let info = server.get("/model_info").await.ok();
    assert_eq!(info["speculative"]["draft_model_path"], path(&head));
}

#[tokio::test]
async fn folders_that_do_not_fit_leave_everything_as_it_was() {
    let _turn = turns::shared().await;
    let parent = tempfile::tempdir().expect("a folder");
    let server = server(parent.path()).await;
    let (before, _) = text(&server, &json!({})).await;
    let good = parent.path().join("good");
    copy_demo(&good);
    let wide = parent.path().join("wide");
    copy_demo(&wide);
    let config = wide.join("config.json");
    let mut described: Value =
        serde_json::from_slice(&fs::read(&config).expect("read")).expect("JSON");
    described["intermediate_size"] = json!(640);
    fs::write(&config, described.to_string()).expect("written");
    let cut = parent.path().join("cut");
    copy_demo(&cut);
    let weights = cut.join("model.safetensors");
    let bytes = fs::read(&weights).expect("read");
    fs::write(&weights, &bytes[..bytes.len() / 2]).expect("written");
    let none = parent.path().join("none");
    symlink(demo(), parent.path().join("link")).expect("linked");
    let name = parent.path().file_name().expect("a name");
    for (target, draft) in [
        (&none, None),
        (&wide, None),
        (&cut, None),
        (&good, Some(&wide)),
        (&good, Some(&cut)),
        // This folder exists and would fit, but lies outside the allowed folder.
        (&demo(), None),
        (&good, Some(&demo())),
        (&parent.path().join("link"), None),
        (&parent.path().join("..").join(name).join("good"), None),
    ] {
        let mut update = json!({"model_path": target});
        if let Some(draft) = draft {
            update["draft_model_path"] = json!(draft);
        }
        let answer = server.post(PATH, &update).await;
        assert_eq!(answer.status, 400, "{update}: {}", answer.text);
        assert_eq!(answer.json()["success"], false);
        let (after, share) = text(&server, &json!({})).await;
        assert_eq!(after, before, "{update}");
        assert!(share > 0.9, "{update}: {share}");
    }
}

/// Log text once no client waits for the update any more.
const GIVEN_UP: &str = "the update of the weights was given up";
/// Log text once every rank has checked the new weights.
const LOOKED: &str = "waiting for what runs to end on the old weights";

/// Waits until the ranks have checked new weights `looks` times.
async fn looks(server: &Server, looks: usize) {
    until("a look", LIMIT, async || {
        let said = server.log().matches(LOOKED).count();
        (said == looks).then_some(())
    })
    .await;
}

/// Counts the files that a server's processes hold open in a folder.
fn open_in(server: &Server, folder: &Path) -> usize {
    let links = |process: Process| {
        let entries = fs::read_dir(format!("/proc/{}/fd", process.pid));
        entries.expect("it lives").flatten()
    };
    let open = server.processes().into_iter().flat_map(links);
    open.filter(|link| fs::read_link(link.path()).is_ok_and(|file| file.starts_with(folder)))
        .count()
}

#[tokio::test]
async fn folders_of_an_update_that_is_off_are_closed() {
    let _turn = turns::shared().await;
    let folder = tempfile::tempdir().expect("a folder");
    let updates = folder.path().canonicalize().expect("real");
    copy_demo(&updates.join("good"));
    let server = server(&updates).await;
    let long = counting(LONG, &json!({"stream": true}));
    let mut running = server.stream("/v1/completions", &long).await;
    running.next().await;
    let update = json!({"model_path": "good"});
    tokio::select! {
        answer = server.post(PATH, &update) => panic!("{}", answer.text),
        () = looks(&server, 1) => assert!(open_in(&server, &updates) > 0, "they are kept"),
    }
    // The client of the update has left.
    until("closed folders", LIMIT, async || {
        (open_in(&server, &updates) == 0).then_some(())
    })
    .await;
    assert!(server.log().contains(GIVEN_UP));
    running.chunks().await;
    server.ok(PATH, &update).await;
    assert_eq!(open_in(&server, &updates), 0, "they have been read");
}

/// The ranks read the folder that they have checked. If the files changed, the ranks
/// take nothing.
#[tokio::test]
async fn what_changes_after_the_look_is_not_read() {
    let _turn = turns::shared().await;
    let folder = tempfile::tempdir().expect("a folder");
    let updates = folder.path().canonicalize().expect("real");
    let (good, other) = (updates.join("good"), updates.join("other"));
    copy_demo(&good);
    other_weights(&other);
    let server = server(&updates).await;
    let (before, _) = text(&server, &json!({})).await;
    let long = counting(LONG, &json!({"stream": true}));
    // Updates the weights, and runs `between` after the check and before the reading.
    let update = async |count: usize, between: &dyn Fn()| {
        let mut running = server.stream("/v1/completions", &long).await;
        running.next().await;
        let between = async {
            looks(&server, count).await;
            between();
        };
        let wanted = json!({"model_path": good});
        let (answer, (), _) = tokio::join!(server.post(PATH, &wanted), between, running.chunks());
        answer
    };
    let exchange = || {
        fs::rename(&good, updates.join("moved")).expect("moved");
        fs::rename(&other, &good).expect("moved");
    };
    update(1, &exchange).await.ok();
    let after = text(&server, &json!({})).await.0;
    assert_eq!(after, before, "the folder that was looked at");
    let write = || {
        let file = good.join("model.safetensors");
        let file = fs::OpenOptions::new().write(true).open(file);
        let file = file.expect("there");
        let last = file.metadata().expect("open").len() - 1;
        file.write_all_at(&[0], last).expect("written");
    };
    let answer = update(2, &write).await;
    assert_eq!(answer.status, 400, "{}", answer.text);
    assert!(answer.text.contains("changed"), "{}", answer.text);
    let after = text(&server, &json!({})).await.0;
    assert_eq!(after, before, "the old weights");
    server.ok(PATH, &json!({"model_path": good})).await;
    let after = text(&server, &json!({})).await.0;
    assert_ne!(after, before, "once it is left alone");
}
