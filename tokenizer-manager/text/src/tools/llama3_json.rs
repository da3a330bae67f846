//! Llama 3.1, 3.2 and 3.3: `{"name": …, "parameters": {…}}`, bare or behind `<|python_tag|>`, with
//! `;` between calls.
//!
//! Any JSON object may be an answer, so only one that names a tool of the request is a call.

use std::sync::Arc;

use super::grammar::{GrammarError, Lark, Unit, call_object, literal};
use super::parts::call_object::{CallObject, Progress};
use super::{CallIds, CallParser, ToolFormat, ToolSchemas};
use crate::marks::Symbol;
use crate::writer::Writer;

pub(super) const FORMAT: ToolFormat = ToolFormat {
    names: &["llama3", "llama3_json", "llama4_json"],
    marks: &["<|python_tag|>"],
    openings: 1,
    is_format_of: |template| {
        template.contains("<|python_tag|>") || template.contains("Environment: ipython")
    },
    ids: CallIds::Long,
    begins: &[],
    grammar,
    whole: None,
    parser,
};

fn grammar(lark: &mut Lark<'_>, _: bool) -> Result<Unit, GrammarError> {
    Ok(Unit {
        opening: None,
        rest: lark.each_tool(|lark, tool| Ok(call_object(lark, tool, "parameters")))?,
        between: Some(literal("; ")),
    })
}

fn parser(tools: Arc<ToolSchemas>) -> Box<dyn CallParser> {
    Box::new(Llama3 {
        tools,
        state: State::Start,
    })
}

#[derive(Debug)]
struct Llama3 {
    tools: Arc<ToolSchemas>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Before the first character that is not white space.
    Start,
    Text,
    Call(CallObject),
    Behind,
}

impl CallParser for Llama3 {
    fn read(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match (&mut self.state, symbol) {
            (State::Call(call), _) => match call.read(symbol, Some(&self.tools), out) {
                Progress::More => {}
                Progress::Done => self.state = State::Behind,
                Progress::Failed => {
                    call.release(out);
                    self.state = State::Text;
                    self.read(symbol, out);
                }
            },
            (_, Symbol::Mark(_)) => self.state = State::Call(CallObject::behind(symbol)),
            (State::Start | State::Behind, Symbol::Char('{')) => {
                let mut call = CallObject::default();
                let _ = call.read(symbol, Some(&self.tools), out);
                self.state = State::Call(call);
            }
            (State::Behind, Symbol::Char(';' | ',')) => {}
            (State::Start | State::Behind, Symbol::Char(c)) if c.is_whitespace() => out.char(c),
            (_, Symbol::Char(c)) => {
                self.state = State::Text;
                out.char(c);
            }
        }
    }

    fn end(&mut self, _: bool, out: &mut Writer<'_>) {
        if let State::Call(call) = &mut self.state {
            call.release(out);
        }
    }

    fn is_open(&self) -> bool {
        matches!(&self.state, State::Call(call) if call.has_begun())
    }

    fn held(&self) -> usize {
        match &self.state {
            State::Call(call) => call.held(),
            State::Start | State::Text | State::Behind => 0,
        }
    }
}
