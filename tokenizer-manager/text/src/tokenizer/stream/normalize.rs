//! Normalizers that may work on each piece of a text alone.

use std::borrow::Cow;

use serde_json::Value;
use tokenizers::normalizers::NFC;
use tokenizers::{NormalizedString, Normalizer as _};

use super::{EncodeError, failed};

/// Bytes that are composed at once, and maximum bytes of a piece.
const PIECE: usize = 16 << 10;
const LONGEST_PIECE: usize = 256 << 10;

/// Steps, in order.
#[derive(Debug)]
pub(super) struct Normalizer(Vec<Step>);

#[derive(Debug)]
enum Step {
    Compose,
    Prepend(String),
    Replace { pattern: String, content: String },
}

impl Normalizer {
    /// Returns `None` if a step is not supported here.
    pub(super) fn new(json: &Value) -> Option<Self> {
        let mut steps = Vec::new();
        add(json, &mut steps)?;
        Some(Self(steps))
    }

    /// Returns the normalized text.
    ///
    /// # Errors
    /// [`EncodeError::Failed`] if characters combine over an absurd length.
    pub(super) fn apply<'t>(&self, text: &'t str) -> Result<Cow<'t, str>, EncodeError> {
        let mut text = Cow::Borrowed(text);
        for step in &self.0 {
            text = match step {
                Step::Compose if text.is_ascii() => text,
                Step::Compose => compose(&text)?.into(),
                Step::Prepend(_) if text.is_empty() => text,
                Step::Prepend(prefix) => format!("{prefix}{text}").into(),
                Step::Replace { pattern, .. } if !text.contains(pattern) => text,
                Step::Replace { pattern, content } => text.replace(pattern, content).into(),
            };
        }
        Ok(text)
    }
}

fn add(json: &Value, steps: &mut Vec<Step>) -> Option<()> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    steps.push(match json["type"].as_str() {
        None => return json.is_null().then_some(()),
        Some("Sequence") => {
            let mut all = json["normalizers"].as_array()?.iter();
            return all.try_for_each(|step| add(step, steps));
        }
        Some("NFC") => Step::Compose,
        Some("Prepend") => Step::Prepend(text(&json["prepend"])?),
        Some("Replace") => Step::Replace {
            pattern: text(&json["pattern"]["String"]).filter(|pattern| !pattern.is_empty())?,
            content: text(&json["content"])?,
        },
        Some(_) => return None,
    });
    Some(())
}

/// Composes characters (NFC) piece by piece.
fn compose(text: &str) -> Result<String, EncodeError> {
    let mut composed = String::with_capacity(text.len());
    let mut from = 0;
    for (at, c) in text.char_indices() {
        if at - from > LONGEST_PIECE {
            return Err(failed("too many characters combine with each other"));
        }
        if at - from >= PIECE && begins_anew(c) {
            composed.push_str(&compose_piece(&text[from..at])?);
            from = at;
        }
    }
    composed.push_str(&compose_piece(&text[from..])?);
    Ok(composed)
}

fn compose_piece(text: &str) -> Result<String, EncodeError> {
    let mut piece = NormalizedString::from(text);
    NFC.normalize(&mut piece).map_err(failed)?;
    Ok(piece.get().to_owned())
}

/// Returns true if a character never combines with characters before it: a starter with
/// `NFC_Quick_Check=Yes` (Unicode Standard Annex 15, section 9). Only some such characters are
/// listed, in every common script.
fn begins_anew(c: char) -> bool {
    matches!(c,
        '\0'..='\u{7F}'
        | '\u{410}'..='\u{44F}'
        | '\u{3041}'..='\u{3096}'
        | '\u{30A1}'..='\u{30FA}'
        | '\u{4E00}'..='\u{9FFF}'
        | '\u{AC00}'..='\u{D7A3}')
}
