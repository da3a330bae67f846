//! The tokens of a GGUF file, with their kinds.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::gguf::error::GgufError;
use crate::gguf::header::Header;
use crate::gguf::metadata;

/// Keys of the tokens' texts, kinds and scores.
pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
const KINDS: &str = "tokenizer.ggml.token_type";

/// Kinds of tokens.
const NORMAL: u64 = 1;
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;
const UNUSED: u64 = 5;

/// All tokens.
pub(super) struct Vocabulary<'h> {
    /// Texts by number.
    texts: Vec<&'h str>,
    /// Kinds by number.
    kinds: Vec<u64>,
    /// Numbers by text, without unused tokens. If two tokens have one text, it is the first's.
    pub numbers: BTreeMap<&'h str, u32>,
}

impl<'h> Vocabulary<'h> {
    /// Reads the tokens.
    ///
    /// # Errors
    /// [`GgufError`]: a list is missing or damaged.
    pub fn of(header: &'h Header) -> Result<Self, GgufError> {
        let texts = header
            .texts(TOKENS)?
            .ok_or_else(|| header.missing(TOKENS))?;
        let kind = |value: metadata::Value| match value {
            metadata::Value::Unsigned(kind) => kind,
            _ => NORMAL,
        };
        let kinds: Vec<u64> = match header.list(KINDS)? {
            Some(list) => list.into_iter().map(kind).collect(),
            None => vec![NORMAL; texts.len()],
        };
        if kinds.len() != texts.len() {
            let reason = format!("has {} kinds for {} tokens", kinds.len(), texts.len());
            return Err(header.wrong(KINDS, &reason));
        }
        let mut numbers = BTreeMap::new();
        for (number, (text, kind)) in (0..).zip(texts.iter().zip(&kinds)) {
            if *kind != UNUSED {
                numbers.entry(*text).or_insert(number);
            }
        }
        Ok(Self {
            texts,
            kinds,
            numbers,
        })
    }

    /// Returns the text of a token; `None` if there is none.
    pub fn text(&self, number: u64) -> Option<&'h str> {
        self.texts.get(usize::try_from(number).ok()?).copied()
    }

    /// Returns the number of the control token `text`.
    pub fn control(&self, text: &str) -> Option<u64> {
        let number = *self.numbers.get(text)? as usize;
        // Some files call them the user's, which llama.cpp takes for control tokens too.
        [CONTROL, USER_DEFINED]
            .contains(&self.kinds[number])
            .then_some(number as u64)
    }

    /// Returns the tokens that are found in texts before all others, as `tokenizer.json` lists
    /// them: control tokens, and those that users defined.
    pub fn added(&self) -> Vec<Value> {
        let tokens = self.texts.iter().zip(&self.kinds).enumerate();
        let token = |(number, (text, kind)): (usize, (&&str, &u64))| {
            let added = [UNKNOWN, CONTROL, USER_DEFINED].contains(kind) && !text.is_empty();
            let is_first = || {
                self.numbers
                    .get(text)
                    .is_some_and(|own| *own as usize == number)
            };
            (added && is_first()).then(|| {
                json!({
                    "id": number,
                    "content": text,
                    "single_word": false,
                    "lstrip": false,
                    "rstrip": false,
                    "normalized": false,
                    "special": *kind != USER_DEFINED,
                })
            })
        };
        tokens.filter_map(token).collect()
    }

    /// Returns the tokens that others may be merged to: number and text.
    pub fn merged(&self) -> impl Iterator<Item = (usize, &'h str)> {
        let tokens = self.texts.iter().zip(&self.kinds).enumerate();
        tokens.filter_map(|(number, (text, kind))| {
            [NORMAL, USER_DEFINED]
                .contains(kind)
                .then_some((number, *text))
        })
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.texts.len()
    }
}
