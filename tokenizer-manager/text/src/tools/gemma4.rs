//! Gemma 4: `<|tool_call>call:NAME{KEY:<|"|>TEXT<|"|>,KEY:5}<tool_call|>`. Texts stand between two
//! marks, as they are; names of arguments have no quotes.

use super::grammar::{GrammarError, Lark, NamedStyle, RawStyle, Told, Unit, literal, named, value};
use super::parts::gemma_value::{GemmaValue, Place};
use super::parts::held::Held;
use super::{CallIds, CallParser, ToolFormat};
use crate::marks::Symbol;
use crate::writer::Writer;

pub(super) const FORMAT: ToolFormat = ToolFormat {
    names: &["gemma4"],
    marks: &["<|tool_call>", "<tool_call|>", "<|\"|>"],
    openings: 1,
    is_format_of: |template| template.contains("<|tool_call>call:"),
    ids: CallIds::Long,
    begins: &[OPEN],
    grammar,
    whole: None,
    parser: |_| Box::new(Gemma4::default()),
};

const OPEN: usize = 0;
const CLOSE: usize = 1;
/// Mark on both sides of a text.
const QUOTE: usize = 2;

/// Word before the name of a tool.
const CALL: &str = "call:";

/// Maximum bytes of a name.
const MOST_NAME: usize = 256;

/// Arguments with their names.
const STYLE: NamedStyle = NamedStyle {
    assign: ":",
    comma: ",",
    value: |lark, schema, root| value(lark, schema, root, &VALUES),
};

/// Texts between quotes, and JSON, which the parser reads too. Lists and objects are JSON, texts
/// inside them included.
const VALUES: RawStyle = RawStyle {
    head: |_, key| key.to_owned(),
    close: QUOTE,
    behind: "",
    without: &[QUOTE],
    around: "",
    trims: false,
    told: Some(Told {
        before: |lark| [lark.mark(QUOTE), String::new()],
        closes_json: false,
    }),
};

fn grammar(lark: &mut Lark<'_>, _: bool) -> Result<Unit, GrammarError> {
    let close = lark.mark(CLOSE);
    let call = lark.each_tool(|lark, tool| {
        let name = literal(&format!("{CALL}{}{{", lark.tools[tool].name));
        let arguments = named(lark, tool, &STYLE)?;
        Ok(format!("{name} {arguments} \"}}\" {close}"))
    })?;
    Ok(Unit {
        opening: Some(OPEN),
        rest: call,
        between: Some(String::new()),
    })
}

#[derive(Debug, Default)]
struct Gemma4 {
    state: State,
    held: Held,
    name: String,
    arguments: GemmaValue,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    Name,
    Arguments,
    /// Behind the arguments, where the closing mark may be missing.
    Behind,
}

impl Gemma4 {
    fn text(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) => out.char(c),
            Symbol::Mark(mark) if mark.index == OPEN => {
                self.held.push(symbol);
                self.name.clear();
                self.state = State::Name;
            }
            Symbol::Mark(mark) => out.stray(mark),
        }
    }

    fn name(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char('{') => {
                let name = self.name.trim().strip_prefix(CALL).map(str::trim);
                match name.filter(|name| !name.is_empty()) {
                    Some(name) => {
                        self.held.clear();
                        out.call(name, None);
                        self.arguments = GemmaValue::default();
                        self.arguments.begin(out);
                        self.state = State::Arguments;
                    }
                    None => self.fail(symbol, out),
                }
            }
            Symbol::Char(c) if self.name.len() < MOST_NAME => {
                self.name.push(c);
                self.held.push(symbol);
            }
            _ => self.fail(symbol, out),
        }
    }

    fn arguments(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        let place = match symbol {
            Symbol::Char(c) => self.arguments.char(c, out),
            Symbol::Mark(mark) if mark.index == QUOTE => self.arguments.quote(mark.text, out),
            Symbol::Mark(mark) if self.arguments.in_text() => mark
                .text
                .chars()
                .fold(Place::Inside, |_, c| self.arguments.char(c, out)),
            Symbol::Mark(_) => Place::Wrong,
        };
        match place {
            Place::Inside => {}
            Place::Last => self.state = State::Behind,
            // The call stays as it is, so that nobody takes it for whole.
            Place::Wrong => {
                self.state = State::Behind;
                self.behind(symbol, out);
            }
        }
    }

    fn behind(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) if c.is_whitespace() => {}
            Symbol::Mark(mark) if mark.index == CLOSE => self.state = State::Text,
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

impl CallParser for Gemma4 {
    fn read(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match self.state {
            State::Text => self.text(symbol, out),
            State::Name => self.name(symbol, out),
            State::Arguments => self.arguments(symbol, out),
            State::Behind => self.behind(symbol, out),
        }
    }

    fn end(&mut self, _: bool, out: &mut Writer<'_>) {
        self.held.release(out);
    }

    fn is_open(&self) -> bool {
        self.state == State::Arguments
    }

    fn held(&self) -> usize {
        self.held.chars()
    }
}
