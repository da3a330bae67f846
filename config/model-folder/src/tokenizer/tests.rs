use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{EndToken, end_token};
use crate::Described;
use crate::testing::{folder, llama, with, write};

/// A folder of the small Llama. Its tokenizer has the tokens `a` (0) and `b` (1), and the added
/// tokens `<end>` (7) and `<far>` (100, the first that no model of 100 tokens has).
fn tokenizer(files: &[(&str, Value)]) -> TempDir {
    let dir = folder(&llama(), None);
    let tokenizer = json!({
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"},
        "added_tokens": [added(7, "<end>"), added(100, "<far>")],
    });
    write(dir.path(), "tokenizer.json", &tokenizer);
    for (name, content) in files {
        write(dir.path(), name, content);
    }
    dir
}

fn added(id: u32, content: &str) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
           "normalized": false, "special": true})
}

fn named(config: Value) -> Result<Option<EndToken>, String> {
    let dir = tokenizer(&[("tokenizer_config.json", config)]);
    end_token(dir.path()).map_err(|error| error.to_string())
}

#[test]
fn the_end_token_is_what_the_tokenizers_files_name() {
    let decoder = json!({"9": {"content": "<late>"}});
    for (config, text, id) in [
        (json!({"eos_token": "<end>"}), "<end>", Some(7)),
        (json!({"eos_token": added(7, "<end>")}), "<end>", Some(7)),
        (json!({"eos_token": "b"}), "b", Some(1)),
        (json!({"eos_token": "<none>"}), "<none>", None),
        (
            json!({"eos_token": "<far>", "model_max_length": "NaN"}),
            "<far>",
            Some(100),
        ),
        (
            json!({"eos_token": "<late>", "added_tokens_decoder": decoder}),
            "<late>",
            Some(9),
        ),
    ] {
        let expected = EndToken {
            text: text.into(),
            id,
        };
        assert_eq!(named(config.clone()), Ok(Some(expected)), "{config}");
    }
    for config in [json!({}), json!({"eos_token": null})] {
        assert_eq!(named(config.clone()), Ok(None), "{config}");
    }
    let error = named(json!({"eos_token": 2})).expect_err("no token");
    assert!(error.contains("`eos_token` is 2"), "{error}");
}

/// A terminal would obey these characters, or turn the line around.
#[test]
fn what_a_file_says_is_shown_and_never_obeyed() {
    let hostile = "\u{9b}2J\u{202e}\u{7f}";
    let long = "x".repeat(100_000);
    for token in [json!([hostile]), json!([long]), json!({ hostile: long })] {
        let error = named(json!({"eos_token": token})).expect_err("no token");
        assert!(error.contains("`eos_token` is "), "{error}");
        assert_eq!(lockstep_files::shown_note(&error), error);
        assert!(error.len() < 5_000, "{} bytes", error.len());
    }
    let config = json!({"architectures": [hostile], "rope_scaling": {"rope_type": hostile}});
    for key in ["architectures", "rope_scaling"] {
        let config = with(llama(), &json!({ key: config[key] }));
        let error = Described::of(folder(&config, None).path()).expect_err(key);
        let text = error.to_string();
        assert!(text.contains("\\u{9b}2J\\u{202e}"), "{text}");
        assert_eq!(lockstep_files::shown_note(&text), text);
    }
    // A token outside of the vocabulary makes a note.
    let dir = tokenizer(&[("tokenizer_config.json", json!({"eos_token": long}))]);
    let described = Described::of(dir.path()).expect("read");
    let notes = described.with_tokenizer().expect("read").notes;
    assert!(notes.iter().all(|note| note.len() < 5_000), "{notes:?}");
}

#[test]
fn roles_may_stand_in_a_file_of_their_own() {
    let map = |token: &str| ("special_tokens_map.json", json!({"eos_token": token}));
    let id = |files: &[(&str, Value)]| {
        let dir = tokenizer(files);
        end_token(dir.path())
            .expect("read")
            .and_then(|token| token.id)
    };
    let config = |token: Value| ("tokenizer_config.json", json!({"eos_token": token}));
    assert_eq!(id(&[map("b")]), Some(1));
    assert_eq!(id(&[map("b"), config(json!(null))]), Some(1));
    assert_eq!(id(&[map("b"), config(json!("<end>"))]), Some(7));
    assert_eq!(id(&[]), None);
}

/// The tokenizer that serves has the same number for the token.
#[test]
fn numbers_are_those_of_the_tokenizer_that_serves() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lockstep-demo-7m");
    let made = |token: &str| tokenizer(&[("tokenizer_config.json", json!({"eos_token": token}))]);
    let (first, second) = (made("b"), made("<none>"));
    for folder in [demo.as_path(), first.path(), second.path()] {
        let served = lockstep_text::Tokenizer::load(folder).expect("a tokenizer");
        let own = end_token(folder).expect("read").expect("named");
        assert_eq!(own.id, served.special_token_id("eos_token"), "{own:?}");
    }
}

#[test]
fn the_end_token_joins_those_of_the_model() {
    let config = |token: &str| ("tokenizer_config.json", json!({"eos_token": token}));
    let described = |model: Value, token: &str| {
        let dir = tokenizer(&[config(token)]);
        write(dir.path(), "config.json", &with(llama(), &model));
        let described = Described::of(dir.path()).expect("described");
        described.with_tokenizer().expect("a tokenizer")
    };
    let none = json!({"eos_token_id": null});
    for (model, token, ends, own, notes) in [
        (json!({}), "<end>", &[2, 7][..], Some(7), &[][..]),
        (
            json!({"eos_token_id": [7, 9]}),
            "<end>",
            &[7, 9],
            Some(7),
            &[],
        ),
        (none.clone(), "<end>", &[7], Some(7), &[]),
        (json!({"eos_token_id": -1}), "<end>", &[7], Some(7), &[]),
        (json!({}), "<none>", &[2], None, &["`eos_token` \"<none>\""]),
        // The model has 100 tokens.
        (json!({}), "<far>", &[2], None, &["`eos_token` \"<far>\""]),
        (none, "<far>", &[], None, &["`eos_token`", "`eos_token_id`"]),
    ] {
        let Described {
            model, notes: told, ..
        } = described(model, token);
        assert_eq!(
            (&model.eos_token_ids[..], model.tokenizer_eos_id),
            (ends, own),
            "{token}"
        );
        let says = |(told, note): (&String, &&str)| told.contains(note);
        assert_eq!(told.len(), notes.len(), "{told:?}");
        assert!(told.iter().zip(notes).all(says), "{told:?}");
    }
}

#[test]
fn damaged_files_of_the_tokenizer_are_named() {
    let good = ("tokenizer_config.json", json!({"eos_token": "<end>"}));
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        let dir = tokenizer(std::slice::from_ref(&good));
        std::fs::write(dir.path().join(file), "{").expect("written");
        let error = crate::load(dir.path()).expect_err("damaged").to_string();
        assert!(error.contains(file), "{error}");
    }
    let dir = tokenizer(&[good]);
    std::fs::remove_file(dir.path().join("tokenizer.json")).expect("removed");
    let model = crate::load(dir.path()).expect("a model without a tokenizer");
    assert_eq!(model.eos_token_ids, [2]);
}
