//! Model folders whose files contradict each other, as trainers and converters leave
//! them behind.

use std::{
    fs,
    path::{Path, PathBuf},
};

use futures::StreamExt;
use lockstep_proto::pb::sglang::grpc::scheduler::{
    GetModelInfoRequest, generate_response::Response,
};
use lockstep_tests::{
    MODEL,
    body::{COUNTED, counting, with},
    server::{Options, Server},
    turns,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{options, ranks::data_parallel, sglang::greedy, weights::copy_demo};

const CHAT: &str = "/v1/chat/completions";
const UPDATE: &str = "/update_weights_from_disk";
/// Token that ends counting answers. The tokenizer calls it its end token.
const END: u32 = 2;

/// Copies the demo model to `name` inside `parent` and applies `change` to the copy.
fn model(parent: &Path, name: &str, change: impl FnOnce(&Path)) -> PathBuf {
    let folder = parent.join(name);
    copy_demo(&folder);
    change(&folder);
    folder
}

fn parent() -> (TempDir, PathBuf) {
    let parent = tempfile::tempdir().expect("a folder");
    let real = parent.path().canonicalize().expect("real");
    (parent, real)
}

/// Path of a model that is made for the demo model, such as a head.
fn of_demo(name: &str) -> String {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
    let folder = models.join(name).canonicalize().expect("a model");
    path(&folder)
}

fn path(folder: &Path) -> String {
    folder.to_str().expect("UTF-8").to_owned()
}

fn serving(options: Options, folder: &Path) -> Options {
    let options = options.set("--model-path", &path(folder));
    options.set("--served-model-name", MODEL)
}

fn drafting(options: Options, algorithm: &str, draft: &str) -> Options {
    let options = options.set("--speculative-algorithm", algorithm);
    options.set("--speculative-draft-model-path", &of_demo(draft))
}

/// Changes keys of a JSON file. A null removes its key.
fn rewrite(folder: &Path, file: &str, fields: &Value) {
    let file = folder.join(file);
    let text = fs::read(&file).expect("read");
    let written = with(serde_json::from_slice(&text).expect("JSON"), fields);
    fs::write(file, written.to_string()).expect("written");
}

#[tokio::test]
async fn the_tokenizers_end_token_ends_answers_whatever_the_models_files_name() {
    let (_parent, folders) = parent();
    for (name, config, generation, ends) in [
        ("both", json!(2), json!(2), vec![END]),
        ("other", json!(0), json!(0), vec![0, END]),
        ("others", json!(0), json!([0, 5]), vec![0, END, 5]),
        ("none", json!(null), json!(null), vec![END]),
    ] {
        let _turn = turns::shared().await;
        let folder = model(&folders, name, |folder| {
            rewrite(folder, "config.json", &json!({"eos_token_id": config}));
            let field = json!({"eos_token_id": generation});
            rewrite(folder, "generation_config.json", &field);
        });
        let options = drafting(options(), "STANDALONE", "lockstep-demo-1m-draft");
        let server = Server::start(serving(options, &folder)).await;
        ends_at(&server, &ends).await;
    }
}

/// Checks that the tokens `ends` end answers, with and without drafts.
async fn ends_at(server: &Server, ends: &[u32]) {
    for drafts in [true, false] {
        let ask = async |fields: Value| {
            let fields = with(json!({"speculative": {"enabled": drafts}}), &fields);
            let answer = server.ok(CHAT, &counting(&fields)).await;
            let choice = &answer["choices"][0];
            let text = choice["message"]["content"].as_str().expect("a text");
            let drafted = answer["usage"]["speculative"]["draft_tokens"].as_u64();
            assert_eq!(
                drafted.is_some_and(|drafted| drafted > 0),
                drafts,
                "{answer}"
            );
            let tokens = answer["usage"]["completion_tokens"].as_u64();
            (
                text.to_owned(),
                choice["finish_reason"].clone(),
                tokens.expect("a number"),
            )
        };
        let (text, reason, tokens) = ask(json!({"max_tokens": 120})).await;
        assert_eq!(
            (text.as_str(), &reason),
            (COUNTED, &json!("stop")),
            "{ends:?}"
        );
        let longer = tokens + 10;
        let (text, _, at_least) = ask(json!({"max_tokens": 120, "min_tokens": longer})).await;
        assert!(text.starts_with(COUNTED), "{text}");
        assert!(at_least >= longer, "{ends:?}: {at_least} of {longer}");
        let ignored = json!({"max_tokens": longer, "ignore_eos": true});
        let (_, reason, all) = ask(ignored).await;
        assert_eq!((all, &reason), (longer, &json!("length")), "{ends:?}");
    }
    let mut sorted = ends.to_vec();
    sorted.sort_unstable();
    let info = server.get("/model_info").await.ok();
    assert_eq!(info["eos_token_ids"], json!(sorted));
    let mut gateway = server.sglang().await;
    let info = gateway.get_model_info(GetModelInfoRequest {}).await;
    let listed = info.expect("an answer").into_inner().eos_token_ids;
    assert_eq!(json!(listed), json!(sorted));
    let message = json!([{"role": "user", "content": "Count from 3 to 12."}]);
    let tokens = server.ok("/tokenize", &json!({"messages": message})).await["tokens"].clone();
    let prompt = serde_json::from_value(tokens).expect("tokens");
    let stream = gateway.generate(greedy("a-request", prompt, 120)).await;
    let messages: Vec<_> = stream.expect("accepted").into_inner().collect().await;
    let last = messages
        .into_iter()
        .last()
        .expect("an end")
        .expect("a message");
    let Some(Response::Complete(end)) = last.response else {
        panic!("{last:?}");
    };
    assert_eq!(end.finish_reason, "stop");
}

/// The first token of the demo model's answer. [`store_head`] exchanges its row with
/// the row of [`OTHER`].
const FIRST: usize = 21;
const OTHER: usize = 300;

/// Stores an output head equal to the embedding. With `differs`, two rows are
/// exchanged.
fn store_head(folder: &Path, differs: bool) {
    let file = folder.join("model.safetensors");
    let bytes = fs::read(&file).expect("weights");
    let (length, rest) = bytes.split_at(8);
    let length = u64::from_le_bytes(length.try_into().expect("eight bytes"));
    let (header, data) = rest.split_at(usize::try_from(length).expect("a size"));
    let mut header: Value = serde_json::from_slice(header).expect("a header");
    let mut head = header["model.embed_tokens.weight"].clone();
    let at = |end: usize| {
        let offset = head["data_offsets"][end].as_u64().expect("an offset");
        usize::try_from(offset).expect("a size")
    };
    let mut table = data[at(0)..at(1)].to_vec();
    if differs {
        let rows = head["shape"][0].as_u64().expect("rows");
        let width = table.len() / usize::try_from(rows).expect("a size");
        for byte in 0..width {
            table.swap(FIRST * width + byte, OTHER * width + byte);
        }
    }
    head["data_offsets"] = json!([data.len(), data.len() + table.len()]);
    header["lm_head.weight"] = head;
    let header = header.to_string();
    let length = (header.len() as u64).to_le_bytes();
    let all = [&length, header.as_bytes(), data, &table].concat();
    fs::write(file, all).expect("written");
}

/// Returns the tokens of an answer.
async fn tokens(server: &Server) -> Vec<usize> {
    let message = json!([{"role": "user", "content": "Count from 3 to 12."}]);
    let prompt = server.ok("/tokenize", &json!({"messages": message})).await["tokens"].clone();
    let request = json!({"input_ids": prompt, "sampling_params":
                         {"temperature": 0, "max_new_tokens": 12, "ignore_eos": true}});
    let answer = server.ok("/generate", &request).await;
    serde_json::from_value(answer["output_ids"].clone()).expect("tokens")
}

/// Log text about an output head that `config.json` says is not stored.
const STORED: &str = "the stored output head (lm_head.weight) is served";

#[tokio::test]
async fn a_stored_head_that_differs_is_the_head_on_any_ranks() {
    let (parent, folders) = parent();
    let folder = |name: &str, tied: bool, differs: bool| {
        model(&folders, name, |folder| {
            rewrite(folder, "config.json", &json!({"tie_word_embeddings": tied}));
            store_head(folder, differs);
        })
    };
    let (equal, tied) = (folder("equal", true, false), folder("tied", true, true));
    let untied = folder("untied", false, true);
    let cached = |options: Options| options.set("--weight-cache", &path(&parent.path().join("c")));
    let one = || options().set("--tp-size", "1");
    let eagle = |options| drafting(options, "EAGLE", "lockstep-demo-7m-eagle");
    let mut texts = Vec::new();
    for (options, folder, first) in [
        (cached(one()), &equal, FIRST),
        (cached(one()), &tied, OTHER),
        (cached(one()), &untied, OTHER),
        (options(), &tied, OTHER),
        (eagle(options()), &tied, OTHER),
        (eagle(one()), &tied, OTHER),
        (eagle(data_parallel(options(), (2, 2))), &tied, OTHER),
        (data_parallel(options(), (2, 2)), &equal, FIRST),
        (one().set("--quantization", "int8"), &tied, OTHER),
    ] {
        let _turn = turns::shared().await;
        let server = Server::start(serving(options.clone(), folder)).await;
        let text = tokens(&server).await;
        assert_eq!(text[0], first, "{folder:?} {options:?}");
        assert_eq!(
            server.log().contains(STORED),
            folder == &tied,
            "{}",
            server.log()
        );
        texts.push(text);
    }
    let quantized = texts.pop().expect("the last");
    assert_eq!(quantized[0], OTHER);
    for (at, text) in texts.iter().enumerate() {
        let like = if text[0] == FIRST {
            &texts[0]
        } else {
            &texts[2]
        };
        assert_eq!(text, like, "of server {at}");
    }
}

#[tokio::test]
async fn random_weights_are_asked_for_no_head() {
    let _turn = turns::shared().await;
    let (_parent, folders) = parent();
    let folder = model(&folders, "tied", |folder| store_head(folder, true));
    let options = options().set("--load-format", "dummy");
    let server = Server::start(serving(options, &folder)).await;
    assert!(!server.log().contains(STORED), "{}", server.log());
}

#[tokio::test]
async fn an_update_keeps_where_the_head_is_and_what_ends_answers() {
    let (_parent, folders) = parent();
    model(&folders, "demo", |_| ());
    model(&folders, "equal", |folder| store_head(folder, false));
    model(&folders, "differs", |folder| store_head(folder, true));
    model(&folders, "bare", |folder| {
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            fs::remove_file(folder.join(file)).expect("removed");
        }
    });
    model(&folders, "ends", |folder| {
        rewrite(folder, "config.json", &json!({"eos_token_id": 9}));
    });
    let refused = "restart the server";
    for (served, updates) in [
        (
            "demo",
            [
                ("differs", Err(["lm_head.weight", refused])),
                ("equal", Ok(FIRST)),
                ("bare", Ok(FIRST)),
                ("ends", Err(["other end tokens", refused])),
            ],
        ),
        (
            "differs",
            [
                ("demo", Err(["`tie_word_embeddings`", refused])),
                ("equal", Err(["`tie_word_embeddings`", refused])),
                ("differs", Ok(OTHER)),
                ("ends", Err(["another shape or other end tokens", refused])),
            ],
        ),
    ] {
        let _turn = turns::shared().await;
        let options = options().set("--weight-update-dir", &path(&folders));
        let server = Server::start(serving(options, &folders.join(served))).await;
        let before = tokens(&server).await;
        for (name, expected) in updates {
            let answer = server.post(UPDATE, &json!({"model_path": name})).await;
            match expected {
                Ok(_) => assert_eq!(answer.status, 200, "{name}: {}", answer.text),
                Err(words) => {
                    assert_eq!(answer.status, 400, "{name}: {}", answer.text);
                    let said = words.iter().all(|word| answer.text.contains(word));
                    assert!(said, "{name}: {}", answer.text);
                }
            }
            assert_eq!(tokens(&server).await, before, "{served} {name}");
            if let Ok(first) = expected {
                assert_eq!(before[0], first);
            }
        }
    }
}
