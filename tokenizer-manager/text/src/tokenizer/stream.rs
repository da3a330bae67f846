//! Long texts, word by word.
//!
//! `tokenizers` takes each of its steps for the whole text before the next, and keeps 50 to 360
//! bytes for each byte of it. Here the same steps are taken for one word at a time: what is held
//! beside the text is its normalized form and the ids, and a text that turns out too long is left
//! where its limit is reached. Every id is that of `tokenizers`, whose model does the last step.

mod added;
mod normalize;
mod words;

use std::time::{Duration, Instant};

use added::{Added, Part};
use normalize::Normalizer;
use tokenizers::Model as _;
use tokenizers::Tokenizer as HfTokenizer;
use words::Words;

use super::{EncodeError, Fields};

/// The longest word, bytes, of which a model may be asked for tokens. Its merges take some hundred
/// bytes for each of them. A word is what the pre-tokenizer says.
const LONGEST_WORD: usize = 256 << 10;

/// A tokenizer's steps up to its model.
#[derive(Debug)]
pub(super) struct Stream {
    raw: Added,
    normalizer: Normalizer,
    normalized: Added,
    words: Words,
}

/// How long a text may take: patterns may look ahead over all of it from each of its characters.
const LONGEST_TIME: Duration = Duration::from_secs(30);

/// Ids so far, at most `most` of them.
#[derive(Debug)]
pub(super) struct Ids {
    pub ids: Vec<u32>,
    most: usize,
    begun: Instant,
}

impl Ids {
    /// Begins with those of `first`.
    pub(super) fn new(first: &[u32], most: usize) -> Self {
        Self {
            ids: first.to_vec(),
            most,
            begun: Instant::now(),
        }
    }

    fn in_time(&self) -> Result<(), EncodeError> {
        if self.begun.elapsed() > LONGEST_TIME {
            let limit = LONGEST_TIME.as_secs();
            return Err(failed(format!("it takes more than {limit} s")));
        }
        Ok(())
    }

    /// Fails with [`EncodeError::TooLong`] beyond `most`.
    pub(super) fn push(&mut self, id: u32) -> Result<(), EncodeError> {
        self.ids.push(id);
        if self.ids.len() > self.most {
            return Err(EncodeError::TooLong {
                at_least: self.ids.len(),
                limit: self.most,
                exact: false,
            });
        }
        Ok(())
    }
}

impl Stream {
    /// `None` where a step of the tokenizer is not known here.
    pub(super) fn new(fields: &Fields, tokenizer: &HfTokenizer) -> Option<Self> {
        let normalizer = Normalizer::new(&fields.normalizer)?;
        let tokens = tokenizer.get_added_tokens_decoder();
        let (mut raw, mut normalized) = (Vec::new(), Vec::new());
        for (&id, token) in tokens.iter().filter(|(_, token)| !token.content.is_empty()) {
            if token.single_word || token.lstrip || token.rstrip {
                return None;
            }
            if token.normalized {
                let content = normalizer.apply(&token.content).ok()?.into_owned();
                normalized.push((content, id));
            } else {
                raw.push((token.content.clone(), id));
            }
        }
        Some(Self {
            raw: Added::new(raw)?,
            normalizer,
            normalized: Added::new(normalized)?,
            words: Words::new(fields, tokenizer)?,
        })
    }

    /// Appends the ids of `text`, without what stands around a text.
    ///
    /// # Errors
    /// [`EncodeError::TooLong`] as soon as there are more than `ids` takes,
    /// [`EncodeError::Failed`] where the tokenizer gives up on a part of the text.
    pub(super) fn encode(
        &self,
        tokenizer: &HfTokenizer,
        text: &str,
        ids: &mut Ids,
    ) -> Result<(), EncodeError> {
        let mut spelled = String::new();
        self.raw.split(text, |at, part| {
            let part = match part {
                Part::Token(id) => return ids.push(id),
                Part::Text(part) => self.normalizer.apply(part)?,
            };
            self.normalized.split(&part, |within, part| {
                let part = match part {
                    Part::Token(id) => return ids.push(id),
                    Part::Text(part) => part,
                };
                self.words.each(part, at + within == 0, &mut |word| {
                    ids.in_time()?;
                    let word = self.words.spell(checked(word)?, &mut spelled);
                    let tokens = tokenizer.get_model().tokenize(word).map_err(failed)?;
                    tokens.iter().try_for_each(|token| ids.push(token.id))
                })
            })
        })
    }
}

fn checked(word: &str) -> Result<&str, EncodeError> {
    if word.len() > LONGEST_WORD {
        return Err(failed(format!(
            "{} bytes of it are one word to this tokenizer, more than {LONGEST_WORD}",
            word.len()
        )));
    }
    Ok(word)
}

fn failed(error: impl std::fmt::Display) -> EncodeError {
    EncodeError::Failed {
        message: error.to_string(),
    }
}

#[cfg(test)]
mod tests;
