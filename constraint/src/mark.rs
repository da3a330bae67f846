//! A mark around free text, found in bytes however tokens cut them, or as the token that it is.

use std::{fmt, sync::OnceLock};

use crate::{
    Vocabulary,
    blanks::{MOST_BLANKS, is_blank},
};

/// Brackets around parts of marks that may be tokens.
const BRACKETS: [(char, char); 3] = [('<', '>'), ('[', ']'), ('◁', '▷')];

/// A mark, with the tokens of one vocabulary that may come where it is awaited.
pub(crate) struct Mark {
    bytes: Vec<u8>,
    /// The token that is the mark, if there is one and the mark stands in brackets. The mark is then
    /// found by that alone, as the parts of an answer are told from each other.
    token: Option<u32>,
    /// Knuth, Morris and Pratt's table: for each matched length, the length to go on from.
    fallback: Vec<usize>,
    /// For each matched length, the tokens that free text allows.
    masks: Vec<OnceLock<Vec<u32>>>,
    /// For each matched length, the tokens that spell the mark on.
    nexts: Vec<OnceLock<Vec<u32>>>,
    /// True if some tokens spell the whole mark.
    spelled: OnceLock<bool>,
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.bytes))
    }
}

/// Result of one token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The mark is matched up to this length.
    Within(usize),
    /// The mark ends with the token, or only this many blanks follow in it.
    Ends(usize),
    /// The mark ends inside the token. Such a token is not allowed before a constrained part, to
    /// which its rest would belong.
    EndsInside,
}

impl Mark {
    /// Makes a mark; `None` if it has no bytes.
    pub fn new(text: &str, vocabulary: &Vocabulary) -> Option<Self> {
        let mut mark = Self::spelled(text)?;
        if mark
            .bracketed(0)
            .is_some_and(|part| part.len() == text.len())
        {
            mark.token = vocabulary.token(text.as_bytes());
        }
        Some(mark)
    }

    /// Makes a mark that is no token.
    fn spelled(text: &str) -> Option<Self> {
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
        let masks = || (0..bytes.len()).map(|_| OnceLock::new()).collect();
        Some(Self {
            token: None,
            fallback,
            masks: masks(),
            nexts: masks(),
            spelled: OnceLock::new(),
            bytes,
        })
    }

    /// Returns true if this is the mark of a text.
    pub fn is(&self, text: &str) -> bool {
        self.bytes == text.as_bytes()
    }

    /// Returns the number of its bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns true if it is one token.
    pub fn is_token(&self) -> bool {
        self.token.is_some()
    }

    /// Returns what a token's bytes do after `matched` bytes of the mark.
    pub fn step(&self, matched: usize, token: u32, word: &[u8]) -> Step {
        match self.token {
            Some(own) if own == token => Step::Ends(0),
            Some(_) => Step::Within(0),
            None => self.step_bytes(matched, word),
        }
    }

    fn step_bytes(&self, mut matched: usize, word: &[u8]) -> Step {
        for (at, byte) in word.iter().enumerate() {
            while matched > 0 && self.bytes[matched] != *byte {
                matched = self.fallback[matched - 1];
            }
            matched += usize::from(self.bytes[matched] == *byte);
            if matched == self.bytes.len() {
                let rest = &word[at + 1..];
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
            mask(vocabulary, |token, word| {
                self.step(matched, token, word) != Step::EndsInside
            })
        })
    }

    /// Returns the tokens that spell the mark on after `matched` bytes of it, and nothing else but
    /// blanks behind it. A part of it that is a token can be spelled by that alone.
    pub fn next(&self, matched: usize, vocabulary: &Vocabulary) -> &[u32] {
        self.nexts[matched].get_or_init(|| {
            let (part, only) = self.part(matched, vocabulary);
            let ends = matched + part.len() == self.bytes.len();
            mask(vocabulary, |token, word| match only {
                Some(only) => token == only,
                None if part.starts_with(word) => true,
                None => match word.strip_prefix(part) {
                    Some(rest) => ends && is_blank(rest) && rest.len() <= MOST_BLANKS,
                    None => false,
                },
            })
        })
    }

    /// Returns the part of the mark from a place on that is one token, with that token, or else
    /// the part up to the next such one.
    fn part(&self, from: usize, vocabulary: &Vocabulary) -> (&[u8], Option<u32>) {
        if let Some(token) = self.token {
            return (&self.bytes, Some(token));
        }
        for at in from..self.bytes.len() {
            let Some(part) = self.bracketed(at) else {
                continue;
            };
            match vocabulary.token(part) {
                Some(token) if at == from => return (part, Some(token)),
                Some(_) => return (&self.bytes[from..at], None),
                None => {}
            }
        }
        (&self.bytes[from..], None)
    }

    /// Returns the part in brackets that begins at a place.
    fn bracketed(&self, at: usize) -> Option<&[u8]> {
        let rest = std::str::from_utf8(&self.bytes[at..]).ok()?;
        let first = rest.chars().next()?;
        let (_, close) = BRACKETS.iter().find(|(open, _)| *open == first)?;
        let end = rest.find(*close)? + close.len_utf8();
        Some(&rest.as_bytes()[..end])
    }

    /// Returns true if some tokens spell the mark from its begin to its end.
    pub fn can_be_spelled(&self, vocabulary: &Vocabulary) -> bool {
        *self.spelled.get_or_init(|| self.is_spelled(vocabulary))
    }

    fn is_spelled(&self, vocabulary: &Vocabulary) -> bool {
        let mut reached = vec![false; self.bytes.len()];
        reached[0] = true;
        for from in 0..self.bytes.len() {
            if !reached[from] {
                continue;
            }
            let next = self.next(from, vocabulary);
            let words = vocabulary.words();
            for (_, word) in words.filter(|(token, _)| lockstep_sampling::allows(next, *token)) {
                match reached.get_mut(from + word.len()) {
                    Some(reached) => *reached = true,
                    None => return true,
                }
            }
        }
        false
    }
}

/// Returns the tokens with a text that pass a test.
fn mask(vocabulary: &Vocabulary, passes: impl Fn(u32, &[u8]) -> bool) -> Vec<u32> {
    let mut mask = vec![0; vocabulary.width().div_ceil(32)];
    for (token, word) in vocabulary.words() {
        if !word.is_empty() && passes(token, word) {
            mask[token as usize / 32] |= 1 << (token % 32);
        }
    }
    mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_found_however_it_is_cut() {
        let mark = Mark::spelled("aab").expect("bytes");
        let text = b"aaab";
        for cut in 0..=text.len() {
            let (one, two) = text.split_at(cut);
            let end = match mark.step_bytes(0, one) {
                Step::Within(matched) => mark.step_bytes(matched, two),
                other => other,
            };
            assert_eq!(end, Step::Ends(0), "cut at {cut}");
        }
        assert_eq!(mark.step_bytes(0, b"aabc"), Step::EndsInside);
        assert_eq!(mark.step_bytes(1, b"ab\n\n"), Step::Ends(2));
        assert_eq!(mark.step_bytes(1, b"ab\n.\n"), Step::EndsInside);
        let long = [&b"aab"[..], &[b' '; MOST_BLANKS + 1]].concat();
        assert_eq!(mark.step_bytes(0, &long), Step::EndsInside);
        assert_eq!(mark.step_bytes(2, b"c"), Step::Within(0));
        assert!(Mark::spelled("").is_none());
    }

    #[test]
    fn a_mark_knows_its_parts_in_brackets() {
        let mark = Mark::spelled("<|a|>b◁c▷<d").expect("bytes");
        let bracketed = |at| mark.bracketed(at).map(|part| String::from_utf8_lossy(part));
        assert_eq!(bracketed(0).as_deref(), Some("<|a|>"));
        assert_eq!(bracketed(6).as_deref(), Some("◁c▷"));
        assert_eq!(
            [bracketed(1), bracketed(5), bracketed(13)],
            [None, None, None]
        );
    }
}
