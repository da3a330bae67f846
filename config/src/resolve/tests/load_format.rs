//! Where weights come from.

use lockstep_types::LoadFormat;
use serde_json::json;

use crate::testing::{folder, llama, machine, resolve_line, resolve_model, with};

/// Random weights ask for no files, and drafts get theirs likewise.
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
