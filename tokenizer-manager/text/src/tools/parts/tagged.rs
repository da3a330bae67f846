//! Calls as tags around raw values:
//!
//! ```text
//! <tool_call> <function=NAME> <parameter=KEY> VALUE </parameter> … </function> … </tool_call>
//!   Block       Call            Parameter           ParameterEnd   CallEnd       BlockEnd
//! ```

use std::sync::Arc;

use super::super::grammar::{GrammarError, Lark, RawStyle, keys, literal};
use super::super::schema::Kinds;
use super::super::{CallParser, ToolSchemas};
use super::held::Held;
use super::typed::TypedArguments;
use crate::marks::{Mark, Symbol};
use crate::writer::Writer;

/// Meanings of a format's marks, in the order of its list.
pub(in super::super) const BLOCK: usize = 0;
pub(in super::super) const BLOCK_END: usize = 1;
pub(in super::super) const CALL: usize = 2;
pub(in super::super) const CALL_END: usize = 3;
pub(in super::super) const PARAMETER: usize = 4;
pub(in super::super) const PARAMETER_END: usize = 5;

/// Marks with which a call may begin, the one around it or its own.
pub(in super::super) const TAGS: &[usize] = &[BLOCK, CALL];
/// Marks that may end a value.
pub(in super::super) const CLOSING: &[usize] = &[PARAMETER_END, CALL_END, BLOCK_END];

/// Maximum bytes of a name in a tag.
const MOST_NAME: usize = 256;

/// Adds the rule of a call, from its tag on to its arguments, and returns its name. `tag` writes
/// all of the tag behind its mark.
pub(in super::super) fn call(
    lark: &mut Lark<'_>,
    tag: fn(&str) -> String,
    style: &RawStyle,
) -> Result<String, GrammarError> {
    let begin = lark.mark(CALL);
    lark.each_tool(|lark, tool| {
        let tag = literal(&tag(lark.tools[tool].name));
        Ok(format!("{begin} {tag} {}", keys(lark, tool, style)?))
    })
}

/// Parser of tags.
#[derive(Debug)]
pub(in super::super) struct Tagged {
    tools: Arc<ToolSchemas>,
    state: State,
    held: Held,
    name: String,
    key: String,
    arguments: TypedArguments,
    /// True if the last character of the value was a newline, which is a part of the tags if the
    /// value ends with it.
    newline: bool,
    /// True until the value has a character.
    at_start: bool,
    /// True in a block, whose calls may have any name.
    in_block: bool,
    /// True if the tag of a value says if it is a text or JSON, as `string="true"`. All that
    /// stands between the tags is the value then.
    told: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Text,
    /// Behind the mark that opens a block.
    Block,
    Name,
    /// Between the parameters of a call.
    Body,
    Key,
    Value,
    /// Behind a closing mark, which is text of the value if no tag follows.
    ValueEnd,
    /// Behind a call in a block.
    Behind,
}

impl Tagged {
    pub fn new(tools: Arc<ToolSchemas>) -> Self {
        Self {
            tools,
            state: State::Text,
            held: Held::default(),
            name: String::new(),
            key: String::new(),
            arguments: TypedArguments::default(),
            newline: false,
            at_start: true,
            in_block: false,
            told: false,
        }
    }

    /// Makes the parser of a format whose tags tell texts from JSON.
    pub fn told(tools: Arc<ToolSchemas>) -> Self {
        Self {
            told: true,
            ..Self::new(tools)
        }
    }

    fn text(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) => out.char(c),
            // A call without the mark around it is taken for one if it names a tool.
            Symbol::Mark(mark) if mark.index == BLOCK || mark.index == CALL => {
                self.held.push(symbol);
                self.in_block = mark.index == BLOCK;
                self.enter(mark.index);
            }
            Symbol::Mark(mark) => out.stray(mark),
        }
    }

    fn enter(&mut self, index: usize) {
        self.name.clear();
        self.state = match index {
            CALL => State::Name,
            _ => State::Block,
        };
    }

    /// Reads a symbol behind the mark of a block.
    fn block(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Mark(mark) if mark.index == CALL => {
                self.held.push(symbol);
                self.enter(CALL);
            }
            Symbol::Char(c) if c.is_whitespace() && !self.held.is_full() => self.held.push(symbol),
            _ => self.fail(symbol, out),
        }
    }

    /// Reads a symbol of a tool's name, which ends with the tag.
    fn name(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        let Symbol::Char(c) = symbol else {
            return self.fail(symbol, out);
        };
        if c != '>' {
            self.name.push(c);
            self.held.push(symbol);
            if c == '\n' || self.name.len() > MOST_NAME {
                self.release(out);
            }
            return;
        }
        let name = unquoted(&self.name).to_owned();
        if name.is_empty() || !self.in_block && !self.tools.has(&name) {
            return self.fail(symbol, out);
        }
        self.held.clear();
        out.call(&name, None);
        self.arguments.begin(out);
        self.name = name;
        self.state = State::Body;
    }

    /// Reads a symbol between parameters.
    fn body(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        let Symbol::Mark(mark) = symbol else {
            // Nothing belongs there, so nothing is lost.
            return;
        };
        match mark.index {
            PARAMETER => {
                self.key.clear();
                self.state = State::Key;
            }
            PARAMETER_END => {}
            _ => self.end_call(mark, out),
        }
    }

    fn end_call(&mut self, mark: Mark, out: &mut Writer<'_>) {
        self.arguments.end(out);
        self.state = State::Behind;
        if mark.index != CALL_END {
            self.behind(Symbol::Mark(mark), out);
        }
    }

    fn key(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char('>') => {
                let (key, told) = match self.told {
                    true => told(&self.key),
                    false => (self.key.as_str(), None),
                };
                let key = unquoted(key);
                let kinds = told.unwrap_or_else(|| self.tools.kinds(&self.name, key));
                self.arguments.key(key, (kinds, self.tools.hold()), out);
                (self.newline, self.at_start) = (false, true);
                self.state = State::Value;
            }
            Symbol::Char(c) if self.key.len() < MOST_NAME => self.key.push(c),
            Symbol::Char(_) => {}
            Symbol::Mark(_) => {
                self.state = State::Body;
                self.body(symbol, out);
            }
        }
    }

    fn value(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) => self.value_char(c, out),
            Symbol::Mark(mark) if self.arguments.in_string() => {
                mark.text.chars().for_each(|c| self.value_char(c, out));
            }
            Symbol::Mark(mark) if [PARAMETER_END, CALL_END].contains(&mark.index) => {
                self.held.push(symbol);
                self.state = State::ValueEnd;
            }
            // A token that ends calls is never mere text, so the model has forgotten a tag.
            Symbol::Mark(mark) if mark.index == BLOCK_END && mark.id.is_some() => {
                self.arguments.end_value(out);
                self.end_call(mark, out);
            }
            Symbol::Mark(mark) => mark.text.chars().for_each(|c| self.value_char(c, out)),
        }
    }

    /// Adds a character of the value, without one newline on each side.
    fn value_char(&mut self, c: char, out: &mut Writer<'_>) {
        if self.told {
            return self.arguments.text(c.encode_utf8(&mut [0; 4]), out);
        }
        if std::mem::replace(&mut self.at_start, false) && c == '\n' {
            return;
        }
        if std::mem::replace(&mut self.newline, c == '\n') {
            self.arguments.text("\n", out);
        }
        if c != '\n' {
            self.arguments.text(c.encode_utf8(&mut [0; 4]), out);
        }
    }

    /// Reads a symbol behind a closing mark.
    fn value_end(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) if c.is_whitespace() && self.held.chars() < MOST_NAME => {
                self.held.push(symbol);
            }
            Symbol::Mark(mark) if self.ends_value(mark) => {
                self.held.clear();
                self.arguments.end_value(out);
                self.state = State::Body;
                self.body(symbol, out);
            }
            _ => {
                let held = self.held.take();
                held.chars().for_each(|c| self.value_char(c, out));
                self.state = State::Value;
                self.value(symbol, out);
            }
        }
    }

    /// True if a value ends before a mark behind the closing mark that is held back. That of the
    /// call ends it too, where the model has forgotten the parameter's.
    fn ends_value(&self, mark: Mark) -> bool {
        match self.held.opened_by(CALL_END) {
            true => mark.index == BLOCK_END,
            false => mark.index != PARAMETER_END,
        }
    }

    fn behind(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) if c.is_whitespace() => {}
            Symbol::Mark(mark) if mark.index == BLOCK_END => self.state = State::Text,
            Symbol::Mark(mark) if mark.index == CALL_END => {}
            Symbol::Mark(mark) if mark.index == CALL && self.in_block => {
                self.held.push(symbol);
                self.enter(CALL);
            }
            _ => {
                self.state = State::Text;
                self.text(symbol, out);
            }
        }
    }

    /// Takes what is held back for text, and the symbol for what comes behind it.
    fn fail(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        self.release(out);
        self.text(symbol, out);
    }

    fn release(&mut self, out: &mut Writer<'_>) {
        self.held.release(out);
        self.state = State::Text;
    }
}

impl CallParser for Tagged {
    fn read(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match self.state {
            State::Text => self.text(symbol, out),
            State::Block => self.block(symbol, out),
            State::Name => self.name(symbol, out),
            State::Body => self.body(symbol, out),
            State::Key => self.key(symbol, out),
            State::Value => self.value(symbol, out),
            State::ValueEnd => self.value_end(symbol, out),
            State::Behind => self.behind(symbol, out),
        }
    }

    /// A value that has no closing mark stays open, so that nobody takes it for whole.
    fn end(&mut self, cut: bool, out: &mut Writer<'_>) {
        match self.state {
            State::Block | State::Name => self.held.release(out),
            State::ValueEnd => {
                self.held.clear();
                self.arguments.end_value(out);
                if !cut {
                    self.arguments.end(out);
                }
            }
            State::Body if cut => {}
            State::Body => self.arguments.end(out),
            State::Value => self.arguments.cut(out),
            State::Text | State::Key | State::Behind => {}
        }
    }

    fn is_open(&self) -> bool {
        use State::{Body, Key, Value, ValueEnd};
        matches!(self.state, Body | Key | Value | ValueEnd)
    }

    fn held(&self) -> usize {
        self.held.chars()
    }
}

/// Returns a name in a tag without the quotes and blanks around it.
fn unquoted(name: &str) -> &str {
    name.trim().trim_matches('"')
}

/// Splits what stands in the tag of a value into its name and the kind that it says.
fn told(tag: &str) -> (&str, Option<Kinds>) {
    let tag = tag.trim_end();
    for (sign, kinds) in [("true", Kinds::TEXT), ("false", Kinds::JSON)] {
        let name = tag
            .strip_suffix('"')
            .and_then(|tag| tag.strip_suffix(sign))
            .and_then(|tag| tag.strip_suffix("string=\""));
        if let Some(name) = name {
            return (name, Some(kinds));
        }
    }
    (tag, None)
}
