//! Parts of an answer on their way out, without the white space around them that only separates
//! them.

use crate::marks::Mark;

/// Receiver of an answer's parts, in order.
pub trait Sink {
    /// Takes text of the answer.
    fn text(&mut self, text: &str);
    /// Takes text of the model's reasoning.
    fn reasoning(&mut self, text: &str);
    /// Takes the begin of a call of the tool `name`. `id` is the call's id, if the model gave it
    /// one.
    fn call(&mut self, name: &str, id: Option<&str>);
    /// Takes the next piece of the last call's arguments, which together are JSON.
    fn arguments(&mut self, text: &str);
}

/// Maximum bytes of white space that wait for the text behind them.
pub(crate) const MOST_SPACE: usize = 256;

/// White space at the end of a text, held back until it is known if a text follows.
#[derive(Debug, Default)]
pub(crate) struct Spaces {
    held: String,
    /// True if white space waits for what follows it.
    holds: bool,
    /// True while white space is dropped, because nothing but a mark precedes it.
    skips: bool,
}

impl Spaces {
    /// Makes a text that begins here. `holds` drops white space before a part of another kind;
    /// `skips` drops it before the text.
    pub fn new(holds: bool, skips: bool) -> Self {
        Self {
            holds,
            skips,
            held: String::new(),
        }
    }

    /// Number of characters that are held back.
    pub fn held(&self) -> usize {
        self.held.chars().count()
    }

    /// Adds a character, and passes on what shows.
    pub fn push(&mut self, c: char, mut show: impl FnMut(&str)) {
        if c.is_whitespace() && self.skips {
            return;
        }
        if c.is_whitespace() && self.holds && self.held.len() < MOST_SPACE {
            return self.held.push(c);
        }
        self.skips = false;
        self.flush(&mut show);
        show(c.encode_utf8(&mut [0; 4]));
    }

    /// Passes on the white space that is held back.
    pub fn flush(&mut self, mut show: impl FnMut(&str)) {
        if !self.held.is_empty() {
            show(&self.held);
            self.held.clear();
        }
    }

    /// Ends the text here: white space on both sides is dropped.
    pub fn part(&mut self) {
        self.held.clear();
        self.skips = true;
    }
}

/// The way out for a parser of calls.
pub(crate) struct Writer<'a> {
    pub spaces: &'a mut Spaces,
    pub sink: &'a mut dyn Sink,
}

impl Writer<'_> {
    /// Adds text of the answer.
    pub fn text(&mut self, text: &str) {
        for c in text.chars() {
            self.char(c);
        }
    }

    /// Adds a character of the answer.
    pub fn char(&mut self, c: char) {
        self.spaces.push(c, |text| self.sink.text(text));
    }

    /// Adds a mark that is not where it belongs. A token is never mere text, so it is left out.
    pub fn stray(&mut self, mark: Mark) {
        if mark.id.is_none() {
            self.text(mark.text);
        }
    }

    /// Begins a call.
    pub fn call(&mut self, name: &str, id: Option<&str>) {
        self.spaces.part();
        self.sink.call(name, id);
    }

    /// Adds a piece of the call's arguments.
    pub fn arguments(&mut self, text: &str) {
        self.sink.arguments(text);
    }

    /// Adds a character of the call's arguments.
    pub fn argument(&mut self, c: char) {
        self.sink.arguments(c.encode_utf8(&mut [0; 4]));
    }
}
