//! A call as a JSON object: `{"name": "f", "arguments": {…}}`, with its keys in any order.

use super::super::ToolSchemas;
use super::held::Held;
use super::json::{JsonScanner, Scanned};
use crate::marks::Symbol;
use crate::writer::Writer;

/// Keys of the arguments. Llama has the second one.
const ARGUMENTS: [&str; 2] = ["arguments", "parameters"];

/// Keys of an object that may be a call where any other JSON may stand too.
const KEYS: [&str; 6] = ["name", "arguments", "parameters", "type", "id", "function"];

/// Reader of one call. Until the call begins, its symbols are held back.
#[derive(Debug, Default)]
pub(in super::super) struct CallObject {
    held: Held,
    place: Place,
    field: Field,
    key: String,
    scanner: JsonScanner,
    name: Option<String>,
    /// Arguments that came before the name.
    early: String,
    begun: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Start,
    BeforeKey,
    Key {
        escaped: bool,
    },
    Colon,
    Value,
    BehindValue,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Field {
    #[default]
    Other,
    Name,
    Arguments,
}

/// State of a call after a symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Progress {
    /// The call goes on.
    More,
    /// The symbol completed the call.
    Done,
    /// The symbol does not belong to a call.
    Failed,
}

impl CallObject {
    /// Begins behind an opening mark.
    pub fn behind(opening: Symbol) -> Self {
        let mut held = Held::default();
        held.push(opening);
        Self::holding(held)
    }

    /// Begins behind symbols that may be text too.
    pub fn holding(held: Held) -> Self {
        Self {
            held,
            ..Self::default()
        }
    }

    /// True if clients have heard of the call.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// Number of characters that are held back.
    pub fn held(&self) -> usize {
        self.held.chars()
    }

    /// Writes what is held back as text: there is no call.
    pub fn release(&mut self, out: &mut Writer<'_>) {
        self.held.release(out);
    }

    /// Reads a symbol. With `known`, only a call of one of these tools is a call. A mark outside
    /// of strings fails; the caller knows what it means.
    pub fn read(
        &mut self,
        symbol: Symbol,
        known: Option<&ToolSchemas>,
        out: &mut Writer<'_>,
    ) -> Progress {
        let in_string = matches!(self.place, Place::Key { .. })
            || self.place == Place::Value && self.scanner.in_string();
        match symbol {
            Symbol::Char(c) => {
                let progress = self.char(c, known, out);
                // What fails belongs to the text, whole.
                if !self.begun && progress != Progress::Done {
                    self.hold(symbol, progress)
                } else {
                    progress
                }
            }
            Symbol::Mark(mark) if in_string => {
                for c in mark.text.chars() {
                    let _ = self.char(c, known, out);
                }
                match self.begun {
                    true => Progress::More,
                    false => self.hold(symbol, Progress::More),
                }
            }
            Symbol::Mark(_) => Progress::Failed,
        }
    }

    fn hold(&mut self, symbol: Symbol, progress: Progress) -> Progress {
        // A symbol that fails is not held: the caller reads it again.
        if progress == Progress::Failed || self.held.is_full() {
            return Progress::Failed;
        }
        self.held.push(symbol);
        progress
    }

    fn char(&mut self, c: char, known: Option<&ToolSchemas>, out: &mut Writer<'_>) -> Progress {
        let blank = c.is_ascii_whitespace();
        match self.place {
            Place::Start if c == '{' => self.place = Place::BeforeKey,
            Place::BeforeKey if c == '"' => {
                self.key.clear();
                self.place = Place::Key { escaped: false };
            }
            Place::BeforeKey | Place::BehindValue if c == '}' => return self.close(out),
            Place::BehindValue if c == ',' => self.place = Place::BeforeKey,
            Place::Key { escaped } => return self.key(c, escaped, known.is_some()),
            Place::Colon if c == ':' => {
                self.scanner = JsonScanner::default();
                self.place = Place::Value;
            }
            Place::Value if !blank || self.scanner.has_begun() => {
                return self.value(c, known, out);
            }
            _ if blank => {}
            _ => return Progress::Failed,
        }
        Progress::More
    }

    fn key(&mut self, c: char, escaped: bool, bare: bool) -> Progress {
        if c != '"' || escaped {
            self.key.push(c);
            let escaped = c == '\\' && !escaped;
            self.place = Place::Key { escaped };
            return match self.key.len() > super::super::MOST_HELD {
                true => Progress::Failed,
                false => Progress::More,
            };
        }
        self.field = match self.key.as_str() {
            "name" if self.name.is_none() => Field::Name,
            key if ARGUMENTS.contains(&key) && !self.begun && self.early.is_empty() => {
                Field::Arguments
            }
            _ => Field::Other,
        };
        if bare && !self.begun && !KEYS.contains(&self.key.as_str()) {
            return Progress::Failed;
        }
        self.key.clear();
        self.place = Place::Colon;
        Progress::More
    }

    fn value(&mut self, c: char, known: Option<&ToolSchemas>, out: &mut Writer<'_>) -> Progress {
        let scanned = self.scanner.read(c);
        match scanned {
            Scanned::Wrong => return Progress::Failed,
            Scanned::Inside | Scanned::Last => self.keep(c, out),
            Scanned::Behind => {}
        }
        if scanned == Scanned::Inside {
            return Progress::More;
        }
        self.place = Place::BehindValue;
        if self.field == Field::Name {
            let name = serde_json::from_str::<String>(&self.key).ok();
            let name = name.filter(|name| !name.is_empty());
            self.name = name.filter(|name| known.is_none_or(|tools| tools.has(name)));
            if self.name.is_none() {
                return Progress::Failed;
            }
        }
        match scanned {
            Scanned::Behind => self.char(c, known, out),
            _ => Progress::More,
        }
    }

    /// Keeps or passes on a character of a value.
    fn keep(&mut self, c: char, out: &mut Writer<'_>) {
        match self.field {
            Field::Other => {}
            Field::Name => self.key.push(c),
            Field::Arguments if self.name.is_none() => self.early.push(c),
            Field::Arguments => {
                self.begin(out);
                out.argument(c);
            }
        }
    }

    fn begin(&mut self, out: &mut Writer<'_>) {
        if !self.begun {
            self.begun = true;
            self.held.clear();
            out.call(self.name.as_deref().unwrap_or_default(), None);
        }
    }

    fn close(&mut self, out: &mut Writer<'_>) -> Progress {
        if self.name.is_none() {
            return Progress::Failed;
        }
        if !self.begun {
            self.begin(out);
            out.arguments(match self.early.as_str() {
                "" => "{}",
                early => early,
            });
        }
        Progress::Done
    }
}
