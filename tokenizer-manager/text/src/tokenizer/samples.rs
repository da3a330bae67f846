//! Small tokenizers of every kind, made for tests.

use std::path::Path;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};
use tokenizers::Tokenizer as HfTokenizer;

use super::{Tokenizer, TokenizerConfig};

/// A tokenizer, with the `tokenizers` crate's own as the oracle.
pub(crate) struct Sample {
    pub name: &'static str,
    pub tokenizer: Tokenizer,
    pub oracle: HfTokenizer,
}

/// Returns every sample; built once.
pub(crate) fn all() -> &'static [Sample] {
    static SAMPLES: LazyLock<Vec<Sample>> = LazyLock::new(|| {
        vec![
            sample("demo", &demo_json()),
            sample("byte_level", &byte_level()),
            sample("llama2", &llama2()),
            sample("gemma", &gemma()),
            sample("metaspace", &metaspace("always")),
            sample("metaspace_never", &metaspace("never")),
            sample("wordpiece", &wordpiece()),
            sample("no_decoder", &no_decoder()),
        ]
    });
    &SAMPLES
}

pub(crate) fn one(name: &str) -> &'static Sample {
    all().iter().find(|sample| sample.name == name).unwrap()
}

pub(crate) fn demo_dir() -> &'static Path {
    Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../models/lockstep-demo-7m"
    ))
}

pub(crate) fn load(json: &Value) -> Tokenizer {
    let bytes = serde_json::to_vec(json).unwrap();
    Tokenizer::from_json(
        &bytes,
        TokenizerConfig::default(),
        Path::new("tokenizer.json"),
    )
    .unwrap()
}

fn sample(name: &'static str, json: &Value) -> Sample {
    let oracle = HfTokenizer::from_bytes(serde_json::to_vec(json).unwrap()).unwrap();
    Sample {
        name,
        tokenizer: load(json),
        oracle,
    }
}

fn demo_json() -> Value {
    serde_json::from_slice(&std::fs::read(demo_dir().join("tokenizer.json")).unwrap()).unwrap()
}

fn added(id: usize, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
           "normalized": false, "special": special})
}

fn vocabulary(tokens: impl IntoIterator<Item = String>) -> Value {
    let ids: Map<String, Value> = tokens
        .into_iter()
        .enumerate()
        .map(|(id, token)| (token, json!(id)))
        .collect();
    Value::Object(ids)
}

fn bpe(vocab: &Value, merges: &[&str], byte_fallback: bool) -> Value {
    json!({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
           "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": byte_fallback, "ignore_merges": false,
           "vocab": vocab, "merges": merges})
}

/// GPT-2's alphabet, some merges, a special token, and an added token that is not
/// special.
pub(crate) fn byte_level() -> Value {
    let mut alphabet: Vec<char> = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet()
        .into_iter()
        .collect();
    alphabet.sort_unstable();
    let tokens = alphabet
        .iter()
        .map(char::to_string)
        .chain(["Ġt", "Ġth", "ðŁ", "ðŁĺ", "ðŁĺĢ"].map(str::to_owned));
    let vocab = vocabulary(tokens);
    json!({"version": "1.0", "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
           "padding": null, "normalizer": null, "post_processor": null,
           "added_tokens": [added(261, "<|end|>", true), added(262, "<tool call>", false), added(263, "é▁x", false)],
           "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
           "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
           "model": bpe(&vocab, &["Ġ t", "Ġt h", "ð Ł", "ðŁ ĺ", "ðŁĺ Ģ"], false)})
}

fn sentencepiece_vocabulary() -> Value {
    let head = ["<unk>", "<s>", "</s>"].map(str::to_owned);
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let pieces = [
        "▁", "▁a", "a", "b", "h", "i", "▁h", "hi", "▁hi", "▁▁", "é", "日", "�", "a▁b",
    ]
    .map(str::to_owned);
    vocabulary(head.into_iter().chain(bytes).chain(pieces))
}

fn sentencepiece(normalizer: &Value, decoder: &Value) -> Value {
    let merges = ["▁ a", "▁ h", "h i", "▁ hi", "▁ ▁"];
    json!({"version": "1.0", "truncation": null, "padding": null, "normalizer": normalizer, "pre_tokenizer": null,
           "added_tokens": [added(0, "<unk>", true), added(1, "<s>", true), added(2, "</s>", true)],
           "post_processor": {"type": "TemplateProcessing",
               "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
               "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
               "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
           "decoder": decoder, "model": bpe(&sentencepiece_vocabulary(), &merges, true)})
}

fn replace(from: &str, to: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": from}, "content": to})
}

pub(crate) fn llama2() -> Value {
    sentencepiece(
        &json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")]}),
        &json!({"type": "Sequence", "decoders": [replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}),
    )
}

fn gemma() -> Value {
    sentencepiece(
        &replace(" ", "▁"),
        &json!({"type": "Sequence", "decoders": [replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]}),
    )
}

fn metaspace(scheme: &str) -> Value {
    sentencepiece(
        &replace(" ", "▁"),
        &json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"},
                {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false}]}),
    )
}

fn wordpiece() -> Value {
    let tokens = [
        "[UNK]", "[SEP]", "un", "##aff", "##able", ".", "'", "s", "don", "##'t", "é",
    ]
    .map(str::to_owned);
    let model = json!({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                       "max_input_chars_per_word": 100, "vocab": vocabulary(tokens)});
    json!({"version": "1.0", "truncation": null, "padding": null, "normalizer": null,
           "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": null,
           "added_tokens": [added(1, "[SEP]", true)],
           "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true}, "model": model})
}

fn no_decoder() -> Value {
    let model = json!({"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "one": 1, "two": 2, "three": 5}});
    json!({"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "added_tokens": [],
           "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null, "model": model})
}
