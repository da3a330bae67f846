//! Kimi K2: `functions.NAME:N` and JSON, between marks of the call and of all calls. The id
//! carries the tool's name and comes back in the next prompt.

use super::grammar::{GrammarError, Lark, Unit, literal};
use super::parts::held::Held;
use super::parts::raw_arguments::{Place, RawArguments};
use super::{CallIds, CallParser, ToolFormat};
use crate::marks::Symbol;
use crate::writer::Writer;

pub(super) const FORMAT: ToolFormat = ToolFormat {
    names: &["kimi_k2"],
    marks: &[
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ],
    openings: 2,
    is_format_of: |template| template.contains("<|tool_calls_section_begin|>"),
    ids: CallIds::Long,
    begins: &[SECTION, BEGIN],
    grammar,
    whole: None,
    parser: |_| Box::new(KimiK2::default()),
};

const SECTION: usize = 0;
const BEGIN: usize = 1;
const ARGUMENTS: usize = 2;
const END: usize = 3;
const SECTION_END: usize = 4;

/// Maximum bytes of a call's id.
const MOST_ID: usize = 256;

fn grammar(lark: &mut Lark<'_>, several: bool) -> Result<Unit, GrammarError> {
    let [begin, arguments, end, section_end] =
        [BEGIN, ARGUMENTS, END, SECTION_END].map(|at| lark.mark(at));
    let number = lark.terminal("/[0-9]{1,3}/");
    let call = lark.each_tool(|lark, tool| {
        let name = literal(&format!("functions.{}:", lark.tools[tool].name));
        Ok(format!(
            "{name} {number} {arguments} {}",
            lark.arguments(tool)
        ))
    })?;
    let call = format!("({begin} {call} {end})");
    let calls = if several { call + "+" } else { call };
    Ok(Unit {
        opening: Some(SECTION),
        rest: format!("{calls} {section_end}"),
        between: None,
    })
}

#[derive(Debug, Default)]
struct KimiK2 {
    state: State,
    held: Held,
    id: String,
    arguments: RawArguments,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    /// Before the first call of a section.
    Section,
    Id,
    Arguments,
    /// Behind the arguments of a call.
    Behind,
}

impl KimiK2 {
    fn text(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) => out.char(c),
            Symbol::Mark(mark) if mark.index == SECTION => {
                self.held.push(symbol);
                self.state = State::Section;
            }
            Symbol::Mark(mark) if mark.index == BEGIN => self.open(symbol),
            Symbol::Mark(mark) => out.stray(mark),
        }
    }

    fn open(&mut self, symbol: Symbol) {
        self.held.push(symbol);
        self.id.clear();
        self.state = State::Id;
    }

    fn section(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) if c.is_whitespace() && !self.held.is_full() => self.held.push(symbol),
            Symbol::Mark(mark) if mark.index == BEGIN => self.open(symbol),
            _ => self.fail(symbol, out),
        }
    }

    fn id(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) if self.id.len() < MOST_ID => {
                self.id.push(c);
                self.held.push(symbol);
            }
            Symbol::Mark(mark) if mark.index == ARGUMENTS && !name(&self.id).is_empty() => {
                self.held.clear();
                out.call(name(&self.id), self.given_id());
                self.arguments = RawArguments::default();
                self.state = State::Arguments;
            }
            _ => self.fail(symbol, out),
        }
    }

    /// Returns the id if it has a number. One without would be that of the next call of the same
    /// tool too.
    fn given_id(&self) -> Option<&str> {
        let id = self.id.trim();
        (name(id).len() < id.strip_prefix("functions.").unwrap_or(id).len()).then_some(id)
    }

    fn behind(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) if c.is_whitespace() => {}
            Symbol::Char(_) => {
                self.state = State::Text;
                self.text(symbol, out);
            }
            Symbol::Mark(mark) if mark.index == BEGIN => self.open(symbol),
            Symbol::Mark(mark) if mark.index == SECTION_END => self.state = State::Text,
            Symbol::Mark(mark) if mark.index == SECTION => self.text(symbol, out),
            Symbol::Mark(_) => {}
        }
    }

    fn fail(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        self.held.release(out);
        self.state = State::Text;
        self.text(symbol, out);
    }
}

impl CallParser for KimiK2 {
    fn read(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match self.state {
            State::Text => self.text(symbol, out),
            State::Section => self.section(symbol, out),
            State::Id => self.id(symbol, out),
            State::Arguments => match self.arguments.read(symbol, out) {
                Place::Inside => {}
                Place::Last => self.state = State::Behind,
                Place::Behind => {
                    self.state = State::Behind;
                    self.behind(symbol, out);
                }
            },
            State::Behind => self.behind(symbol, out),
        }
    }

    fn end(&mut self, cut: bool, out: &mut Writer<'_>) {
        self.held.release(out);
        if self.state == State::Arguments && !cut {
            self.arguments.missing(out);
        }
    }

    fn is_open(&self) -> bool {
        self.state == State::Arguments
    }

    fn held(&self) -> usize {
        self.held.chars()
    }
}

/// Returns the tool's name in an id such as `functions.look:0`.
fn name(id: &str) -> &str {
    let id = id.trim();
    let name = id.strip_prefix("functions.").unwrap_or(id);
    match name.rsplit_once(':') {
        Some((name, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => name,
    }
}
