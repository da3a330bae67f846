//! Echo of the prompt before its completion.

use lockstep_text::{IncrementalDetokenizer, Tokenizer};
use lockstep_types::sampling::TokenLogprob;

use crate::http::openai::logprobs::CompletionLogprobs;

/// A prompt's text, and the offset of each token in it.
pub(super) struct Echo {
    /// The text without a trailing incomplete character: that character comes with the
    /// output.
    pub text: String,
    /// Length of the text in characters.
    pub chars: usize,
    offsets: Vec<usize>,
}

impl Echo {
    pub(super) fn new(tokenizer: &Tokenizer, prompt: &[u32], skip_special_tokens: bool) -> Self {
        let mut detokenizer = IncrementalDetokenizer::new(tokenizer.clone(), skip_special_tokens);
        let (mut text, mut chars) = (String::new(), 0);
        let mut offsets = Vec::with_capacity(prompt.len());
        for id in prompt {
            offsets.push(chars);
            let piece = detokenizer.push(*id);
            chars += piece.chars().count();
            text.push_str(piece);
        }
        Self {
            text,
            chars,
            offsets,
        }
    }

    /// Adds the prompt's tokens to `logprobs`.
    pub(super) fn describe(
        &self,
        tokenizer: &Tokenizer,
        prompt: &[TokenLogprob],
        logprobs: &mut CompletionLogprobs,
    ) {
        for (token, offset) in prompt.iter().zip(&self.offsets) {
            logprobs.push(tokenizer, token, *offset);
        }
    }
}
