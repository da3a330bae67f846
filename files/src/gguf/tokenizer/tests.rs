use serde_json::{Value, json};

use crate::gguf::samples::Sample;
use crate::{LARGEST_CONFIG, read};

fn file(sample: &Sample, name: &str) -> Result<Value, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = sample.write(folder.path(), "x.gguf");
    let bytes = read(&path, name, LARGEST_CONFIG).map_err(|error| error.to_string())?;
    Ok(serde_json::from_slice(&bytes).expect("JSON"))
}

#[test]
fn a_byte_level_tokenizer_is_that_of_its_pattern() {
    let sample = Sample::llama()
        .text("tokenizer.chat_template", "{{ messages }}")
        .texts("tokenizer.chat_templates", &["tool_use"])
        .text("tokenizer.chat_template.tool_use", "{{ tools }}")
        .number("tokenizer.ggml.bos_token_id", 0);
    let found = file(&sample, "tokenizer.json").expect("a tokenizer");
    assert_eq!(
        found["model"]["vocab"],
        json!({"a": 0, "b": 1, "ab": 2, "<|im_end|>": 3})
    );
    assert_eq!(found["model"]["merges"], json!([["a", "b"]]));
    assert_eq!(found["added_tokens"][0]["content"], "<|im_end|>");
    assert_eq!(found["added_tokens"][0]["special"], true);
    assert_eq!(found["post_processor"], Value::Null);
    let splits = found["pre_tokenizer"]["pretokenizers"]
        .as_array()
        .expect("a list");
    assert_eq!(splits.len(), 2);
    let begins = sample.clone().flag("tokenizer.ggml.add_bos_token", true);
    let begins = file(&begins, "tokenizer.json").expect("a tokenizer");
    assert_eq!(
        begins["post_processor"]["special_tokens"]["a"]["ids"],
        json!([0])
    );
    let config = file(&sample, "tokenizer_config.json").expect("a config");
    assert_eq!(
        (&config["bos_token"], &config["eos_token"]),
        (&json!("a"), &json!("<|im_end|>"))
    );
    assert_eq!(
        config["chat_template"][1],
        json!({"name": "tool_use", "template": "{{ tools }}"})
    );
}

#[test]
fn pieces_are_merged_by_their_scores() {
    let tokens = ["<unk>", "a", "b", "c", "ab", "bc", "abc", "▁"];
    let scores = [0.0f32, -5.0, -6.0, -7.0, -1.0, 0.0, -2.0, -8.0];
    let sample = Sample::llama()
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &tokens)
        .list(
            "tokenizer.ggml.token_type",
            5,
            &[2i32, 1, 1, 1, 1, 1, 1, 1].map(i32::to_le_bytes),
        )
        .list("tokenizer.ggml.scores", 6, &scores.map(f32::to_le_bytes))
        .flag("tokenizer.ggml.add_bos_token", false);
    let found = file(&sample, "tokenizer.json").expect("a tokenizer");
    let merges = json!([["b", "c"], ["a", "b"], ["ab", "c"], ["a", "bc"]]);
    assert_eq!(found["model"]["merges"], merges);
    assert_eq!(found["model"]["unk_token"], "<unk>");
    assert_eq!(found["normalizer"]["normalizers"][0]["type"], "Prepend");
    assert_eq!(found["decoder"]["decoders"][3]["type"], "Strip");
    let plain = sample
        .clone()
        .flag("tokenizer.ggml.add_space_prefix", false);
    let plain = file(&plain, "tokenizer.json").expect("a tokenizer");
    assert_eq!(plain["normalizer"]["type"], "Replace");
    assert_eq!(
        plain["decoder"]["decoders"].as_array().map(Vec::len),
        Some(3)
    );
    let short = sample.list("tokenizer.ggml.scores", 6, &[0.0f32.to_le_bytes()]);
    let error = file(&short, "tokenizer.json").expect_err("too few scores");
    assert!(error.contains("has 1 scores for 8 tokens"), "{error}");
}

/// A file of some megabytes may have merges of gigabytes.
#[test]
fn merges_are_bounded_and_twins_make_none() {
    let tokenizer = |tokens: &[String]| {
        let texts: Vec<_> = tokens.iter().map(String::as_str).collect();
        let zero = vec![0.0f32.to_le_bytes(); tokens.len()];
        let kind = vec![1i32.to_le_bytes(); tokens.len()];
        let sample = Sample::llama()
            .text("tokenizer.ggml.model", "llama")
            .texts("tokenizer.ggml.tokens", &texts)
            .list("tokenizer.ggml.token_type", 5, &kind)
            .list("tokenizer.ggml.scores", 6, &zero)
            .flag("tokenizer.ggml.add_bos_token", false);
        file(&sample, "tokenizer.json")
    };
    let runs = |letter: char| (1..=256).map(move |length| letter.to_string().repeat(length));
    let mut tokens: Vec<String> = runs('a').take(3).collect();
    tokens.extend(std::iter::repeat_n("aaa".to_owned(), 5));
    let found = tokenizer(&tokens).expect("a tokenizer");
    assert_eq!(found["model"]["merges"].as_array().map(Vec::len), Some(3));
    let letters = (0..40).filter_map(|at| char::from_u32(0x4e00 + at));
    let many: Vec<String> = letters.flat_map(runs).collect();
    let error = tokenizer(&many).expect_err("too many");
    assert!(error.contains("more merges than are served"), "{error}");
}

#[test]
fn unknown_kinds_and_patterns_are_refused_by_name() {
    for (key, value, reason) in [
        (
            "tokenizer.ggml.model",
            "bert",
            "of the kind \"bert\"; served are gpt2 and llama",
        ),
        (
            "tokenizer.ggml.pre",
            "new-one",
            "tokenizer.ggml.pre is \"new-one\"",
        ),
    ] {
        let error = file(&Sample::llama().text(key, value), "tokenizer.json").expect_err(key);
        assert!(error.contains(reason), "{error}");
    }
    let none = Sample::llama().without("tokenizer.ggml.pre");
    assert!(file(&none, "tokenizer.json").is_err_and(|error| error.contains("\"default\"")));
}

#[test]
fn answers_end_with_all_tokens_that_end_them() {
    let found = file(
        &Sample::llama().number("tokenizer.ggml.eom_token_id", 1),
        "generation_config.json",
    );
    assert_eq!(found, Ok(json!({"eos_token_id": [1, 3]})));
    let unnamed = Sample::llama().without("tokenizer.ggml.eos_token_id");
    assert_eq!(
        file(&unnamed, "generation_config.json"),
        Ok(json!({"eos_token_id": [3]}))
    );
}
