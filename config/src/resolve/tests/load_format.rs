//! Source of the weights.

use lockstep_types::LoadFormat;
use serde_json::json;

use crate::testing::{folder, llama, machine, resolve_line, resolve_model, with};

/// Random weights need no files, and drafts get random ones, too.
#[test]
fn weights_come_from_where_they_are_said_to() {
    for (line, format) in [
        ("", LoadFormat::Auto),
        ("--load-format auto", LoadFormat::Auto),
        ("--load-format safetensors", LoadFormat::Auto),
        ("--load-format dummy --quantization int8", LoadFormat::Dummy),
    ] {
        let (engine, _) = resolve_line(line).expect("good");
        assert_eq!(engine.model.load_format, format, "{line}");
    }
    let target = folder(&with(llama(), &json!({"num_hidden_layers": 7})), None);
    for (algorithm, config) in [
        ("STANDALONE", llama()),
        ("EAGLE", with(llama(), &json!({"num_hidden_layers": 1}))),
        (
            "EAGLE3",
            with(
                llama(),
                &json!({"num_hidden_layers": 1, "draft_vocab_size": 50}),
            ),
        ),
    ] {
        let draft = folder(&config, None);
        let path = draft.path().display();
        let drafts = format!("--speculative-algorithm {algorithm} --draft-model {path}");
        let resolve = |rest| resolve_model(&format!("{drafts} {rest}"), target.path(), &machine());
        let (engine, _) = resolve("--load-format dummy").expect("good");
        let draft = engine.speculation.draft.expect("a draft");
        assert_eq!(draft.model.load_format, LoadFormat::Dummy);
        let error = resolve("").expect_err("no weights").to_string();
        assert!(error.contains("no model.safetensors"), "{error}");
    }
}

#[test]
fn a_gguf_file_has_no_safetensors() {
    let resolve = |line| {
        let error = resolve_model(line, std::path::Path::new("none.gguf"), &machine());
        error.map(|_| ()).expect_err("refused").to_string()
    };
    let error = resolve("--load-format safetensors");
    assert!(error.contains("has no safetensors"), "{error}");
    assert!(!resolve("").contains("has no safetensors"));
}

/// On a GPU the folder keeps compiled kernels, whatever the weights are.
#[test]
fn kernels_are_kept_beside_random_weights() {
    let line = "--device cuda --load-format dummy --weight-cache /w";
    let (_, node) = resolve_line(line).expect("good");
    assert_eq!(node.weight_cache, Some("/w".into()));
}

/// All sizing sees the head that will be loaded.
#[test]
fn a_stored_head_that_differs_is_one_of_its_own_unless_weights_are_random() {
    let model = folder(&llama(), None);
    let place =
        |begin: u8| json!({"dtype": "BF16", "shape": [1], "data_offsets": [begin, begin + 2]});
    let header = json!({"model.embed_tokens.weight": place(0), "lm_head.weight": place(2)});
    let header = header.to_string();
    let length = (header.len() as u64).to_le_bytes();
    let weights = [&length, header.as_bytes(), &[1, 2, 1, 3]].concat();
    std::fs::write(model.path().join("model.safetensors"), weights).expect("written");
    let parameters = |line: &str| {
        let (engine, _) = resolve_model(line, model.path(), &machine()).expect("good");
        crate::testing::parameters(&engine.model)
    };
    let (tied, own) = (parameters("--load-format dummy"), parameters(""));
    assert_eq!(own - tied, 100 * 64, "a table of 100 tokens");
}
