//! Search for added tokens in a text.

use aho_corasick::{AhoCorasick, MatchKind};

use super::EncodeError;

/// Finds added tokens: the leftmost one, and of several with the same start the
/// longest.
#[derive(Debug)]
pub(super) struct Added {
    finder: Option<AhoCorasick>,
    ids: Vec<u32>,
}

/// A piece of a text.
pub(super) enum Part<'t> {
    /// An added token.
    Token(u32),
    /// Text between two added tokens.
    Text(&'t str),
}

impl Added {
    /// Returns `None` if the tokens cannot be searched for.
    pub(super) fn new(tokens: Vec<(String, u32)>) -> Option<Self> {
        let (contents, ids): (Vec<String>, Vec<u32>) = tokens.into_iter().unzip();
        let finder = if contents.is_empty() {
            None
        } else {
            let mut builder = AhoCorasick::builder();
            builder.match_kind(MatchKind::LeftmostLongest);
            Some(builder.build(contents).ok()?)
        };
        Some(Self { finder, ids })
    }

    /// Calls `each` for every piece, in order, with the byte offset where the piece
    /// begins.
    pub(super) fn split(
        &self,
        text: &str,
        mut each: impl FnMut(usize, Part<'_>) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let mut from = 0;
        for found in self.finder.iter().flat_map(|finder| finder.find_iter(text)) {
            if from < found.start() {
                each(from, Part::Text(&text[from..found.start()]))?;
            }
            each(
                found.start(),
                Part::Token(self.ids[found.pattern().as_usize()]),
            )?;
            from = found.end();
        }
        if from < text.len() {
            each(from, Part::Text(&text[from..]))?;
        }
        Ok(())
    }
}
