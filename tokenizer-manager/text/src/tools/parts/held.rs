//! Output that may be the begin of a call.

use super::super::MOST_HELD;
use crate::marks::Symbol;
use crate::writer::Writer;

/// Symbols that are held back until they are known to be a call or not.
#[derive(Debug, Default)]
pub(in super::super) struct Held {
    shown: String,
    chars: usize,
    /// Place in the format's list of the mark that came first.
    opening: Option<usize>,
}

impl Held {
    /// Adds a symbol.
    pub fn push(&mut self, symbol: Symbol) {
        if let (Symbol::Mark(mark), 0) = (symbol, self.chars) {
            self.opening = Some(mark.index);
        }
        match symbol {
            Symbol::Char(c) => {
                self.shown.push(c);
                self.chars += 1;
            }
            Symbol::Mark(mark) => {
                self.shown.push_str(mark.shown());
                self.chars += mark.text.chars().count();
            }
        }
    }

    /// Number of characters, marks that would not show included.
    pub fn chars(&self) -> usize {
        self.chars
    }

    /// True if this mark came first.
    pub fn opened_by(&self, index: usize) -> bool {
        self.opening == Some(index)
    }

    /// True if no more may be held back.
    pub fn is_full(&self) -> bool {
        self.shown.len() > MOST_HELD
    }

    /// Forgets the symbols: they are a call.
    pub fn clear(&mut self) {
        self.shown.clear();
        self.chars = 0;
        self.opening = None;
    }

    /// Takes the symbols as text.
    pub fn take(&mut self) -> String {
        let shown = std::mem::take(&mut self.shown);
        self.clear();
        shown
    }

    /// Writes the symbols as text: they are no call.
    pub fn release(&mut self, out: &mut Writer<'_>) {
        out.text(&self.shown);
        self.clear();
    }
}
