//! Headers of messages.

use super::super::held::Held;
use super::CHANNEL;
use crate::marks::Symbol;

/// Maximum bytes of a header.
const MOST_HEADER: usize = 512;
/// Words that a header may begin with where its begin is in the prompt.
const WORDS: [&str; 4] = ["to=", "analysis", "commentary", "final"];
/// Names of channels.
const CHANNELS: [(&str, Kind); 3] = [
    ("analysis", Kind::Thought),
    ("commentary", Kind::Text),
    ("final", Kind::Answer),
];
/// Word before a message's receiver.
const RECEIVER: &str = "to=";

/// Kinds of content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Thought,
    /// Text that other messages follow.
    Text,
    /// Text that is the last of an output.
    Answer,
    Call,
}

/// A header so far.
#[derive(Debug, Default)]
pub(super) struct Header {
    held: Held,
    /// Its characters, with a space for each mark.
    text: String,
    /// Place in `text` behind the first mark of a channel.
    channel: Option<usize>,
    marked: bool,
    of_tokens: bool,
}

impl Header {
    /// Adds a symbol.
    pub fn push(&mut self, symbol: Symbol) {
        self.held.push(symbol);
        match symbol {
            Symbol::Char(c) => self.text.push(c),
            Symbol::Mark(mark) => {
                self.text.push(' ');
                self.marked = true;
                self.of_tokens |= mark.id.is_some();
                if mark.index == CHANNEL && self.channel.is_none() {
                    self.channel = Some(self.text.len());
                }
            }
        }
    }

    /// Forgets the symbols.
    pub fn clear(&mut self) {
        self.held.clear();
        self.text.clear();
        (self.channel, self.marked, self.of_tokens) = (None, false, false);
    }

    /// True if this can't be a header, but only text without one.
    pub fn is_text(&self) -> bool {
        let text = self.text.trim_start();
        let begins = || WORDS.iter().any(|word| word.starts_with(text.trim_end()));
        let is_header = self.marked || text.starts_with(RECEIVER) || begins();
        !is_header || self.text.len() > MOST_HEADER
    }

    /// Returns the receiver of the message.
    pub fn receiver(&self) -> Option<&str> {
        receiver(&self.text).map(|(receiver, _)| receiver)
    }

    /// Returns the kind of the channel that is named first, behind the mark of one if there is one.
    pub fn kind(&self) -> Option<Kind> {
        let behind = self.channel.and_then(|at| named(&self.text[at..]));
        behind.or_else(|| named(&self.text))
    }

    /// True if nothing but names of channels and signs stands behind the mark of a channel, which
    /// is a token.
    pub fn is_bare(&self) -> bool {
        let Some(at) = self.channel.filter(|_| self.of_tokens) else {
            return false;
        };
        let names = CHANNELS.iter().map(|(name, _)| name);
        let rest = names.fold(self.text[at..].to_owned(), |text, name| {
            text.replace(name, "")
        });
        !rest.contains(char::is_alphabetic)
    }

    /// True if one of its marks is a token.
    pub fn is_of_tokens(&self) -> bool {
        self.of_tokens
    }

    /// Number of characters, marks included.
    pub fn held(&self) -> usize {
        self.held.chars()
    }

    /// Takes the header for text.
    pub fn take(&mut self) -> String {
        let text = self.held.take();
        self.clear();
        text
    }
}

/// Returns the receiver, and its place with the word before it.
fn receiver(text: &str) -> Option<(&str, std::ops::Range<usize>)> {
    let at = text.find(RECEIVER)?;
    let begin = at + RECEIVER.len();
    let end = text[begin..].find(char::is_whitespace);
    let end = end.map_or(text.len(), |end| begin + end);
    Some((&text[begin..end], at..end))
}

/// Returns the kind of the channel that a text names first, outside of its receiver.
fn named(text: &str) -> Option<Kind> {
    let mut text = text.to_owned();
    if let Some((_, place)) = receiver(&text) {
        text.replace_range(place, "");
    }
    let found = CHANNELS.iter();
    let found = found.filter_map(|(name, kind)| Some((text.find(name)?, *kind)));
    found.min_by_key(|(at, _)| *at).map(|(_, kind)| kind)
}
