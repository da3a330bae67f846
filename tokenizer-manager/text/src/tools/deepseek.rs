//! DeepSeek V3, R1 and V3.1. The first two write
//! ``function<｜tool▁sep｜>NAME⏎```json⏎{…}⏎``` ``, the third writes `NAME<｜tool▁sep｜>{…}`, each
//! between marks of the call and of all calls.

use super::grammar::{Lark, Unit, literal};
use super::parts::held::Held;
use super::parts::raw_arguments::{Place, RawArguments};
use super::{CallIds, CallParser, ToolFormat};
use crate::marks::Symbol;
use crate::writer::Writer;

const MARKS: &[&str] = &[
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
];

/// V3 and R1, whose templates have the fence around the arguments.
pub(super) const V3: ToolFormat = ToolFormat {
    names: &["deepseekv3", "deepseek_v3"],
    marks: MARKS,
    openings: 2,
    is_format_of: |template| template.contains(MARKS[BEGIN]) && template.contains("```json"),
    ids: CallIds::Long,
    begins: &[BLOCK, BEGIN],
    grammar: |lark, several| {
        let separator = lark.mark(SEPARATOR);
        let call = lark.each_tool(|lark, tool| {
            let name = literal(&format!("{}\n```json\n", lark.tools[tool].name));
            let arguments = lark.arguments(tool);
            Ok(format!(
                "\"function\" {separator} {name} {arguments} \"\\n```\""
            ))
        })?;
        Ok(block(lark, &call, several, &literal("\n")))
    },
    whole: None,
    parser: |_| Box::new(DeepSeek::new(true)),
};

/// V3.1, without a fence.
pub(super) const V31: ToolFormat = ToolFormat {
    names: &["deepseekv31", "deepseek_v31"],
    marks: MARKS,
    openings: 2,
    is_format_of: |template| template.contains(MARKS[BEGIN]),
    ids: CallIds::Long,
    begins: &[BLOCK, BEGIN],
    grammar: |lark, several| {
        let separator = lark.mark(SEPARATOR);
        let call = lark.each_tool(|lark, tool| {
            let name = literal(lark.tools[tool].name);
            Ok(format!("{name} {separator} {}", lark.arguments(tool)))
        })?;
        Ok(block(lark, &call, several, ""))
    },
    whole: None,
    parser: |_| Box::new(DeepSeek::new(false)),
};

const BLOCK: usize = 0;
const BEGIN: usize = 1;
const SEPARATOR: usize = 2;
const END: usize = 3;
const BLOCK_END: usize = 4;

/// Maximum bytes of a name.
const MOST_NAME: usize = 256;

/// Returns a block of calls, with `between` in between.
fn block(lark: &Lark<'_>, call: &str, several: bool, between: &str) -> Unit {
    let [begin, end, block_end] = [BEGIN, END, BLOCK_END].map(|at| lark.mark(at));
    let call = format!("{begin} {call} {end}");
    let more = match several {
        true => format!("({between} {call})*"),
        false => String::new(),
    };
    Unit {
        opening: Some(BLOCK),
        rest: format!("{call} {more} {block_end}"),
        between: None,
    }
}

#[derive(Debug)]
struct DeepSeek {
    /// True if the arguments stand in a fence, and the name behind the separator.
    fenced: bool,
    state: State,
    held: Held,
    name: String,
    /// The rest of the fence before the arguments, if there may be one.
    fence: Option<&'static str>,
    arguments: RawArguments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Text,
    /// Before the first call of a block.
    Block,
    /// Before the separator: the kind of call, or the name.
    Head,
    /// Behind the separator: the name, up to the end of the line.
    Name,
    Arguments,
    /// Behind the arguments, up to the end of the call.
    Tail,
    /// Behind a call of a block.
    Behind,
}

impl DeepSeek {
    fn new(fenced: bool) -> Self {
        Self {
            fenced,
            state: State::Text,
            held: Held::default(),
            name: String::new(),
            fence: None,
            arguments: RawArguments::default(),
        }
    }

    fn text(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) => out.char(c),
            Symbol::Mark(mark) if mark.index == BLOCK || mark.index == BEGIN => {
                self.held.push(symbol);
                self.name.clear();
                self.state = match mark.index {
                    BEGIN => State::Head,
                    _ => State::Block,
                };
            }
            Symbol::Mark(mark) => out.stray(mark),
        }
    }

    fn block(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) if c.is_whitespace() && !self.held.is_full() => self.held.push(symbol),
            Symbol::Mark(mark) if mark.index == BEGIN => {
                self.held.push(symbol);
                self.name.clear();
                self.state = State::Head;
            }
            _ => self.fail(symbol, out),
        }
    }

    fn head(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) if self.name.len() < MOST_NAME => {
                self.name.push(c);
                self.held.push(symbol);
            }
            Symbol::Mark(mark) if mark.index == SEPARATOR && self.fenced => {
                self.held.push(symbol);
                self.name.clear();
                self.state = State::Name;
            }
            Symbol::Mark(mark) if mark.index == SEPARATOR => self.begin(symbol, out),
            _ => self.fail(symbol, out),
        }
    }

    fn name(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char('\n') => self.begin(symbol, out),
            Symbol::Char(c) if self.name.len() < MOST_NAME => {
                self.name.push(c);
                self.held.push(symbol);
            }
            _ => self.fail(symbol, out),
        }
    }

    fn begin(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        let name = self.name.trim();
        if name.is_empty() {
            return self.fail(symbol, out);
        }
        out.call(name, None);
        self.held.clear();
        self.fence = self.fenced.then_some("```json");
        self.arguments = RawArguments::default();
        self.state = State::Arguments;
    }

    fn arguments(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        if let (false, Symbol::Char(c)) = (self.arguments.has_begun(), symbol)
            && self.fence.is_some_and(|fence| fence.starts_with(c))
        {
            self.fence = self.fence.and_then(|fence| fence.get(c.len_utf8()..));
            return;
        }
        match self.arguments.read(symbol, out) {
            Place::Inside => {}
            Place::Last => self.state = State::Tail,
            Place::Behind => {
                self.state = State::Tail;
                self.tail(symbol, out);
            }
        }
    }

    /// Reads a symbol behind the arguments, where the fence may end.
    fn tail(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char('`') if self.fenced => {}
            Symbol::Char(c) if c.is_whitespace() => {}
            Symbol::Mark(mark) if mark.index == END => self.state = State::Behind,
            _ => self.behind(symbol, out),
        }
    }

    fn behind(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) if c.is_whitespace() => self.state = State::Behind,
            Symbol::Mark(mark) if mark.index == BLOCK_END => self.state = State::Text,
            _ => {
                self.state = State::Text;
                self.text(symbol, out);
            }
        }
    }

    fn fail(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        self.held.release(out);
        self.state = State::Text;
        self.text(symbol, out);
    }
}

impl CallParser for DeepSeek {
    fn read(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match self.state {
            State::Text => self.text(symbol, out),
            State::Block => self.block(symbol, out),
            State::Head => self.head(symbol, out),
            State::Name => self.name(symbol, out),
            State::Arguments => self.arguments(symbol, out),
            State::Tail => self.tail(symbol, out),
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
