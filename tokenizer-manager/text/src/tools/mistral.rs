//! Mistral. Tokenizers up to v7 write `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`, later ones
//! `[TOOL_CALLS]NAME[ARGS]{…}` for each call, some with `[CALL_ID]id` behind the name.

use super::grammar::{GrammarError, Lark, Unit, call_object, literal};
use super::parts::call_object::{CallObject, Progress};
use super::parts::held::Held;
use super::parts::raw_arguments::{Place, RawArguments};
use super::{CallIds, CallParser, ToolFormat};
use crate::marks::Symbol;
use crate::writer::Writer;

pub(super) const FORMAT: ToolFormat = ToolFormat {
    names: &["mistral"],
    marks: &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
    openings: 1,
    is_format_of: |template| template.contains("[TOOL_CALLS]"),
    ids: CallIds::Nine,
    begins: &[OPEN],
    grammar,
    whole: None,
    parser: |_| Box::new(Mistral::default()),
};

const OPEN: usize = 0;
const ARGUMENTS: usize = 1;
const ID: usize = 2;

/// Maximum bytes of a name and of an id.
const MOST_NAME: usize = 256;

/// Writes a call as the vocabulary shows: newer ones have a token for the mark of arguments.
fn grammar(lark: &mut Lark<'_>, several: bool) -> Result<Unit, GrammarError> {
    if lark.is_token(ARGUMENTS) {
        let mark = lark.mark(ARGUMENTS);
        let call = lark.each_tool(|lark, tool| {
            let name = literal(lark.tools[tool].name);
            Ok(format!("{name} {mark} {}", lark.arguments(tool)))
        })?;
        return Ok(Unit {
            opening: Some(OPEN),
            rest: call,
            between: Some(String::new()),
        });
    }
    let call = lark.each_tool(|lark, tool| Ok(call_object(lark, tool, "arguments")))?;
    let more = match several {
        true => format!("(\", \" {call})*"),
        false => String::new(),
    };
    Ok(Unit {
        opening: Some(OPEN),
        rest: format!("\"[\" {call} {more} \"]\""),
        between: None,
    })
}

#[derive(Debug, Default)]
struct Mistral {
    state: State,
    held: Held,
    name: String,
    id: Option<String>,
    arguments: RawArguments,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Text,
    /// Behind the opening mark: a list, or a name.
    Head,
    Call(CallObject),
    /// Between the calls of a list.
    List,
    Arguments,
    Behind,
}

impl Mistral {
    fn text(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        self.state = State::Text;
        match symbol {
            Symbol::Char(c) => out.char(c),
            Symbol::Mark(mark) if mark.index == OPEN => {
                self.held.push(symbol);
                self.name.clear();
                self.id = None;
                self.state = State::Head;
            }
            Symbol::Mark(mark) => out.stray(mark),
        }
    }

    fn head(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        let unnamed = self.name.trim().is_empty();
        let name = self.id.as_mut().unwrap_or(&mut self.name);
        match symbol {
            Symbol::Char('[') if unnamed => {
                self.held.push(symbol);
                self.state = State::List;
            }
            Symbol::Char('{') if unnamed => self.object(symbol, out),
            // The mark of the arguments is missing.
            Symbol::Char('{') => {
                self.begin(out);
                self.arguments(symbol, out);
            }
            Symbol::Char(c) if name.len() < MOST_NAME => {
                name.push(c);
                self.held.push(symbol);
            }
            Symbol::Mark(mark) if mark.index == ID && !unnamed => {
                self.held.push(symbol);
                self.id = Some(String::new());
            }
            Symbol::Mark(mark) if mark.index == ARGUMENTS && !unnamed => {
                self.begin(out);
            }
            _ => self.fail(symbol, out),
        }
    }

    fn begin(&mut self, out: &mut Writer<'_>) {
        let id = self.id.as_deref().map(str::trim);
        out.call(self.name.trim(), id.filter(|id| !id.is_empty()));
        self.held.clear();
        self.arguments = RawArguments::default();
        self.state = State::Arguments;
    }

    fn object(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        let mut call = CallObject::holding(std::mem::take(&mut self.held));
        let _ = call.read(symbol, None, out);
        self.state = State::Call(call);
    }

    /// Reads a symbol of a list outside of its calls.
    fn list(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char('{') => self.object(symbol, out),
            Symbol::Char(']') if self.held.chars() == 0 => self.state = State::Behind,
            Symbol::Char(c) if c.is_whitespace() || c == ',' => {
                if self.held.chars() > 0 {
                    self.held.push(symbol);
                }
                if self.held.is_full() {
                    self.held.release(out);
                    self.state = State::Text;
                }
            }
            _ => self.fail(symbol, out),
        }
    }

    fn arguments(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match self.arguments.read(symbol, out) {
            Place::Inside => {}
            Place::Last => self.state = State::Behind,
            Place::Behind => self.behind(symbol, out),
        }
    }

    fn behind(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) if c.is_whitespace() || c == ',' => self.state = State::Behind,
            _ => self.text(symbol, out),
        }
    }

    fn fail(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        self.held.release(out);
        self.text(symbol, out);
    }
}

impl CallParser for Mistral {
    fn read(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match &mut self.state {
            State::Text => self.text(symbol, out),
            State::Head => self.head(symbol, out),
            State::List => self.list(symbol, out),
            State::Call(call) => match call.read(symbol, None, out) {
                Progress::More => {}
                Progress::Done => self.state = State::List,
                Progress::Failed => {
                    call.release(out);
                    self.text(symbol, out);
                }
            },
            State::Arguments => self.arguments(symbol, out),
            State::Behind => self.behind(symbol, out),
        }
    }

    fn end(&mut self, cut: bool, out: &mut Writer<'_>) {
        match &mut self.state {
            State::Call(call) => call.release(out),
            State::Arguments if cut => {}
            State::Arguments => {
                self.arguments.missing(out);
            }
            _ => self.held.release(out),
        }
    }

    fn is_open(&self) -> bool {
        match &self.state {
            State::Call(call) => call.has_begun(),
            state => matches!(state, State::Arguments),
        }
    }

    fn held(&self) -> usize {
        match &self.state {
            State::Call(call) => call.held(),
            _ => self.held.chars(),
        }
    }
}
