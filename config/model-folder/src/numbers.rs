//! The numbers that a tokenizer gives its tokens.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Numbers of the vocabulary's texts, and texts of added tokens by number. The way in which
/// texts are cut into tokens does not matter: drafts begin and end as tokens.
pub(crate) type Numbers = (BTreeMap<String, u64>, BTreeMap<u64, String>);

/// The parts of a `tokenizer.json` with numbers. All other parts are skipped, whatever memory
/// they would take.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    model: Model,
    #[serde(default)]
    added_tokens: Vec<Added>,
}

#[derive(Default, Deserialize)]
struct Model {
    #[serde(default)]
    vocab: Vocabulary,
}

#[derive(Deserialize)]
struct Added {
    id: u64,
    content: String,
}

/// Reads the numbers of a `tokenizer.json`.
///
/// # Errors
/// If the bytes are not such a file.
pub(crate) fn numbers(bytes: &[u8]) -> serde_json::Result<Numbers> {
    let file: File = serde_json::from_slice(bytes)?;
    let added = file.added_tokens.into_iter();
    let added = added.map(|token| (token.id, token.content));
    Ok((file.model.vocab.0, added.collect()))
}

/// Largest number of tokens; no vocabulary comes near it.
const MOST_TOKENS: usize = 1 << 22;

/// Numbers by text. The file has them as an object, or as a list of pairs (Unigram): the first
/// item of a pair is the text, and its place in the list is the number.
#[derive(Default)]
struct Vocabulary(BTreeMap<String, u64>);

impl Vocabulary {
    fn add<E: Error>(&mut self, text: String, number: u64) -> Result<(), E> {
        self.0.insert(text, number);
        match self.0.len() <= MOST_TOKENS {
            true => Ok(()),
            false => Err(E::custom(format!("more than {MOST_TOKENS} tokens"))),
        }
    }
}

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self::default())
    }
}

impl<'de> Visitor<'de> for Vocabulary {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a vocabulary")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut tokens: A) -> Result<Self, A::Error> {
        while let Some((text, number)) = tokens.next_entry()? {
            self.add::<A::Error>(text, number)?;
        }
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut tokens: A) -> Result<Self, A::Error> {
        let mut number = 0;
        while let Some((text, _)) = tokens.next_element::<(String, IgnoredAny)>()? {
            self.add::<A::Error>(text, number)?;
            number += 1;
        }
        Ok(self)
    }
}
