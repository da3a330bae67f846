//! Incremental conversion of token ids to text.

#[cfg(test)]
mod tests;

use crate::tokenizer::Tokenizer;
use crate::utf8::Utf8Stream;

/// Turns a growing sequence of token ids into text, each token in constant time. The pieces,
/// joined, are [`Tokenizer::decode`] of the whole sequence. Bytes of a character that is split
/// between tokens are held back until the character is complete. Only bytes that can no longer
/// become a character are replaced by U+FFFD.
#[derive(Debug, Clone)]
pub struct IncrementalDetokenizer {
    tokenizer: Tokenizer,
    skip_special_tokens: bool,
    /// Special tokens that are not left out.
    shown: Vec<u32>,
    utf8: Utf8Stream,
    /// True if the next token starts the text and the first token decodes differently.
    first: bool,
    /// Character that may still be stripped from the start of the text, and how often.
    strip: Option<(char, usize)>,
    /// The last piece of text; kept for its allocation.
    piece: String,
}

impl Tokenizer {
    /// Returns the text of `ids`, equal to the joined pieces of an [`IncrementalDetokenizer`].
    /// Ids without a token are left out, and special tokens too if `skip_special_tokens`.
    #[must_use]
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        let mut detokenizer = IncrementalDetokenizer::new(self.clone(), skip_special_tokens);
        let mut text = String::with_capacity(ids.len() * 4);
        for &id in ids {
            text.push_str(detokenizer.push(id));
        }
        text.push_str(detokenizer.finish());
        text
    }
}

/// Number of tokens with text at the end of a prompt that decide how the next token decodes. A
/// UTF-8 character is decided after four bytes, and no decoder strips more than a few spaces.
const TAIL: usize = 8;

impl IncrementalDetokenizer {
    /// Starts an empty text.
    #[must_use]
    pub fn new(tokenizer: Tokenizer, skip_special_tokens: bool) -> Self {
        let decoder = tokenizer.decoder();
        Self {
            utf8: Utf8Stream::new(decoder.invalid),
            first: decoder.first_differs,
            strip: decoder.strip_start,
            piece: String::new(),
            skip_special_tokens,
            shown: Vec::new(),
            tokenizer,
        }
    }

    /// Starts after `prompt`, whose text is not returned. The next tokens decode in that context:
    /// the text keeps the space before its first word, and completes a character that the prompt
    /// leaves open. Only the end of a long prompt is read.
    #[must_use]
    pub fn after_prompt(tokenizer: Tokenizer, skip_special_tokens: bool, prompt: &[u32]) -> Self {
        let mut detokenizer = Self::new(tokenizer, skip_special_tokens);
        let mut seen = 0;
        let tail = prompt.iter().rposition(|&id| {
            seen += usize::from(!detokenizer.bytes(id).is_empty());
            seen > TAIL
        });
        if tail.is_some() {
            detokenizer.first = false;
            detokenizer.strip = None;
        }
        for &id in &prompt[tail.unwrap_or(0)..] {
            detokenizer.push(id);
        }
        detokenizer
    }

    /// Shows these special tokens from here on, even if others are left out.
    pub fn show(&mut self, special: &[u32]) {
        self.shown.extend(special);
    }

    /// Adds a token and returns the text that it completes: often its own text, sometimes none.
    pub fn push(&mut self, id: u32) -> &str {
        self.piece.clear();
        self.append(id);
        &self.piece
    }

    /// Adds tokens and returns the text that they complete together.
    pub fn push_all(&mut self, ids: &[u32]) -> &str {
        self.piece.clear();
        for &id in ids {
            self.append(id);
        }
        &self.piece
    }

    /// Ends the text. Returns a replacement character for an incomplete character; mostly there
    /// is none.
    pub fn finish(&mut self) -> &str {
        self.piece.clear();
        self.utf8.finish(&mut self.piece);
        &self.piece
    }

    fn append(&mut self, id: u32) {
        if self.is_left_out(id) {
            return;
        }
        let start = self.piece.len();
        if self.first {
            self.first = false;
            self.utf8
                .push(&self.tokenizer.first_piece(id), &mut self.piece);
        } else {
            let bytes = self.tokenizer.vocabulary().bytes(id);
            self.utf8.push(bytes, &mut self.piece);
        }
        if self.strip.is_some() {
            self.strip_from(start);
        }
    }

    fn is_left_out(&self, id: u32) -> bool {
        let vocabulary = self.tokenizer.vocabulary();
        let skips = self.skip_special_tokens && vocabulary.is_special(id);
        !vocabulary.contains(id) || (skips && !self.shown.contains(&id))
    }

    /// Returns the bytes that a token contributes to a text, unless it is the first token.
    fn bytes(&self, id: u32) -> &[u8] {
        if self.is_left_out(id) {
            &[]
        } else {
            self.tokenizer.vocabulary().bytes(id)
        }
    }

    /// Strips the start of the text. Everything before `start` is stripped already.
    fn strip_from(&mut self, start: usize) {
        while let Some((content, left)) = self.strip {
            match self.piece[start..].chars().next() {
                None => return,
                Some(c) if c == content && left > 0 => {
                    self.piece.drain(start..start + c.len_utf8());
                    self.strip = Some((content, left - 1));
                }
                Some(_) => self.strip = None,
            }
        }
    }
}
