//! How a tokenizer numbers its tokens.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Numbers of the vocabulary's texts, and texts of added tokens by number. How
/// texts are cut into tokens does not matter: drafts begin and end as tokens.
pub(crate) type Numbers = (BTreeMap<String, u64>, BTreeMap<u64, String>);

/// What of a `tokenizer.json` says them. The rest is skipped, whatever it would
/// take in memory.
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

/// The numbers of a `tokenizer.json`.
///
/// # Errors
/// Where it is no such file.
pub(crate) fn numbers(bytes: &[u8]) -> serde_json::Result<Numbers> {
    let file: File = serde_json::from_slice(bytes)?;
    let added = file.added_tokens.into_iter();
    let added = added.map(|token| (token.id, token.content));
    Ok((file.model.vocab.0, added.collect()))
}

/// Far more than any vocabulary has.
const MOST_TOKENS: usize = 1 << 22;

/// Numbers by text: written as such, or as a list of pairs whose first is the text
/// and whose place is the number (Unigram).
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
