//! Arguments that are written as raw texts, as JSON.

use std::fmt::Write;

use super::super::MOST_HELD;
use super::super::schema::Kinds;
use super::json::{JsonScanner, Scanned};
use crate::writer::Writer;

/// Writer of an object of arguments, `{"key": value, …}`. Strings are passed on as they come;
/// other values when they are whole, since their type depends on all of their text.
#[derive(Debug, Default)]
pub(in super::super) struct TypedArguments {
    count: usize,
    kinds: Kinds,
    /// Text of a value that is not passed on yet.
    whole: String,
    streams: bool,
    /// Finds strings in a value that is JSON for sure; `None` = it may be none.
    scanner: Option<JsonScanner>,
    piece: String,
}

impl TypedArguments {
    /// Begins the object.
    pub fn begin(&mut self, out: &mut Writer<'_>) {
        self.count = 0;
        out.arguments("{");
    }

    /// Begins the value of a key. `sound` says that it is JSON where it looks like that.
    pub fn key(&mut self, key: &str, (kinds, sound): (Kinds, bool), out: &mut Writer<'_>) {
        out.arguments(if self.count == 0 { "\"" } else { ", \"" });
        self.count += 1;
        self.escape(key, out);
        out.arguments("\": ");
        self.kinds = kinds;
        self.whole.clear();
        self.streams = false;
        self.scanner = (sound && kinds.has_json()).then(JsonScanner::default);
        if kinds.is_string() {
            self.stream(out);
        }
    }

    /// Adds text of the value.
    pub fn text(&mut self, text: &str, out: &mut Writer<'_>) {
        text.chars().for_each(|c| self.scan(c));
        if self.streams {
            return self.escape(text, out);
        }
        self.whole.push_str(text);
        // A value that long is taken for a string.
        if self.whole.len() > MOST_HELD {
            self.stream(out);
        }
    }

    fn scan(&mut self, c: char) {
        let Some(scanner) = &mut self.scanner else {
            return;
        };
        let blank = c.is_whitespace() && !scanner.has_begun();
        // What does not begin like JSON is a text.
        if !blank && scanner.read(c) == Scanned::Wrong {
            self.scanner = None;
        }
    }

    /// True inside a string of JSON, where marks are text.
    pub fn in_string(&self) -> bool {
        self.scanner.is_some_and(|scanner| scanner.in_string())
    }

    /// Ends the value.
    pub fn end_value(&mut self, out: &mut Writer<'_>) {
        if self.streams {
            out.arguments("\"");
        } else {
            out.arguments(&self.kinds.json(&self.whole));
        }
        self.whole.clear();
    }

    /// Ends the output inside a value: what there is of it is passed on.
    pub fn cut(&mut self, out: &mut Writer<'_>) {
        if !self.streams {
            self.stream(out);
        }
    }

    /// Ends the object.
    pub fn end(&mut self, out: &mut Writer<'_>) {
        out.arguments("}");
    }

    fn stream(&mut self, out: &mut Writer<'_>) {
        self.streams = true;
        out.arguments("\"");
        let whole = std::mem::take(&mut self.whole);
        self.escape(&whole, out);
    }

    fn escape(&mut self, text: &str, out: &mut Writer<'_>) {
        self.piece.clear();
        text.chars().for_each(|c| escape(c, &mut self.piece));
        if !self.piece.is_empty() {
            out.arguments(&self.piece);
        }
    }
}

/// Appends a character of a JSON string (RFC 8259).
pub(in super::super) fn escape(c: char, into: &mut String) {
    match c {
        '"' => into.push_str("\\\""),
        '\\' => into.push_str("\\\\"),
        '\n' => into.push_str("\\n"),
        '\r' => into.push_str("\\r"),
        '\t' => into.push_str("\\t"),
        c if c < ' ' => {
            // Writing to a string cannot fail.
            let _ = write!(into, "\\u{:04x}", u32::from(c));
        }
        c => into.push(c),
    }
}
