//! The vocabulary as a trie of bytes.

use std::{fmt, sync::Arc};

use llguidance::{
    ParserFactory,
    api::ParserLimits,
    earley::SlicedBiasComputer,
    toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie},
};
use lockstep_text::Tokenizer;

use crate::{ConstraintError, blanks::is_blank};

/// Most work of a matcher's lexer, all its masks together. Each unit keeps one byte or some, and
/// takes 100 ns. Usual schemas need some thousand units.
pub(crate) const MOST_WORK: u64 = 10_000_000;
/// Most states of a matcher's lexer. Each keeps up to 1.2 kB.
const MOST_STATES: usize = 50_000;

/// Tokens of a model as bytes. Special tokens stand for no text, so only a mark or the end of
/// an output allows them.
pub struct Vocabulary {
    factory: ParserFactory,
    /// Text of each token; special tokens by their names.
    words: Vec<Vec<u8>>,
    end_tokens: Vec<u32>,
    /// Names of special tokens and of those that end outputs, the longest first.
    names: Vec<(String, u32)>,
    /// Tokens of blanks alone, with their lengths.
    blanks: Vec<(u32, usize)>,
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary")
            .field("tokens", &self.words.len())
            .field("end_tokens", &self.end_tokens)
            .finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// Makes the vocabulary of a model with `width` logits. `end_tokens` end every output; no
    /// other part of a program may have another set. It takes a second for large vocabularies.
    ///
    /// # Errors
    /// [`ConstraintError::NoEnd`] without end tokens.
    pub fn new(
        tokenizer: &Tokenizer,
        width: usize,
        end_tokens: &[u32],
    ) -> Result<Self, ConstraintError> {
        let mut words: Vec<Vec<u8>> = Vec::with_capacity(width);
        let mut ends: Vec<u32> = end_tokens.to_vec();
        ends.retain(|id| (*id as usize) < width);
        let first = *ends.first().ok_or(ConstraintError::NoEnd)?;
        let (mut keys, mut names) = (Vec::with_capacity(width), Vec::new());
        for id in 0..width as u32 {
            let is_end = ends.contains(&id);
            let (word, key) = if is_end || tokenizer.is_special(id) {
                let name = tokenizer.id_to_token(id);
                names.extend(name.clone().map(|name| (name, id)));
                let name = name.unwrap_or_else(|| format!("<|{id}|>")).into_bytes();
                let marked = [&[TokTrie::SPECIAL_TOKEN_MARKER], &name[..]].concat();
                (name, marked)
            } else {
                let word = tokenizer.token_bytes(id).unwrap_or_default().to_vec();
                // A byte that no UTF-8 text has would pass for the marker of special tokens.
                let usable = word.first() != Some(&TokTrie::SPECIAL_TOKEN_MARKER);
                let word = if usable { word } else { Vec::new() };
                (word.clone(), word)
            };
            words.push(if is_end { Vec::new() } else { word });
            keys.push(key);
        }
        let info = TokRxInfo::new(width as u32, first);
        let trie = TokTrie::from(&info, &keys).with_eos_tokens(&ends);
        // Its tokenization is not canonical, so masks are exact: forced bytes may be spelt by
        // any tokens.
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::json_slices();
        let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices);
        let mut factory =
            factory.map_err(|error| ConstraintError::Vocabulary(error.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        let numbered = (0..).zip(&words);
        let blanks = numbered.filter(|(_, word)| !word.is_empty() && is_blank(word));
        let blanks = blanks.map(|(token, word)| (token, word.len())).collect();
        names.retain(|(name, _)| !name.is_empty());
        names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        Ok(Self {
            factory,
            words,
            end_tokens: ends,
            names,
            blanks,
        })
    }

    /// Returns the number of logits.
    pub fn width(&self) -> usize {
        self.words.len()
    }

    /// Returns the tokens that end an output.
    pub fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    /// Returns the text of a token; special tokens by their names, end tokens without any.
    pub(crate) fn word(&self, token: u32) -> &[u8] {
        self.words.get(token as usize).map_or(&[], Vec::as_slice)
    }

    /// Returns the first special or end token whose name is in a text, and the place of the name:
    /// the longest one there.
    pub(crate) fn named_in(&self, text: &str) -> Option<(usize, &str, u32)> {
        let found = self.names.iter().filter_map(|(name, id)| {
            let at = text.find(name.as_str())?;
            Some((at, name.as_str(), *id))
        });
        found.min_by_key(|(at, name, _)| (*at, std::cmp::Reverse(name.len())))
    }

    /// Returns the tokens of blanks alone, with their lengths.
    pub(crate) fn blanks(&self) -> impl Iterator<Item = (u32, usize)> {
        self.blanks.iter().copied()
    }

    /// Returns the words of all tokens.
    pub(crate) fn words(&self) -> impl Iterator<Item = (u32, &[u8])> {
        (0..).zip(self.words.iter().map(Vec::as_slice))
    }

    /// Adds all tokens to an empty mask.
    pub(crate) fn all(&self, mask: &mut Vec<u32>) {
        mask.resize(self.width().div_ceil(32), u32::MAX);
        let rest = self.width() % 32;
        if let Some(last) = mask.last_mut().filter(|_| rest > 0) {
            *last = (1 << rest) - 1;
        }
    }

    /// Adds the tokens that end an output to an empty mask.
    pub(crate) fn ends(&self, mask: &mut Vec<u32>) {
        mask.resize(self.width().div_ceil(32), 0);
        for token in &self.end_tokens {
            mask[*token as usize / 32] |= 1 << (token % 32);
        }
    }

    /// Returns the token with this text, if it is a single one.
    pub(crate) fn token(&self, text: &[u8]) -> Option<u32> {
        let found = self.words().find(|(_, word)| *word == text);
        found.map(|(token, _)| token).filter(|_| !text.is_empty())
    }

    pub(crate) fn factory(&self) -> &ParserFactory {
        &self.factory
    }
}

/// Returns limits that no mask of a sane constraint comes near, and that bound time and memory of
/// any other. What a limit of a step allows depends on what was computed before, so reaching one
/// ends the request with an error, and never changes a text.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 1 << 17,
        // About a second of one transition, which can't be cancelled.
        step_lexer_fuel: MOST_WORK,
        step_max_items: 1 << 24,
        max_lexer_states: MOST_STATES,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}
