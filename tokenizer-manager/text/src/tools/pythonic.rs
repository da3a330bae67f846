//! Llama 3.2 and Llama 4: `[f(a=1, b="x"), g()]`, a list of Python calls, which Llama 4 may put
//! between `<|python_start|>` and `<|python_end|>`. Their arguments become JSON.
//!
//! A list may be an answer, so only calls of the request's tools are calls.

use std::sync::Arc;

use super::grammar::{GrammarError, Lark, NamedStyle, Unit, literal, named};
use super::parts::held::Held;
use super::parts::python_value::{Literal, PythonValue};
use super::parts::typed::escape;
use super::{CallIds, CallParser, ToolFormat, ToolSchemas};
use crate::marks::Symbol;
use crate::writer::Writer;

pub(super) const FORMAT: ToolFormat = ToolFormat {
    names: &["pythonic", "llama4", "llama4_pythonic"],
    marks: &["<|python_start|>", "<|python_end|>"],
    openings: 1,
    is_format_of: |template| {
        template.contains("<|python_start|>") || template.contains("[func_name1(")
    },
    ids: CallIds::Long,
    begins: &[],
    grammar,
    whole: None,
    parser: |tools| Box::new(Pythonic::new(tools)),
};

const START: usize = 0;

/// Values are JSON, which the parser takes for literals of Python.
const STYLE: NamedStyle = NamedStyle {
    assign: "=",
    comma: ", ",
    value: |lark, schema, root| lark.part(schema, root),
};

/// Maximum bytes of a name.
const MOST_NAME: usize = 256;

fn grammar(lark: &mut Lark<'_>, several: bool) -> Result<Unit, GrammarError> {
    let call = lark.each_tool(|lark, tool| {
        let name = literal(&format!("{}(", lark.tools[tool].name));
        Ok(format!("{name} {} \")\"", named(lark, tool, &STYLE)?))
    })?;
    let more = match several {
        true => format!("(\", \" {call})*"),
        false => String::new(),
    };
    Ok(Unit {
        opening: None,
        rest: format!("\"[\" {call} {more} \"]\""),
        between: None,
    })
}

#[derive(Debug)]
struct Pythonic {
    tools: Arc<ToolSchemas>,
    state: State,
    held: Held,
    name: String,
    /// Name of the tool whose arguments are read.
    tool: String,
    /// True if clients have heard of the call.
    begun: bool,
    value: PythonValue,
    /// True if the call has no argument so far.
    empty: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first character that is not white space.
    Start,
    Text,
    /// Behind the opening mark.
    Marked,
    /// Before or in the name of a tool.
    Tool,
    /// Before or in the name of an argument.
    Argument,
    Value,
    /// Behind a call.
    BehindCall,
    /// Behind the list.
    Behind,
}

impl Pythonic {
    fn new(tools: Arc<ToolSchemas>) -> Self {
        Self {
            tools,
            state: State::Start,
            held: Held::default(),
            name: String::new(),
            tool: String::new(),
            begun: false,
            value: PythonValue::default(),
            empty: true,
        }
    }

    fn start(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Mark(mark) if mark.index == START => {
                self.held.push(symbol);
                self.state = State::Marked;
            }
            Symbol::Mark(mark) => out.stray(mark),
            Symbol::Char('[') if self.state == State::Start => self.list(symbol),
            Symbol::Char(c) => {
                if !c.is_whitespace() {
                    self.state = State::Text;
                }
                out.char(c);
            }
        }
    }

    fn list(&mut self, symbol: Symbol) {
        self.held.push(symbol);
        self.name.clear();
        self.state = State::Tool;
    }

    fn tool(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char('(') if self.tools.has(&self.name) => {
                self.tool = std::mem::take(&mut self.name);
                self.begun = false;
                self.state = State::Argument;
                self.hold(symbol, out);
            }
            Symbol::Char(c) if c.is_whitespace() && self.name.is_empty() => self.hold(symbol, out),
            Symbol::Char(c) if (is_name(c) || ":/".contains(c)) && self.name.len() < MOST_NAME => {
                self.name.push(c);
                self.hold(symbol, out);
            }
            _ => self.fail(symbol, out),
        }
    }

    fn hold(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        self.held.push(symbol);
        if self.held.is_full() {
            self.held.release(out);
            self.state = State::Text;
        }
    }

    /// Begins the call, unless it has begun.
    fn begin(&mut self, out: &mut Writer<'_>) {
        if !self.begun {
            self.begun = true;
            self.held.clear();
            out.call(&self.tool, None);
            out.arguments("{");
            self.empty = true;
        }
    }

    /// Reads a symbol of an argument's name. Calls with arguments that have no name are no calls:
    /// nothing says which argument they are.
    fn argument(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(')') if self.name.is_empty() => {
                self.begin(out);
                self.end_call(out);
            }
            Symbol::Char('=') if !self.name.is_empty() => {
                self.begin(out);
                out.arguments(if self.empty { "\"" } else { ", \"" });
                let mut key = String::with_capacity(self.name.len());
                self.name.chars().for_each(|c| escape(c, &mut key));
                out.arguments(&key);
                out.arguments("\": ");
                self.empty = false;
                self.value = PythonValue::default();
                self.state = State::Value;
            }
            Symbol::Char(c) if c.is_whitespace() || is_name(c) && self.name.len() < MOST_NAME => {
                if !c.is_whitespace() {
                    self.name.push(c);
                }
                if !self.begun {
                    self.hold(symbol, out);
                }
            }
            _ => {
                // Nothing of what the model wrote is lost.
                if self.begun {
                    out.text(&self.name);
                }
                self.fail(symbol, out);
            }
        }
    }

    fn value(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) => match self.value.read(c, out) {
                Literal::Inside => {}
                Literal::Behind => self.behind_value(c, out),
                Literal::Wrong => self.fail(symbol, out),
            },
            Symbol::Mark(mark) if self.value.in_string() => {
                for c in mark.text.chars() {
                    let _ = self.value.read(c, out);
                }
            }
            Symbol::Mark(_) => self.fail(symbol, out),
        }
    }

    fn behind_value(&mut self, c: char, out: &mut Writer<'_>) {
        match c {
            ',' => {
                self.name.clear();
                self.state = State::Argument;
            }
            ')' => self.end_call(out),
            _ => self.fail(Symbol::Char(c), out),
        }
    }

    fn end_call(&mut self, out: &mut Writer<'_>) {
        out.arguments("}");
        self.state = State::BehindCall;
    }

    fn behind_call(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) if c.is_whitespace() => {}
            Symbol::Char(',') => {
                self.name.clear();
                self.state = State::Tool;
            }
            Symbol::Char(']') => self.state = State::Behind,
            _ => self.fail(symbol, out),
        }
    }

    fn behind(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) if c.is_whitespace() => {}
            Symbol::Mark(mark) if mark.index != START => {}
            _ => {
                self.state = State::Text;
                self.start(symbol, out);
            }
        }
    }

    fn fail(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        self.held.release(out);
        self.state = State::Text;
        self.start(symbol, out);
    }
}

impl CallParser for Pythonic {
    fn read(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match self.state {
            State::Start | State::Text => self.start(symbol, out),
            State::Marked => match symbol {
                Symbol::Char('[') => self.list(symbol),
                Symbol::Char(c) if c.is_whitespace() => self.hold(symbol, out),
                _ => self.fail(symbol, out),
            },
            State::Tool => self.tool(symbol, out),
            State::Argument => self.argument(symbol, out),
            State::Value => self.value(symbol, out),
            State::BehindCall => self.behind_call(symbol, out),
            State::Behind => self.behind(symbol, out),
        }
    }

    fn end(&mut self, _: bool, out: &mut Writer<'_>) {
        self.held.release(out);
    }

    fn is_open(&self) -> bool {
        self.begun && matches!(self.state, State::Argument | State::Value)
    }

    fn held(&self) -> usize {
        self.held.chars()
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || "_.-".contains(c)
}
