//! Arguments that stand as JSON behind the name of their tool.

use super::json::{JsonScanner, Scanned};
use crate::marks::{Mark, Symbol};
use crate::writer::Writer;

/// Reader of the arguments of a call that has begun. It passes them on as they are.
#[derive(Debug, Default)]
pub(in super::super) struct RawArguments {
    scanner: JsonScanner,
    /// True if they are no JSON. They then last up to the next mark.
    other: bool,
}

/// Place of a symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Place {
    /// The symbol is a part of the arguments or stands before them.
    Inside,
    /// The symbol is their last one.
    Last,
    /// The arguments ended before this symbol, if there are any.
    Behind,
}

impl RawArguments {
    /// True if there are arguments.
    pub fn has_begun(&self) -> bool {
        self.other || self.scanner.has_begun()
    }

    /// Reads a symbol.
    pub fn read(&mut self, symbol: Symbol, out: &mut Writer<'_>) -> Place {
        match symbol {
            Symbol::Char(c) => self.char(c, out),
            Symbol::Mark(mark) if self.scanner.in_string() => self.mark(mark, out),
            Symbol::Mark(_) => self.missing(out),
        }
    }

    fn char(&mut self, c: char, out: &mut Writer<'_>) -> Place {
        if c.is_whitespace() && !self.has_begun() {
            return Place::Inside;
        }
        let scanned = match self.other {
            true => Scanned::Inside,
            false => self.scanner.read(c),
        };
        match scanned {
            Scanned::Behind => return Place::Behind,
            // Clients see that they can't read them, and what the model wrote.
            Scanned::Wrong => self.other = true,
            Scanned::Inside | Scanned::Last => {}
        }
        out.argument(c);
        match scanned {
            Scanned::Last => Place::Last,
            _ => Place::Inside,
        }
    }

    fn mark(&mut self, mark: Mark, out: &mut Writer<'_>) -> Place {
        for c in mark.text.chars() {
            // No mark has a quote, so the string goes on behind it.
            let _ = self.scanner.read(c);
            out.argument(c);
        }
        Place::Inside
    }

    /// Ends the arguments. A call without any has an empty object.
    pub fn missing(&mut self, out: &mut Writer<'_>) -> Place {
        if !self.has_begun() {
            out.arguments("{}");
        }
        Place::Behind
    }
}
