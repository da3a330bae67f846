//! Python literals as JSON, as they come.

use super::super::schema::Kinds;
use super::typed::escape;
use crate::writer::Writer;

/// Maximum nesting of a literal.
const DEEPEST: usize = 64;
/// Maximum bytes of a number or a name.
const MOST_WORD: usize = 256;

/// Translator of one literal: strings, numbers, `True`, `False`, `None`, lists, tuples and
/// dictionaries. Other words become strings.
#[derive(Debug, Default)]
pub(in super::super) struct PythonValue {
    open: Vec<Container>,
    place: Place,
    word: String,
    piece: String,
    /// First half of a character that is written as two escapes (UTF-16).
    half: Option<u32>,
    /// Closing bracket of each open container.
    closing: Vec<char>,
}

/// Surroundings of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Container {
    List { empty: bool },
    Key { empty: bool },
    Value,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Before,
    String(char),
    /// Behind a backslash in a string.
    Escape(char),
    /// Inside an escape of hexadecimal digits, with the number of digits that follow.
    Digits(char, u8, u32),
    Word,
    Behind,
}

/// Place of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Literal {
    /// The character belongs to the literal.
    Inside,
    /// The literal ended before this character.
    Behind,
    /// The character cannot stand there.
    Wrong,
}

impl PythonValue {
    /// True inside a string, where marks are text.
    pub fn in_string(&self) -> bool {
        matches!(
            self.place,
            Place::String(_) | Place::Escape(_) | Place::Digits(..)
        )
    }

    /// Reads a character.
    pub fn read(&mut self, c: char, out: &mut Writer<'_>) -> Literal {
        match self.place {
            Place::Before => self.before(c, out),
            Place::String(quote) => self.string(c, quote, out),
            Place::Escape(quote) => self.escaped(c, quote, out),
            Place::Digits(quote, left, code) => self.digit(c, (quote, left, code), out),
            Place::Word if c.is_alphanumeric() || "+-._".contains(c) => {
                self.word.push(c);
                match self.word.len() > MOST_WORD {
                    true => Literal::Wrong,
                    false => Literal::Inside,
                }
            }
            Place::Word => {
                self.end_word(out);
                self.behind(c, out)
            }
            Place::Behind => self.behind(c, out),
        }
    }

    fn before(&mut self, c: char, out: &mut Writer<'_>) -> Literal {
        if c.is_whitespace() {
            return Literal::Inside;
        }
        if let (Some(closing), Some(Container::List { .. } | Container::Key { .. })) =
            (self.closing.last(), self.open.last())
            && c == *closing
        {
            return self.close(out);
        }
        self.separate(out);
        match c {
            '\'' | '"' => {
                out.arguments("\"");
                self.place = Place::String(c);
            }
            '[' => return self.open(Container::List { empty: true }, ']', "[", out),
            '(' => return self.open(Container::List { empty: true }, ')', "[", out),
            '{' => return self.open(Container::Key { empty: true }, '}', "{", out),
            c if c.is_alphanumeric() || "+-._".contains(c) => {
                self.word.clear();
                self.word.push(c);
                self.place = Place::Word;
            }
            _ => return Literal::Wrong,
        }
        Literal::Inside
    }

    /// Writes the comma before all values of a container but the first.
    fn separate(&mut self, out: &mut Writer<'_>) {
        if let Some(Container::List { empty } | Container::Key { empty }) = self.open.last_mut()
            && !std::mem::replace(empty, false)
        {
            out.arguments(", ");
        }
    }

    fn open(
        &mut self,
        container: Container,
        closing: char,
        json: &str,
        out: &mut Writer<'_>,
    ) -> Literal {
        // JSON has no keys but strings.
        if self.open.len() >= DEEPEST || self.is_key() {
            return Literal::Wrong;
        }
        out.arguments(json);
        self.open.push(container);
        self.closing.push(closing);
        self.place = Place::Before;
        Literal::Inside
    }

    fn is_key(&self) -> bool {
        matches!(self.open.last(), Some(Container::Key { .. }))
    }

    fn close(&mut self, out: &mut Writer<'_>) -> Literal {
        out.arguments(match self.closing.pop() {
            Some('}') => "}",
            _ => "]",
        });
        self.open.pop();
        self.place = Place::Behind;
        Literal::Inside
    }

    fn string(&mut self, c: char, quote: char, out: &mut Writer<'_>) -> Literal {
        match c {
            '\\' => self.place = Place::Escape(quote),
            c if c == quote => {
                if self.half.take().is_some() {
                    self.show(char::REPLACEMENT_CHARACTER, out);
                }
                out.arguments("\"");
                self.place = Place::Behind;
            }
            c => self.show(c, out),
        }
        Literal::Inside
    }

    fn escaped(&mut self, c: char, quote: char, out: &mut Writer<'_>) -> Literal {
        self.place = Place::String(quote);
        match c {
            'n' => self.show('\n', out),
            't' => self.show('\t', out),
            'r' => self.show('\r', out),
            'b' => self.show('\u{8}', out),
            'f' => self.show('\u{c}', out),
            '0' => self.show('\0', out),
            '\n' => {}
            '\\' | '\'' | '"' => self.show(c, out),
            'x' => self.place = Place::Digits(quote, 2, 0),
            'u' => self.place = Place::Digits(quote, 4, 0),
            'U' => self.place = Place::Digits(quote, 8, 0),
            // Python keeps the backslash of an escape that it does not know.
            c => {
                self.show('\\', out);
                self.show(c, out);
            }
        }
        Literal::Inside
    }

    fn digit(
        &mut self,
        c: char,
        (quote, left, code): (char, u8, u32),
        out: &mut Writer<'_>,
    ) -> Literal {
        let Some(digit) = c.to_digit(16) else {
            return Literal::Wrong;
        };
        let code = code << 4 | digit;
        if left > 1 {
            self.place = Place::Digits(quote, left - 1, code);
            return Literal::Inside;
        }
        self.place = Place::String(quote);
        let code = match self.half.take() {
            Some(half) if (0xdc00..0xe000).contains(&code) => {
                0x10000 + ((half - 0xd800) << 10) + (code - 0xdc00)
            }
            Some(_) => {
                self.show(char::REPLACEMENT_CHARACTER, out);
                code
            }
            None => code,
        };
        match char::from_u32(code) {
            Some(c) => self.show(c, out),
            None if (0xd800..0xdc00).contains(&code) => self.half = Some(code),
            None => self.show(char::REPLACEMENT_CHARACTER, out),
        }
        Literal::Inside
    }

    fn show(&mut self, c: char, out: &mut Writer<'_>) {
        if self.half.take().is_some() {
            self.show(char::REPLACEMENT_CHARACTER, out);
        }
        self.piece.clear();
        escape(c, &mut self.piece);
        out.arguments(&self.piece);
    }

    fn end_word(&mut self, out: &mut Writer<'_>) {
        let json = Kinds::default().json(&self.word);
        if self.is_key() && !json.starts_with('"') {
            out.arguments("\"");
            out.arguments(&json);
            out.arguments("\"");
        } else {
            out.arguments(&json);
        }
        self.place = Place::Behind;
    }

    fn behind(&mut self, c: char, out: &mut Writer<'_>) -> Literal {
        if c.is_whitespace() {
            self.place = Place::Behind;
            return Literal::Inside;
        }
        let Some(container) = self.open.last_mut() else {
            return Literal::Behind;
        };
        match (*container, c) {
            (Container::Key { .. }, ':') => {
                *container = Container::Value;
                out.arguments(": ");
            }
            (Container::Value, ',') => *container = Container::Key { empty: false },
            (Container::List { .. }, ',') => {}
            (Container::List { .. } | Container::Value, c) if self.closing.last() == Some(&c) => {
                return self.close(out);
            }
            _ => return Literal::Wrong,
        }
        self.place = Place::Before;
        Literal::Inside
    }
}
