//! Output text: a request's tokens become the text that its client sees.

#[cfg(test)]
mod tests;

use crate::detokenize::IncrementalDetokenizer;
use crate::stop::{StopError, StopMatch, StopMatcher};
use crate::tokenizer::Tokenizer;

/// Options of a request's output text.
#[derive(Debug, Clone, Copy)]
pub struct OutputOptions<'a> {
    /// True if special tokens are left out of the text.
    pub skip_special_tokens: bool,
    /// Special tokens that are not left out, because they mark parts of the answer.
    pub shown_special_tokens: &'a [u32],
    /// Stop strings, none of them empty.
    pub stops: &'a [String],
    /// True if the stop string that ended the text is shown.
    pub include_stop_str_in_output: bool,
    /// Minimum tokens before a stop string can end the text.
    pub min_tokens: usize,
    /// The prompt or its last tokens, as context for decoding the first token. Empty if the output
    /// begins the text. That includes `echo`: there the prompt's tokens are pushed like the others.
    pub prompt: &'a [u32],
}

impl Default for OutputOptions<'_> {
    fn default() -> Self {
        Self {
            skip_special_tokens: true,
            shown_special_tokens: &[],
            stops: &[],
            include_stop_str_in_output: false,
            min_tokens: 0,
            prompt: &[],
        }
    }
}

/// Text that one more token adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenText<'a> {
    /// Text to send now. It may lag behind the tokens, because an incomplete character and the
    /// beginning of a possible stop string are held back.
    pub text: &'a str,
    /// Start of the token's text, in Unicode characters from the start of this output
    /// (`text_offset` of the completions API). Tokens that only continue a character have the
    /// offset of its first token.
    pub text_offset: usize,
    /// End of the token's text, counted in the same way.
    pub text_end: usize,
    /// The stop string that ended the text. [`OutputText::tokens`] then counts the tokens up to
    /// the one that completed it.
    pub stop: Option<StopMatch>,
}

/// Tokens in which stop strings count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StopScope {
    /// All tokens.
    #[default]
    All,
    /// Tokens that are not blank.
    Visible,
    /// No tokens.
    Nothing,
}

/// Detokenizer and stop strings of one output. Each token takes constant time and, once the
/// buffers have grown, no allocation.
#[derive(Debug, Clone)]
pub struct OutputText {
    detokenizer: IncrementalDetokenizer,
    stops: StopMatcher,
    scope: StopScope,
    min_tokens: usize,
    tokens: usize,
    chars: usize,
    visible: String,
}

impl OutputText {
    /// Starts an output.
    ///
    /// # Errors
    /// [`StopError::Empty`] for an empty stop string.
    pub fn new(tokenizer: Tokenizer, options: OutputOptions<'_>) -> Result<Self, StopError> {
        let skip = options.skip_special_tokens;
        let mut detokenizer = IncrementalDetokenizer::after_prompt(tokenizer, skip, options.prompt);
        detokenizer.show(options.shown_special_tokens);
        Ok(Self {
            detokenizer,
            stops: StopMatcher::new(options.stops, options.include_stop_str_in_output)?,
            scope: StopScope::All,
            min_tokens: options.min_tokens,
            tokens: 0,
            chars: 0,
            visible: String::new(),
        })
    }

    /// Sets the tokens, from the next one on, in which stop strings count.
    pub fn scope_stops(&mut self, scope: StopScope) {
        self.scope = scope;
    }

    /// Adds a token. After a match nothing more is returned, and tokens are no longer counted.
    pub fn push(&mut self, id: u32) -> TokenText<'_> {
        self.visible.clear();
        let text_offset = self.chars;
        if self.stops.matched().is_none() {
            self.tokens += 1;
            let piece = self.detokenizer.push(id);
            self.chars += piece.chars().count();
            let counts = match self.scope {
                StopScope::All => true,
                StopScope::Visible => !piece.trim_start().is_empty(),
                StopScope::Nothing => false,
            };
            if !counts || self.tokens < self.min_tokens {
                self.stops.push_unmatched(piece, &mut self.visible);
            } else {
                self.stops.push(piece, &mut self.visible);
            }
        }
        TokenText {
            text: &self.visible,
            text_offset,
            text_end: self.chars,
            stop: self.stops.matched(),
        }
    }

    /// Ends the output for another reason than a stop string, and returns all text that was held
    /// back.
    pub fn finish(&mut self) -> &str {
        self.visible.clear();
        self.stops
            .push_unmatched(self.detokenizer.finish(), &mut self.visible);
        self.stops.finish(&mut self.visible);
        &self.visible
    }

    /// Number of tokens pushed, up to and including the one that completed a stop string.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns the stop string that ended the output; `None` if none did.
    #[must_use]
    pub fn stop(&self) -> Option<StopMatch> {
        self.stops.matched()
    }
}
