//! No calls: the marks are left out, and what stands between them is text.

use super::CallParser;
use crate::marks::Symbol;
use crate::writer::Writer;

/// Parser for requests that forbid calls.
#[derive(Debug)]
pub(crate) struct Muted;

impl CallParser for Muted {
    fn read(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) => out.char(c),
            // A spelled mark may be meant as text.
            Symbol::Mark(mark) if mark.id.is_none() => out.text(mark.text),
            Symbol::Mark(_) => {}
        }
    }

    fn end(&mut self, _: &mut Writer<'_>) {}

    fn held(&self) -> usize {
        0
    }
}
