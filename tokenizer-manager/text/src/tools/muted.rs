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
            Symbol::Mark(mark) => out.stray(mark),
        }
    }

    fn end(&mut self, _: bool, _: &mut Writer<'_>) {}

    fn is_open(&self) -> bool {
        false
    }

    fn held(&self) -> usize {
        0
    }
}
