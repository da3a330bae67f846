//! Bound on the text that one token can cover.

use serde_json::Value;
use tokenizers::Tokenizer as HfTokenizer;

use super::Fields;
use super::decoder::fallback_byte;

/// Returns the maximum bytes of input that one token can stand for. `None` if there is no such
/// bound. That is so for a normalizer that drops text, a pre-tokenizer that drops separators,
/// tokens that swallow the whitespace around them, and an `<unk>` that stands for a run of any
/// length.
///
/// The bound holds for texts with and without added tokens.
pub(super) fn max_bytes_per_token(fields: &Fields, tokenizer: &HfTokenizer) -> Option<usize> {
    let shrink = normalizer_shrink(&fields.normalizer)?;
    if drops_text(&fields.pre_tokenizer) {
        return None;
    }
    let added = tokenizer.get_added_tokens_decoder();
    if added.values().any(|token| token.lstrip || token.rstrip) {
        return None;
    }
    let byte_level = has_step(&fields.pre_tokenizer, "pretokenizers", "ByteLevel")
        || has_step(&fields.normalizer, "normalizers", "ByteLevel");
    let byte_fallback = fields.model.byte_fallback;
    let vocabulary = tokenizer.get_vocab(false);
    if !(byte_level && vocabulary_covers_bytes(tokenizer)
        || byte_fallback && fallback_covers_bytes(tokenizer))
    {
        return None;
    }
    let length = |token: &str| match fallback_byte(token) {
        Some(_) if byte_fallback => 1,
        _ if byte_level => token.chars().count(),
        _ => token.len(),
    };
    let longest = vocabulary.keys().map(|token| length(token)).max()?;
    let longest_added = added
        .values()
        .map(|token| token.content.len())
        .max()
        .unwrap_or(0);
    Some(longest.max(longest_added) * shrink)
}

/// Returns the factor by which the normalizer can shorten a text in bytes; `None` if there is no
/// limit.
fn normalizer_shrink(normalizer: &Value) -> Option<usize> {
    match normalizer["type"].as_str() {
        None => Some(1),
        Some("Prepend" | "ByteLevel") => Some(1),
        // A composed character comes from at most four, and NFC saves at most 7 bytes to 2
        // (U+1FBE U+0308 U+0301 to U+0390). NFD only lengthens text, but it lengthens added
        // tokens too.
        Some("NFC" | "NFD") => Some(4),
        Some("Replace") => {
            let pattern = normalizer["pattern"]["String"].as_str()?;
            let content = normalizer["content"].as_str()?;
            (content.len() >= pattern.len()).then_some(1)
        }
        Some("Sequence") => {
            let steps = normalizer["normalizers"].as_array()?;
            steps.iter().try_fold(1, |total: usize, step| {
                total.checked_mul(normalizer_shrink(step)?)
            })
        }
        Some(_) => None,
    }
}

fn drops_text(pre_tokenizer: &Value) -> bool {
    match pre_tokenizer["type"].as_str() {
        None => !pre_tokenizer.is_null(),
        Some("ByteLevel" | "Metaspace" | "Digits" | "Punctuation" | "Split") => {
            pre_tokenizer["behavior"].as_str() == Some("Removed")
        }
        Some("Sequence") => pre_tokenizer["pretokenizers"]
            .as_array()
            .is_none_or(|steps| steps.iter().any(drops_text)),
        Some(_) => true,
    }
}

fn has_step(value: &Value, list: &str, kind: &str) -> bool {
    value["type"] == kind
        || value[list]
            .as_array()
            .is_some_and(|steps| steps.iter().any(|step| has_step(step, list, kind)))
}

/// Returns true if each of the 256 characters of the byte-level alphabet is a token, so that
/// nothing is ever dropped.
fn vocabulary_covers_bytes(tokenizer: &HfTokenizer) -> bool {
    tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet()
        .into_iter()
        .all(|c| tokenizer.token_to_id(c.encode_utf8(&mut [0; 4])).is_some())
}

/// Returns true if each of the 256 bytes has a token of its own.
pub(super) fn fallback_covers_bytes(tokenizer: &HfTokenizer) -> bool {
    (0..=u8::MAX).all(|byte| tokenizer.token_to_id(&format!("<0x{byte:02X}>")).is_some())
}
