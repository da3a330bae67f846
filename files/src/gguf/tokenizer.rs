//! The `tokenizer.json` and `tokenizer_config.json` that a GGUF file stands for.

mod patterns;
mod pieces;
mod vocabulary;

use serde::Serialize;
use serde_json::{Value, json};

use super::error::GgufError;
use super::header::Header;
use super::parts::Parts;
use patterns::Pattern;
use vocabulary::Vocabulary;

/// Keys of the vocabulary's kind and of the pattern that splits texts.
const MODEL: &str = "tokenizer.ggml.model";
const PATTERN: &str = "tokenizer.ggml.pre";
const MERGES: &str = "tokenizer.ggml.merges";
const TEMPLATE: &str = "tokenizer.chat_template";
const TEMPLATES: &str = "tokenizer.chat_templates";

/// Largest number of named chat templates that are read.
const MOST_TEMPLATES: usize = 64;

/// Control tokens that end an answer in all models that have them, as llama.cpp knows them.
const ENDS: [&str; 17] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// A `tokenizer.json` with a model of byte-pair encoding.
#[derive(Serialize)]
struct File<'h> {
    version: &'static str,
    added_tokens: Vec<Value>,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
    model: Model<'h>,
}

/// A model of byte-pair encoding.
#[derive(Serialize)]
struct Model<'h> {
    r#type: &'static str,
    unk_token: Option<&'h str>,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: &'h std::collections::BTreeMap<&'h str, u32>,
    merges: Vec<(&'h str, &'h str)>,
}

/// Returns the `tokenizer.json`.
///
/// # Errors
/// [`GgufError`]: the vocabulary or the pattern is of a kind that is not served, or damaged.
pub(super) fn tokenizer(header: &Header) -> Result<Vec<u8>, GgufError> {
    let kind = header.text(MODEL)?.ok_or_else(|| header.missing(MODEL))?;
    let vocabulary = Vocabulary::of(header)?;
    let file = match kind {
        "gpt2" => bytes(header, &vocabulary)?,
        "llama" => pieces(header, &vocabulary)?,
        other => {
            let reason = format!(
                "its tokenizer is of the kind {other:?}; served are gpt2 and llama: use the \
                 model's safetensors"
            );
            return Err(GgufError::unserved(&header.name, reason));
        }
    };
    let bytes = serde_json::to_vec(&file);
    bytes.map_err(|error| GgufError::damaged(&header.name, error.to_string()))
}

/// Byte-pair encoding of bytes, as of GPT-2.
fn bytes<'h>(header: &'h Header, vocabulary: &'h Vocabulary<'h>) -> Result<File<'h>, GgufError> {
    let name = header.text(PATTERN)?.unwrap_or("default");
    let pattern = Pattern::named(name).ok_or_else(|| {
        let reason = format!(
            "its tokenizer splits texts by a pattern that is not known here: {PATTERN} is \
             {name:?}; convert the model with a current llama.cpp, or use its safetensors"
        );
        GgufError::unserved(&header.name, reason)
    })?;
    let merges = header
        .texts(MERGES)?
        .ok_or_else(|| header.missing(MERGES))?;
    let pair = |merge: &'h str| {
        // The first byte may be a space of its own.
        let at = merge.bytes().skip(1).position(|byte| byte == b' ');
        let (left, right) = merge.split_at_checked(at? + 1)?;
        Some((left, right.get(1..)?))
    };
    let merges = merges.into_iter().map(pair).collect::<Option<_>>();
    Ok(File {
        version: "1.0",
        added_tokens: vocabulary.added(),
        normalizer: Value::Null,
        pre_tokenizer: pattern.pre_tokenizer(),
        post_processor: surroundings(header, vocabulary, pattern.begins)?,
        decoder: json!({
            "type": "ByteLevel",
            "add_prefix_space": true,
            "trim_offsets": true,
            "use_regex": true,
        }),
        model: Model {
            r#type: "BPE",
            unk_token: None,
            fuse_unk: false,
            byte_fallback: false,
            ignore_merges: pattern.ignore_merges,
            vocab: &vocabulary.numbers,
            merges: merges.ok_or_else(|| header.wrong(MERGES, "has a merge that is no pair"))?,
        },
    })
}

/// Byte-pair encoding of characters, as of SentencePiece.
fn pieces<'h>(header: &'h Header, vocabulary: &'h Vocabulary<'h>) -> Result<File<'h>, GgufError> {
    let prefix = header
        .flag("tokenizer.ggml.add_space_prefix")?
        .unwrap_or(true);
    let space = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let normalizer = match prefix {
        true => json!({
            "type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": "▁"}, space],
        }),
        false => space,
    };
    let mut steps = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let unknown = header
        .unsigned("tokenizer.ggml.unknown_token_id")?
        .unwrap_or(0);
    Ok(File {
        version: "1.0",
        added_tokens: vocabulary.added(),
        normalizer,
        pre_tokenizer: Value::Null,
        post_processor: surroundings(header, vocabulary, true)?,
        decoder: json!({"type": "Sequence", "decoders": steps}),
        model: Model {
            r#type: "BPE",
            unk_token: vocabulary.text(unknown),
            fuse_unk: true,
            byte_fallback: true,
            ignore_merges: false,
            vocab: &vocabulary.numbers,
            merges: pieces::merges(header, vocabulary)?,
        },
    })
}

/// Tokens around a text. Where no key says so, a text `begins` with the begin token or not.
fn surroundings(
    header: &Header,
    vocabulary: &Vocabulary<'_>,
    begins: bool,
) -> Result<Value, GgufError> {
    let (mut items, mut tokens) = (
        vec![json!({"Sequence": {"id": "A", "type_id": 0}})],
        json!({}),
    );
    let flag = |key: &str| header.flag(&format!("tokenizer.ggml.add_{key}_token"));
    let begins = flag("bos")?.unwrap_or(begins);
    for (role, wanted) in [("bos", begins), ("eos", flag("eos")?.unwrap_or(false))] {
        let key = format!("tokenizer.ggml.{role}_token_id");
        let Some(id) = header.unsigned(&key)?.filter(|_| wanted) else {
            continue;
        };
        let text = vocabulary.text(id);
        let text = text.ok_or_else(|| header.wrong(&key, "is in no vocabulary"))?;
        tokens[text] = json!({"id": text, "ids": [id], "tokens": [text]});
        let item = json!({"SpecialToken": {"id": text, "type_id": 0}});
        items.insert(if role == "bos" { 0 } else { items.len() }, item);
    }
    if items.len() == 1 {
        return Ok(Value::Null);
    }
    let mut pair = items.clone();
    pair.push(json!({"Sequence": {"id": "B", "type_id": 1}}));
    Ok(json!({
        "type": "TemplateProcessing",
        "single": items,
        "pair": pair,
        "special_tokens": tokens,
    }))
}

/// Returns the `tokenizer_config.json`: tokens with roles, and chat templates.
///
/// # Errors
/// [`GgufError`]: a key is damaged.
pub(super) fn config(parts: &Parts) -> Result<Value, GgufError> {
    let header = parts.first();
    let vocabulary = Vocabulary::of(header)?;
    let mut config = json!({});
    for (role, key) in [
        ("bos_token", "bos"),
        ("eos_token", "eos"),
        ("unk_token", "unknown"),
        ("pad_token", "padding"),
    ] {
        let id = header.unsigned(&format!("tokenizer.ggml.{key}_token_id"))?;
        if let Some(text) = id.and_then(|id| vocabulary.text(id)) {
            config[role] = text.into();
        }
    }
    let template = |name: &str, source: &str| json!({"name": name, "template": source});
    let mut templates = Vec::new();
    if let Some(source) = header.text(TEMPLATE)? {
        templates.push(template("default", source));
    }
    for name in header
        .texts(TEMPLATES)?
        .unwrap_or_default()
        .into_iter()
        .take(MOST_TEMPLATES)
    {
        let source = header.text(&format!("{TEMPLATE}.{name}"))?;
        templates.extend(source.map(|source| template(name, source)));
    }
    if !templates.is_empty() {
        config["chat_template"] = templates.into();
    }
    Ok(config)
}

/// Returns the tokens that end an answer: those that keys name, and control tokens that do so in
/// all models.
///
/// # Errors
/// [`GgufError`]: a key is damaged.
pub(super) fn end_tokens(header: &Header) -> Result<Vec<u64>, GgufError> {
    let mut ends = Vec::new();
    for role in ["eos", "eot", "eom"] {
        ends.extend(header.unsigned(&format!("tokenizer.ggml.{role}_token_id"))?);
    }
    if header.value(vocabulary::TOKENS).is_some() {
        let vocabulary = Vocabulary::of(header)?;
        ends.extend(ENDS.iter().filter_map(|text| vocabulary.control(text)));
    }
    ends.sort_unstable();
    ends.dedup();
    Ok(ends)
}

#[cfg(test)]
mod tests;
