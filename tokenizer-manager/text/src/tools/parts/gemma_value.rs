//! Gemma's objects as JSON, as they come.

use super::super::schema::Kinds;
use super::typed::escape;
use crate::writer::Writer;

/// Maximum nesting of a value.
const DEEPEST: usize = 64;
/// Maximum bytes of a name, a number or another word.
const MOST_WORD: usize = 256;

/// Translator of one object: texts between marks or in quotes, numbers, `true`, `false`, `null`,
/// lists and objects. Other words become texts.
#[derive(Debug, Default)]
pub(in super::super) struct GemmaValue {
    open: Vec<Container>,
    place: At,
    word: String,
    piece: String,
}

/// A list or an object that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Container {
    List,
    /// An object, before the colon of a key.
    Key,
    /// An object, behind it.
    Value,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum At {
    /// Before a value or a key. The first one of a container may be missing.
    Before {
        first: bool,
    },
    /// Between two marks.
    Text,
    /// In a string of JSON, which is passed on as it is.
    Json {
        escaped: bool,
    },
    Word,
    #[default]
    Behind,
}

/// Place of a symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Place {
    /// The symbol belongs to the object, and more follow.
    Inside,
    /// The symbol is the object's last one.
    Last,
    /// The symbol can't stand there.
    Wrong,
}

impl GemmaValue {
    /// Begins the object, behind its bracket.
    pub fn begin(&mut self, out: &mut Writer<'_>) {
        out.arguments("{");
        self.open.push(Container::Key);
        self.place = At::Before { first: true };
    }

    /// True inside a text, where all marks but the quote are text.
    pub fn in_text(&self) -> bool {
        matches!(self.place, At::Text | At::Json { .. })
    }

    /// Reads the mark around texts, which is spelled like this.
    pub fn quote(&mut self, text: &str, out: &mut Writer<'_>) -> Place {
        match self.place {
            At::Before { first } => {
                self.separate(first, out);
                out.arguments("\"");
                self.place = At::Text;
                Place::Inside
            }
            At::Text => {
                out.arguments("\"");
                self.place = At::Behind;
                Place::Inside
            }
            // No string of JSON has the mark as it is, since it has a quote inside.
            At::Json { .. } => text.chars().fold(Place::Inside, |place, c| match place {
                Place::Inside => self.char(c, out),
                other => other,
            }),
            At::Word | At::Behind => Place::Wrong,
        }
    }

    /// Reads a character.
    pub fn char(&mut self, c: char, out: &mut Writer<'_>) -> Place {
        match self.place {
            At::Before { first } => self.before(c, first, out),
            At::Text => {
                self.show(c, out);
                Place::Inside
            }
            At::Json { escaped } => {
                out.argument(c);
                self.place = match c {
                    '"' if !escaped => At::Behind,
                    _ => At::Json {
                        escaped: c == '\\' && !escaped,
                    },
                };
                Place::Inside
            }
            At::Word if ",:]}".contains(c) || c.is_whitespace() => {
                self.end_word(out);
                self.behind(c, out)
            }
            At::Word if self.word.len() < MOST_WORD && c != '{' && c != '[' && c != '"' => {
                self.word.push(c);
                Place::Inside
            }
            At::Word => Place::Wrong,
            At::Behind => self.behind(c, out),
        }
    }

    fn before(&mut self, c: char, first: bool, out: &mut Writer<'_>) -> Place {
        let is_key = self.open.last() == Some(&Container::Key);
        match c {
            c if c.is_whitespace() => return Place::Inside,
            ']' | '}' if first => return self.close(c, out),
            '{' | '[' if is_key || self.open.len() >= DEEPEST => return Place::Wrong,
            ']' | '}' | ',' | ':' => return Place::Wrong,
            _ => self.separate(first, out),
        }
        match c {
            '{' | '[' => {
                out.argument(c);
                self.open.push(match c {
                    '{' => Container::Key,
                    _ => Container::List,
                });
                self.place = At::Before { first: true };
            }
            '"' => {
                out.arguments("\"");
                self.place = At::Json { escaped: false };
            }
            c => {
                self.word.clear();
                self.word.push(c);
                self.place = At::Word;
            }
        }
        Place::Inside
    }

    /// Writes the comma before all parts of a container but the first.
    fn separate(&mut self, first: bool, out: &mut Writer<'_>) {
        if !first && self.open.last() != Some(&Container::Value) {
            out.arguments(", ");
        }
    }

    fn end_word(&mut self, out: &mut Writer<'_>) {
        self.place = At::Behind;
        let is_key = self.open.last() == Some(&Container::Key);
        if !is_key {
            return out.arguments(&Kinds::default().json(&self.word));
        }
        self.piece.clear();
        self.word.chars().for_each(|c| escape(c, &mut self.piece));
        out.arguments("\"");
        out.arguments(&self.piece);
        out.arguments("\"");
    }

    fn behind(&mut self, c: char, out: &mut Writer<'_>) -> Place {
        let Some(container) = self.open.last_mut() else {
            return Place::Wrong;
        };
        match (*container, c) {
            (_, c) if c.is_whitespace() => return Place::Inside,
            (Container::Key, ':') => {
                *container = Container::Value;
                out.arguments(": ");
            }
            (Container::Value, ',') => *container = Container::Key,
            (Container::List, ',') => {}
            (Container::List, ']') | (Container::Value, '}') => return self.close(c, out),
            _ => return Place::Wrong,
        }
        self.place = At::Before { first: false };
        Place::Inside
    }

    fn close(&mut self, c: char, out: &mut Writer<'_>) -> Place {
        let closing = match self.open.last() {
            Some(Container::List) => ']',
            _ => '}',
        };
        if c != closing {
            return Place::Wrong;
        }
        out.argument(c);
        self.open.pop();
        self.place = At::Behind;
        match self.open.is_empty() {
            true => Place::Last,
            false => Place::Inside,
        }
    }

    fn show(&mut self, c: char, out: &mut Writer<'_>) {
        self.piece.clear();
        escape(c, &mut self.piece);
        out.arguments(&self.piece);
    }
}
