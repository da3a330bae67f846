//! Tokenization of long texts, word by word.
//!
//! `tokenizers` finishes each of its steps for the whole text before the next, and keeps 50 to
//! 360 bytes for each byte of the text. Here the same steps are done for one word at a time. So
//! only the normalized text and the ids are kept beside the text, and tokenizing stops where the
//! limit is reached. Every id is the same as with `tokenizers`, whose model does the last step.

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

/// Maximum bytes of a word, as the pre-tokenizer splits words. A model's merges take some hundred
/// bytes for each byte of a word.
const LONGEST_WORD: usize = 256 << 10;

/// The steps of a tokenizer before its model.
#[derive(Debug)]
pub(super) struct Stream {
    raw: Added,
    normalizer: Normalizer,
    normalized: Added,
    words: Words,
}

/// Time limit for one text. A pattern may look ahead over the whole text from each of its
/// characters.
const LONGEST_TIME: Duration = Duration::from_secs(30);

/// The ids so far, at most `most`.
#[derive(Debug)]
pub(super) struct Ids {
    pub ids: Vec<u32>,
    most: usize,
    begun: Instant,
}

impl Ids {
    /// Begins with the ids `first`.
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

    /// Adds an id; fails with [`EncodeError::TooLong`] beyond `most`.
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
    /// Returns `None` if a step of the tokenizer is not supported here.
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

    /// Appends the ids of `text`, without the tokens around a text.
    ///
    /// # Errors
    /// [`EncodeError::TooLong`] as soon as there are more ids than `ids` takes,
    /// [`EncodeError::Failed`] if the tokenizer gives up on a part of the text.
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
