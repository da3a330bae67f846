//! A mark that ends free text, found in bytes however tokens cut them.

use std::sync::OnceLock;

use crate::{
    Vocabulary,
    blanks::{MOST_BLANKS, is_blank},
};

/// A mark, with the tokens of one vocabulary that free text allows before it.
#[derive(Debug)]
pub(crate) struct Mark {
    bytes: Vec<u8>,
    /// Knuth, Morris and Pratt's table: for each matched length, the length to go on from.
    fallback: Vec<usize>,
    /// For each matched length, the allowed tokens.
    masks: Vec<OnceLock<Vec<u32>>>,
}

/// Result of one token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The mark is matched up to this length.
    Within(usize),
    /// The mark ends with the token, or only this many blanks follow in it.
    Ends(usize),
    /// The mark ends inside the token. Such a token is not allowed, since its rest would belong
    /// to the constrained part.
    EndsInside,
}

impl Mark {
    /// Makes a mark; `None` if it has no bytes.
    pub fn new(text: &str) -> Option<Self> {
        let bytes = text.as_bytes().to_vec();
        if bytes.is_empty() {
            return None;
        }
        let mut fallback = vec![0; bytes.len()];
        let mut length = 0;
        for at in 1..bytes.len() {
            while length > 0 && bytes[at] != bytes[length] {
                length = fallback[length - 1];
            }
            length += usize::from(bytes[at] == bytes[length]);
            fallback[at] = length;
        }
        let masks = (0..bytes.len()).map(|_| OnceLock::new()).collect();
        Some(Self {
            bytes,
            fallback,
            masks,
        })
    }

    /// Returns true if this is the mark of a text.
    pub fn is(&self, text: &str) -> bool {
        self.bytes == text.as_bytes()
    }

    /// Returns what a token's bytes do after `matched` bytes of the mark.
    pub fn step(&self, mut matched: usize, token: &[u8]) -> Step {
        for (at, byte) in token.iter().enumerate() {
            while matched > 0 && self.bytes[matched] != *byte {
                matched = self.fallback[matched - 1];
            }
            matched += usize::from(self.bytes[matched] == *byte);
            if matched == self.bytes.len() {
                let rest = &token[at + 1..];
                return match is_blank(rest) && rest.len() <= MOST_BLANKS {
                    true => Step::Ends(rest.len()),
                    false => Step::EndsInside,
                };
            }
        }
        Step::Within(matched)
    }

    /// Returns the tokens that free text allows after `matched` bytes of the mark: all that have
    /// a text, but for those in which the mark ends. No token ends the output.
    pub fn allowed(&self, matched: usize, vocabulary: &Vocabulary) -> &[u32] {
        self.masks[matched].get_or_init(|| {
            let mut mask = vec![0; vocabulary.width().div_ceil(32)];
            for (token, word) in vocabulary.words() {
                if !word.is_empty() && self.step(matched, word) != Step::EndsInside {
                    mask[token as usize / 32] |= 1 << (token % 32);
                }
            }
            mask
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_found_however_it_is_cut() {
        let mark = Mark::new("aab").expect("bytes");
        let text = b"aaab";
        for cut in 0..=text.len() {
            let (one, two) = text.split_at(cut);
            let end = match mark.step(0, one) {
                Step::Within(matched) => mark.step(matched, two),
                other => other,
            };
            assert_eq!(end, Step::Ends(0), "cut at {cut}");
        }
        assert_eq!(mark.step(0, b"aabc"), Step::EndsInside);
        assert_eq!(mark.step(1, b"ab\n\n"), Step::Ends(2));
        assert_eq!(mark.step(1, b"ab\n.\n"), Step::EndsInside);
        let long = [&b"aab"[..], &[b' '; MOST_BLANKS + 1]].concat();
        assert_eq!(mark.step(0, &long), Step::EndsInside);
        assert_eq!(mark.step(2, b"c"), Step::Within(0));
        assert!(Mark::new("").is_none());
    }
}
