//! The tokenizer's decoder as a function of one token.
//!
//! A decoder of `tokenizer.json` maps a list of tokens to a text. All decoders of language models
//! work on each token alone, with four exceptions. The first token may lose its space mark, bytes
//! of several tokens form one character, spaces may be stripped from the start of the text, and
//! WordPiece puts spaces between words. With these four handled, text can be produced token by
//! token, exactly and in constant time, and nothing is decoded twice.

use serde_json::Value;
use tokenizers::Decoder as _;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::wordpiece;

use super::TokenizerError;
use crate::utf8::Invalid;

/// A decoder as a list of steps.
#[derive(Debug)]
pub(crate) struct Decoder {
    steps: Vec<Step>,
    /// Characters stripped from the start of the whole text: up to `.1` characters `.0`.
    pub strip_start: Option<(char, usize)>,
    /// Replacement of bytes that are not UTF-8.
    pub invalid: Invalid,
    /// True if the first token of a text decodes differently from the others.
    pub first_differs: bool,
}

#[derive(Debug)]
enum Step {
    /// GPT-2's alphabet of printable characters for bytes.
    ByteLevel,
    /// `<0x0A>` stands for a byte.
    ByteFallback,
    /// Replaces a string within a token.
    Replace { from: String, to: String },
    /// Replaces matches of a regular expression within a token.
    ReplaceRegex(DecoderWrapper),
    /// Strips characters from the ends of each token.
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
    /// `▁` stands for a space. In the first token it stands for nothing, unless `keep_first`.
    Metaspace { replacement: char, keep_first: bool },
    /// Words are separated by spaces, and continuations of words are marked by a prefix.
    WordPiece { prefix: String, cleanup: bool },
    /// No decoder: tokens are separated by spaces.
    Join,
}

impl Decoder {
    /// Reads the `decoder` field of `tokenizer.json`. Fails on steps that need more than one token
    /// at a time.
    pub(super) fn new(json: &Value) -> Result<Self, TokenizerError> {
        let mut decoder = Self {
            steps: Vec::new(),
            strip_start: None,
            invalid: Invalid::PerByte,
            first_differs: false,
        };
        match json {
            Value::Null => decoder.steps.push(Step::Join),
            json => decoder.add(json, &mut false)?,
        }
        decoder.first_differs = decoder.steps.iter().any(|step| {
            matches!(
                step,
                Step::WordPiece { .. }
                    | Step::Join
                    | Step::Metaspace {
                        keep_first: false,
                        ..
                    }
            )
        });
        Ok(decoder)
    }

    /// Returns the bytes that `token` contributes to a text, as its first token or a later one.
    pub(super) fn piece(&self, token: &str, first: bool) -> Vec<u8> {
        let mut text = token.to_owned();
        for step in &self.steps {
            match step {
                Step::ByteLevel => return byte_level(&text),
                Step::ByteFallback => {
                    if let Some(byte) = fallback_byte(&text) {
                        return vec![byte];
                    }
                }
                Step::Replace { from, to } => text = text.replace(from.as_str(), to),
                Step::ReplaceRegex(replace) => text = replaced(replace, text),
                Step::Strip {
                    content,
                    start,
                    stop,
                } => text = stripped(&text, *content, *start, *stop),
                Step::Metaspace {
                    replacement,
                    keep_first,
                } => {
                    text = text.replace(*replacement, if first && !keep_first { "" } else { " " });
                }
                Step::WordPiece { prefix, cleanup } => {
                    if !first {
                        text = match text.strip_prefix(prefix.as_str()) {
                            Some(continuation) => continuation.to_owned(),
                            None => format!(" {text}"),
                        };
                    }
                    if *cleanup {
                        text = wordpiece::cleanup(&text);
                    }
                }
                Step::Join if first => {}
                Step::Join => text.insert(0, ' '),
            }
        }
        text.into_bytes()
    }

    fn add(&mut self, json: &Value, fused: &mut bool) -> Result<(), TokenizerError> {
        let kind = json.get("type").and_then(Value::as_str).unwrap_or_default();
        let unsupported = |why: &str| TokenizerError::Decoder {
            message: format!("{kind:?} {why}"),
        };
        let string = |key: &str| json.get(key).and_then(Value::as_str);
        if *fused && !matches!(kind, "Strip" | "Fuse") {
            return Err(unsupported("after the tokens are joined"));
        }
        match kind {
            "Sequence" => {
                let steps = json.get("decoders").and_then(Value::as_array);
                for step in steps.into_iter().flatten() {
                    self.add(step, fused)?;
                }
            }
            "Fuse" => *fused = true,
            "ByteLevel" => {
                self.steps.push(Step::ByteLevel);
                self.invalid = Invalid::PerSequence;
                *fused = true;
            }
            "ByteFallback" => self.steps.push(Step::ByteFallback),
            "Replace" => match json["pattern"]["String"].as_str() {
                Some(from) if !from.is_empty() => {
                    let to = string("content").unwrap_or_default().to_owned();
                    self.steps.push(Step::Replace {
                        from: from.to_owned(),
                        to,
                    });
                }
                _ => {
                    let replace = serde_json::from_value(json.clone());
                    let replace = replace.map_err(|e| unsupported(&e.to_string()))?;
                    self.steps.push(Step::ReplaceRegex(replace));
                }
            },
            "Strip" => self.add_strip(json, *fused).map_err(unsupported)?,
            "Metaspace" => {
                let replacement = string("replacement")
                    .and_then(|s| s.chars().next())
                    .unwrap_or('▁');
                let legacy_keep = json.get("add_prefix_space") == Some(&Value::Bool(false));
                let keep_first =
                    string("prepend_scheme").map_or(legacy_keep, |scheme| scheme == "never");
                self.steps.push(Step::Metaspace {
                    replacement,
                    keep_first,
                });
            }
            "WordPiece" => self.steps.push(Step::WordPiece {
                prefix: string("prefix").unwrap_or("##").to_owned(),
                cleanup: json.get("cleanup").and_then(Value::as_bool).unwrap_or(true),
            }),
            _ => return Err(unsupported("needs to see later tokens")),
        }
        Ok(())
    }

    fn add_strip(&mut self, json: &Value, fused: bool) -> Result<(), &'static str> {
        let count = |key: &str| {
            json.get(key)
                .and_then(Value::as_u64)
                .map_or(0, |n| n as usize)
        };
        let content = json
            .get("content")
            .and_then(Value::as_str)
            .and_then(|s| s.chars().next());
        let content = content.ok_or("without content")?;
        let (start, stop) = (count("start"), count("stop"));
        let bytes = self
            .steps
            .iter()
            .any(|step| matches!(step, Step::ByteFallback));
        match (fused, stop) {
            (true, 0) if self.strip_start.is_none() => self.strip_start = Some((content, start)),
            (true, _) => return Err("from the end of the text"),
            (false, _) if bytes => return Err("between ByteFallback and Fuse"),
            (false, _) => self.steps.push(Step::Strip {
                content,
                start,
                stop,
            }),
        }
        Ok(())
    }
}

fn replaced(replace: &DecoderWrapper, text: String) -> String {
    let whole = text.clone();
    replace
        .decode_chain(vec![text])
        .map_or(whole, |parts| parts.concat())
}

fn stripped(text: &str, content: char, start: usize, stop: usize) -> String {
    let leading = text
        .chars()
        .take(start)
        .take_while(|&c| c == content)
        .count();
    let rest = &text[leading * content.len_utf8()..];
    let trailing = rest
        .chars()
        .rev()
        .take(stop)
        .take_while(|&c| c == content)
        .count();
    rest[..rest.len() - trailing * content.len_utf8()].to_owned()
}

/// Returns the byte that a byte-fallback token stands for.
pub(crate) fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 {
        u8::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

/// Returns a byte-level token's bytes. A token with a character outside the alphabet (some added
/// tokens) stands for itself.
fn byte_level(token: &str) -> Vec<u8> {
    token
        .chars()
        .map(byte_of)
        .collect::<Option<Vec<u8>>>()
        .unwrap_or_else(|| token.as_bytes().to_vec())
}

/// Returns the byte of a character, the inverse of GPT-2's `bytes_to_unicode`. Printable Latin-1
/// characters stand for themselves. The other bytes, in order, are U+0100 and up.
fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ 0..=0xFF => Some(code as u8).filter(|&byte| stands_for_itself(byte)),
        code => UNPRINTABLE.get((code - 0x100) as usize).copied(),
    }
}

/// Returns the character of a byte in a byte-level vocabulary (GPT-2's `bytes_to_unicode`).
pub(super) fn char_of(byte: u8) -> char {
    if stands_for_itself(byte) {
        return char::from(byte);
    }
    let at = UNPRINTABLE.partition_point(|&other| other < byte);
    char::from_u32(0x100 + at as u32).unwrap_or(char::REPLACEMENT_CHARACTER)
}

const fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

const UNPRINTABLE: [u8; 68] = {
    let mut table = [0; 68];
    let (mut byte, mut filled) = (0u8, 0);
    while filled < table.len() {
        if !stands_for_itself(byte) {
            table[filled] = byte;
            filled += 1;
        }
        byte = byte.wrapping_add(1);
    }
    table
};
