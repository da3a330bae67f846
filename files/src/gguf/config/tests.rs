use serde_json::{Value, json};

use crate::gguf::samples::Sample;
use crate::{LARGEST_CONFIG, read};

fn config(sample: &Sample) -> Result<Value, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = sample.write(folder.path(), "x.gguf");
    let bytes = read(&path, "config.json", LARGEST_CONFIG).map_err(|error| error.to_string())?;
    Ok(serde_json::from_slice(&bytes).expect("JSON"))
}

#[test]
fn a_llama_is_described_as_its_folder_would() {
    let found = config(&Sample::llama()).expect("a config");
    let expected = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 5,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "rope_scaling": null,
        "tie_word_embeddings": true,
        "attention_bias": false,
        "mlp_bias": false,
    });
    assert_eq!(found, expected);
    let windowed = Sample::llama().number("llama.attention.sliding_window", 64);
    let found = config(&windowed).expect("a config");
    assert_eq!(
        (&found["model_type"], &found["sliding_window"]),
        (&json!("mistral"), &json!(64))
    );
}

#[test]
fn divisors_of_frequencies_are_read_from_their_tensor() {
    let divisors: Vec<u8> = (1..=8u8)
        .flat_map(|own| f32::from(own).to_le_bytes())
        .collect();
    let sample = Sample::llama().tensor("rope_freqs.weight", 0, &[8], &divisors);
    let found = config(&sample).expect("a config");
    let rope = &found["rope_scaling"];
    assert_eq!(
        (&rope["rope_type"], &rope["attention_factor"]),
        (&json!("longrope"), &json!(1.0))
    );
    assert_eq!(rope["short_factor"][7], json!(8.0));
    assert_eq!(rope["short_factor"], rope["long_factor"]);
    let broken = Sample::llama().tensor("rope_freqs.weight", 0, &[8], &[0; 32]);
    assert!(config(&broken).is_err_and(|error| error.contains("no number above zero")));
}

#[test]
fn keys_that_may_change_results_are_refused() {
    for (sample, reason) in [
        (
            Sample::llama().flag("llama.attention.causal", false),
            "a model that generates text",
        ),
        (
            Sample::llama().float("llama.logit_scale", 2.0),
            "llama.logit_scale asks for",
        ),
        (
            Sample::llama().text("llama.rope.scaling.type", "new"),
            "served are none, linear, yarn",
        ),
        (
            Sample::llama().without("llama.block_count"),
            "llama.block_count is missing",
        ),
        (
            Sample::llama().text("llama.block_count", "x"),
            "no whole number",
        ),
        (
            Sample::llama().number("llama.attention.value_length", 8),
            "values as wide as keys",
        ),
        (
            Sample::llama().without("token_embd.weight"),
            "no tensor token_embd.weight",
        ),
        (
            Sample::llama().text("general.type", "adapter"),
            "it holds no model but: adapter",
        ),
    ] {
        let error = config(&sample).expect_err(reason);
        assert!(error.contains(reason), "{error}");
    }
    // It says nothing.
    config(&Sample::llama().float("llama.logit_scale", 0.0)).expect("a config");
}

#[test]
fn parts_are_one_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let part = |sample: Sample, number: u32| {
        let sample = sample.number("split.no", number).number("split.count", 2);
        let name = format!("x-{:05}-of-00002.gguf", number + 1);
        sample
            .number("split.tensors.count", 11)
            .write(folder.path(), &name)
    };
    let whole = Sample::llama();
    let norm = "blk.0.attn_norm.weight";
    let first = part(whole.without(norm), 0);
    let missing = read(&first, "config.json", LARGEST_CONFIG).expect_err("a part is missing");
    let missing = missing.to_string();
    assert!(missing.starts_with("x-00002-of-00002.gguf: "), "{missing}");
    let other = part(Sample::empty().tensor(norm, 0, &[32], &[0; 128]), 1);
    read(&first, "config.json", LARGEST_CONFIG).expect("both parts");
    let files = crate::weights::weight_files(&first)
        .expect("weights")
        .expect("there");
    let counts: Vec<_> = files.iter().map(|file| file.tensors.len()).collect();
    assert_eq!(counts, [10, 1]);
    assert_eq!(files[1].path, other);
    let error = read(&other, "config.json", LARGEST_CONFIG).expect_err("the second part");
    assert!(error.to_string().contains("give the first part"), "{error}");
    assert_eq!(
        crate::only_gguf(folder.path()).expect("one model"),
        Some(first)
    );
}
