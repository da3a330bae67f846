mod gguf;

use std::path::Path;

use proptest::prelude::*;
use serde_json::json;

use super::samples::{all, byte_level, demo_dir, llama2, load, one};
use super::{EncodeError, Tokenizer, TokenizerConfig, TokenizerError};

fn demo() -> Tokenizer {
    Tokenizer::load(demo_dir()).unwrap()
}

fn write(dir: &Path, name: &str, json: &serde_json::Value) {
    std::fs::write(dir.join(name), serde_json::to_vec(json).unwrap()).unwrap();
}

#[test]
fn the_demo_tokenizer_loads() {
    let tokenizer = demo();
    assert_eq!(tokenizer.vocab_size(), 4096);
    assert_eq!(tokenizer.id_limit(), 4096);
    assert_eq!(tokenizer.special_token_id("eos_token"), Some(2));
    assert_eq!(tokenizer.special_token_id("bos_token"), None);
    assert_eq!(
        tokenizer.special_tokens().get("pad_token"),
        Some("<|endoftext|>")
    );
    assert!(tokenizer.is_special(2) && !tokenizer.is_special(3) && !tokenizer.is_special(u32::MAX));
    assert_eq!(tokenizer.token_bytes(4096), None);
    let ids = tokenizer
        .encode("<|im_start|>user\nCount from 3 to 12.<|im_end|>", true)
        .unwrap();
    assert_eq!((ids[0], *ids.last().unwrap()), (1, 2));
    assert_eq!(tokenizer.decode(&ids, true), "user\nCount from 3 to 12.");
    assert_eq!(
        tokenizer.decode(&ids, false),
        "<|im_start|>user\nCount from 3 to 12.<|im_end|>"
    );
}

#[test]
fn a_missing_or_broken_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = Tokenizer::load(dir.path()).unwrap_err();
    assert!(
        matches!(&error, TokenizerError::Missing { path } if path.ends_with("tokenizer.json")),
        "{error}"
    );
    std::fs::write(dir.path().join("tokenizer.json"), "{").unwrap();
    assert!(matches!(
        Tokenizer::load(dir.path()),
        Err(TokenizerError::Parse { .. })
    ));
    write(dir.path(), "tokenizer.json", &json!({"model": {}}));
    assert!(matches!(
        Tokenizer::load(dir.path()),
        Err(TokenizerError::Parse { .. })
    ));
    write(dir.path(), "tokenizer.json", &byte_level());
    write(dir.path(), "tokenizer_config.json", &json!([]));
    let error = Tokenizer::load(dir.path()).unwrap_err();
    assert!(
        error.to_string().contains("tokenizer_config.json"),
        "{error}"
    );
}

/// Python writes numbers that JSON does not have.
#[test]
fn a_length_that_is_infinite_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let config = r#"{"model_max_length": Infinity, "eos_token": "NaN", "other": [NaN]}"#;
    std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
    let config = TokenizerConfig::load(dir.path()).unwrap();
    assert_eq!(config.model_max_length, None);
    assert_eq!(config.special_tokens.get("eos_token"), Some("NaN"));
}

#[test]
fn decoders_that_need_later_tokens_are_refused() {
    for decoder in [
        json!({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": true}),
        json!({"type": "BPEDecoder", "suffix": "</w>"}),
        json!({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 1}]}),
        json!({"type": "Sequence", "decoders": [{"type": "Fuse"},
               {"type": "Replace", "pattern": {"String": "ab"}, "content": ""}]}),
    ] {
        let mut json = byte_level();
        json["decoder"] = decoder.clone();
        let bytes = serde_json::to_vec(&json).unwrap();
        let loaded = Tokenizer::from_json(&bytes, TokenizerConfig::default(), Path::new("t"));
        assert!(
            matches!(loaded, Err(TokenizerError::Decoder { .. })),
            "{decoder}"
        );
    }
}

#[test]
fn truncation_in_the_file_is_dropped() {
    assert_eq!(
        load(&byte_level()).encode("abcdefgh", true).unwrap().len(),
        8
    );
}

#[test]
fn tokenizer_config_adds_tokens_and_roles() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "tokenizer.json", &byte_level());
    let flags = |content: &str, special: bool| {
        json!({"content": content, "lstrip": false, "normalized": false, "rstrip": false, "single_word": false,
               "special": special})
    };
    write(
        dir.path(),
        "tokenizer_config.json",
        &json!({
            "added_tokens_decoder": {"265": flags("<b>", true), "264": flags("<a>", false), "262": flags("<tool call>", true)},
            "bos_token": {"content": "<tool call>", "special": true}, "eos_token": "<|end|>", "unk_token": "<nowhere>",
            "pad_token": null, "additional_special_tokens": ["Ġth"], "model_max_length": 1e30, "chat_template": "x",
        }),
    );
    write(
        dir.path(),
        "special_tokens_map.json",
        &json!({"eos_token": "ignored", "sep_token": "<a>"}),
    );
    let tokenizer = Tokenizer::load(dir.path()).unwrap();
    assert_eq!(tokenizer.token_to_id("<a>"), Some(264));
    assert_eq!(tokenizer.token_to_id("<b>"), Some(265));
    assert_eq!(tokenizer.encode("x<a><b>y", true).unwrap().len(), 4);
    assert_eq!(tokenizer.special_token_id("bos_token"), Some(262));
    assert_eq!(tokenizer.special_token_id("eos_token"), Some(261));
    assert_eq!(tokenizer.special_token_id("unk_token"), None);
    for (token, special) in [
        ("<a>", true),
        ("<b>", true),
        ("<tool call>", true),
        ("Ġth", true),
        ("Ġt", false),
    ] {
        assert_eq!(
            tokenizer.is_special(tokenizer.token_to_id(token).unwrap()),
            special,
            "{token}"
        );
    }
}

#[test]
fn chat_templates_come_from_three_places() {
    let dir = tempfile::tempdir().unwrap();
    let named = |templates: &[(&str, &str)]| -> Vec<(String, String)> {
        templates
            .iter()
            .map(|(name, source)| ((*name).to_owned(), (*source).to_owned()))
            .collect()
    };
    let load = || -> Vec<(String, String)> {
        let config = TokenizerConfig::load(dir.path()).unwrap();
        config
            .chat_templates
            .into_iter()
            .map(|t| (t.name, t.source))
            .collect()
    };
    assert_eq!(load(), []);
    let of_processor = json!({"chat_template": "processor's"});
    write(dir.path(), "chat_template.json", &of_processor);
    assert_eq!(load(), named(&[("default", "processor's")]));
    write(
        dir.path(),
        "tokenizer_config.json",
        &json!({"chat_template": "one"}),
    );
    assert_eq!(load(), named(&[("default", "one")]));
    let list = json!([{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]);
    write(
        dir.path(),
        "tokenizer_config.json",
        &json!({"chat_template": list}),
    );
    assert_eq!(load(), named(&[("default", "a"), ("tool_use", "b")]));
    std::fs::write(dir.path().join("chat_template.jinja"), "file").unwrap();
    std::fs::create_dir(dir.path().join("additional_chat_templates")).unwrap();
    std::fs::write(dir.path().join("additional_chat_templates/rag.jinja"), "r").unwrap();
    assert_eq!(
        load(),
        named(&[("tool_use", "b"), ("default", "file"), ("rag", "r")])
    );
}

#[test]
fn llama_classes_frame_by_their_flags() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "tokenizer.json", &llama2());
    let ids = |class: &str, bos: Option<bool>, eos: Option<bool>, special: bool| {
        let config = json!({"tokenizer_class": class, "add_bos_token": bos, "add_eos_token": eos,
                            "bos_token": "<s>", "eos_token": "</s>"});
        write(dir.path(), "tokenizer_config.json", &config);
        Tokenizer::load(dir.path())
            .unwrap()
            .encode("hi", special)
            .unwrap()
    };
    let hi = ids("LlamaTokenizerFast", None, None, false);
    let framed = |before: &[u32], after: &[u32]| [before, &hi, after].concat();
    assert_eq!(
        ids("LlamaTokenizerFast", None, None, true),
        framed(&[1], &[])
    );
    assert_eq!(ids("LlamaTokenizerFast", Some(false), None, true), hi);
    assert_eq!(
        ids("LlamaTokenizer", Some(true), Some(true), true),
        framed(&[1], &[2])
    );
    assert_eq!(ids("LlamaTokenizer", Some(true), Some(true), false), hi);
    assert_eq!(
        ids("PreTrainedTokenizerFast", Some(false), Some(true), true),
        framed(&[1], &[])
    );
}

#[test]
fn token_bytes_are_exact() {
    let bytes = |sample: &str, token: &str| {
        let tokenizer = &one(sample).tokenizer;
        tokenizer
            .token_bytes(tokenizer.token_to_id(token).unwrap())
            .unwrap()
            .to_vec()
    };
    assert_eq!(bytes("llama2", "<0x0A>"), b"\n");
    assert_eq!(bytes("llama2", "<0xE6>"), [0xE6]);
    assert_eq!(bytes("llama2", "▁hi"), b" hi");
    assert_eq!(bytes("llama2", "</s>"), b"</s>");
    assert_eq!(bytes("metaspace", "▁hi"), b" hi");
    assert_eq!(bytes("byte_level", "Ġth"), b" th");
    assert_eq!(bytes("byte_level", "ðŁĺ"), [0xF0, 0x9F, 0x98]);
    assert_eq!(bytes("byte_level", "<tool call>"), b"<tool call>");
    assert_eq!(bytes("wordpiece", "##able"), b"able");
    let tokenizer = &one("byte_level").tokenizer;
    assert_eq!(
        tokenizer
            .token_text(tokenizer.token_to_id("ðŁĺ").unwrap())
            .unwrap(),
        "\u{FFFD}"
    );
}

#[test]
fn every_byte_of_the_alphabet_is_read_back() {
    let tokenizer = &one("byte_level").tokenizer;
    let mut bytes: Vec<u8> = (0..256)
        .flat_map(|id| tokenizer.token_bytes(id).unwrap().to_vec())
        .collect();
    bytes.sort_unstable();
    assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
}

#[test]
fn a_text_too_long_is_refused_before_it_is_tokenized() {
    let tokenizer = demo();
    assert_eq!(
        tokenizer.encode_bounded("Hello", true, 5),
        tokenizer.encode("Hello", true)
    );
    let error = tokenizer
        .encode_bounded("1 2 3 4 5 6", true, 5)
        .unwrap_err();
    assert_eq!(
        error,
        EncodeError::TooLong {
            at_least: 11,
            limit: 5,
            exact: true,
        }
    );
    // The length alone decides: tokenizing would have found far more tokens.
    let text = "7".repeat(1 << 20);
    let Err(EncodeError::TooLong {
        at_least,
        limit: 9,
        exact: false,
    }) = tokenizer.encode_bounded(&text, true, 9)
    else {
        panic!("the text fits nowhere near");
    };
    assert!((10..1 << 20).contains(&at_least), "{at_least}");
}

#[test]
fn there_is_no_bound_where_text_may_vanish() {
    assert!(load(&byte_level()).min_tokens(1 << 20) > 0);
    assert!(load(&llama2()).min_tokens(1 << 20) > 0);
    let bound = |change: fn(&mut serde_json::Value)| {
        let mut json = byte_level();
        change(&mut json);
        load(&json).min_tokens(1 << 20)
    };
    assert_eq!(
        bound(|json| json["normalizer"] =
            json!({"type": "Strip", "strip_left": true, "strip_right": true})),
        0
    );
    assert_eq!(
        bound(|json| json["added_tokens"][0]["lstrip"] = json!(true)),
        0
    );
    assert_eq!(
        bound(|json| json["pre_tokenizer"] = json!({"type": "Whitespace"})),
        0
    );
    assert!(bound(|json| json["normalizer"] = json!({"type": "NFC"})) > 0);
    assert_eq!(one("wordpiece").tokenizer.min_tokens(1 << 20), 0);
}

#[test]
fn a_tokenizer_is_shared_between_threads() {
    let tokenizer = demo();
    let expected = tokenizer.encode("The quick brown fox.", true).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let tokenizer = tokenizer.clone();
            let expected = &expected;
            scope.spawn(move || {
                let ids = tokenizer.encode("The quick brown fox.", true).unwrap();
                assert_eq!(&ids, expected);
            });
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn texts_survive_the_round_trip(text in "\\PC{0,40}") {
        for sample in all().iter().filter(|s| ["demo", "byte_level", "gemma"].contains(&s.name)) {
            let ids = sample.tokenizer.encode(&text, false).unwrap();
            prop_assert!(sample.tokenizer.min_tokens(text.len()) <= ids.len());
            // A literal space mark reads back as a space, and special tokens in the text become
            // tokens.
            if !text.contains(['▁', '<']) {
                prop_assert_eq!(sample.tokenizer.decode(&ids, false), text.as_str(), "{}", sample.name);
            }
        }
    }

    #[test]
    fn no_text_has_fewer_tokens_than_its_bound(
        words in proptest::collection::vec(
            prop_oneof![Just("    "), Just("the "), Just("\u{1FBE}\u{308}\u{301}"), Just("\n"), Just("▁"), Just("<|end|>")],
            0..40,
        ),
    ) {
        let text = words.concat();
        for sample in all() {
            if let Ok(ids) = sample.tokenizer.encode(&text, false) {
                prop_assert!(sample.tokenizer.min_tokens(text.len()) <= ids.len(), "{}", sample.name);
            }
        }
    }
}
