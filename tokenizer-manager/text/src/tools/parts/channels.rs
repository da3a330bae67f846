//! Messages of channels, as gpt-oss writes them:
//!
//! ```text
//! <|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>
//! ╰──── header, its begin in the prompt ────╯     ╰─ content ─╯
//! ```
//!
//! The channel `analysis` is reasoning, a message to `functions.NAME` is a call, everything else is
//! text. The receiver stands behind the role or behind the channel. Models miss the form: headers
//! have marks twice, words too many or no mark at all. Such a header is read for what it has; one
//! that says nothing is text, as the model wrote it.

mod header;

use std::sync::Arc;

use header::{Header, Kind};

use super::super::{CallParser, ToolSchemas};
use super::raw_arguments::{Place, RawArguments};
use crate::marks::{Mark, Role, Symbol};
use crate::reasoning::Turn;
use crate::writer::{Spaces, Writer};

/// Marks of messages.
pub(crate) const MARKS: [&str; 7] = [
    "<|channel|>",
    "<|start|>",
    "<|message|>",
    "<|constrain|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
];
pub(in super::super) const CHANNEL: usize = 0;
pub(in super::super) const START: usize = 1;
pub(in super::super) const MESSAGE: usize = 2;
pub(in super::super) const CONSTRAIN: usize = 3;
pub(in super::super) const END: usize = 4;
pub(in super::super) const CALL: usize = 5;

/// Parser of messages.
#[derive(Debug)]
pub(crate) struct Channels {
    state: State,
    header: Header,
    /// True if reasoning is told from the text.
    told: bool,
    /// Tools that may be called; `None` = calls are text.
    tools: Option<Arc<ToolSchemas>>,
    /// Parser of calls inside of texts.
    inner: Option<Box<dyn CallParser>>,
    arguments: RawArguments,
    /// White space of the reasoning.
    spaces: Spaces,
    /// Kinds of content so far: reasoning and text.
    shown: [bool; 2],
    /// True if a line break comes before the next character that shows.
    breaks: bool,
}

/// Place in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Header,
    Content(Kind),
    /// Behind the JSON of a call.
    BehindCall,
    /// Between two messages.
    Between,
}

impl Channels {
    /// Makes the parser of an output that begins in this way. `told` says if reasoning is told from
    /// the text. `tools` may be called; without any, calls are text. `inner` reads calls of another
    /// format in texts.
    pub fn new(
        turn: Turn,
        told: bool,
        tools: Option<Arc<ToolSchemas>>,
        inner: Option<Box<dyn CallParser>>,
    ) -> Self {
        Self {
            state: match turn {
                Turn::Open => State::Header,
                Turn::Reasoning => State::Content(Kind::Thought),
                Turn::Answer => State::Content(Kind::Text),
            },
            header: Header::default(),
            told,
            tools,
            inner,
            arguments: RawArguments::default(),
            spaces: Spaces::new(true, true),
            shown: [false; 2],
            breaks: false,
        }
    }

    /// True if a mark is one of messages, and not of the inner format.
    fn is_own(&self, mark: Mark) -> bool {
        self.inner.is_none() || mark.role == Role::Channel
    }

    fn header(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Mark(mark) if mark.index == MESSAGE => {
                self.header.push(symbol);
                self.open(out);
            }
            Symbol::Mark(mark) if mark.index == CHANNEL || mark.index == CONSTRAIN => {
                self.header.push(symbol);
            }
            // There is no content.
            Symbol::Mark(_) => {
                self.give_up(out);
                self.state = State::Between;
                self.between(symbol, out);
            }
            Symbol::Char(_) => self.header.push(symbol),
        }
        if self.state == State::Header && self.header.is_text() {
            self.release(out);
            self.state = State::Content(Kind::Text);
        }
    }

    /// Begins the content that the header announces.
    fn open(&mut self, out: &mut Writer<'_>) {
        let name = self.called().map(str::to_owned);
        let kind = self.header.kind().unwrap_or(Kind::Text);
        self.header.clear();
        if let Some(name) = name {
            out.call(&name, None);
            self.arguments = RawArguments::default();
            self.shown[1] = false;
            self.state = State::Content(Kind::Call);
            return;
        }
        let thinks = self.told && kind == Kind::Thought;
        match thinks {
            true => self.spaces.part(),
            false => out.spaces.part(),
        }
        self.breaks = self.shown[usize::from(!thinks)];
        self.state = State::Content(kind);
    }

    /// Returns the name of the tool that the header's message is for.
    fn called(&self) -> Option<&str> {
        let tools = self.tools.as_ref()?;
        let receiver = self.header.receiver()?;
        let name = match receiver.strip_prefix("functions.") {
            Some(name) => name,
            None => Some(receiver).filter(|name| tools.has(name))?,
        };
        Some(name).filter(|name| !name.is_empty())
    }

    /// Ends a header without content. It is text, unless it only names a channel.
    fn give_up(&mut self, out: &mut Writer<'_>) {
        match self.header.is_bare() {
            true => self.header.clear(),
            false => self.release(out),
        }
    }

    /// Takes a header for text.
    fn release(&mut self, out: &mut Writer<'_>) {
        let text = self.header.take();
        self.shown[1] |= !text.trim().is_empty();
        out.text(&text);
    }

    fn content(&mut self, kind: Kind, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            _ if kind == Kind::Call => self.call(symbol, out),
            Symbol::Mark(mark) if self.is_own(mark) => match mark.index {
                // The grammar of an output that is held to one has no message behind the answer.
                _ if kind == Kind::Answer && self.is_held() => {
                    mark.text
                        .chars()
                        .for_each(|c| self.text(Symbol::Char(c), out));
                }
                CHANNEL | START => {
                    self.state = State::Between;
                    self.between(symbol, out);
                }
                MESSAGE | CONSTRAIN => match self.told && kind == Kind::Thought {
                    true => {}
                    false => out.stray(mark),
                },
                _ => self.state = State::Between,
            },
            Symbol::Char(c) if self.told && kind == Kind::Thought => self.think(c, out),
            Symbol::Mark(mark) if self.told && kind == Kind::Thought => {
                mark.shown().chars().for_each(|c| self.think(c, out));
            }
            symbol => self.text(symbol, out),
        }
    }

    fn is_held(&self) -> bool {
        self.tools.as_ref().is_some_and(|tools| tools.hold())
    }

    fn think(&mut self, c: char, out: &mut Writer<'_>) {
        if !c.is_whitespace() {
            self.shown[0] = true;
            if std::mem::take(&mut self.breaks) {
                out.sink.reasoning("\n");
            }
        }
        self.spaces.push(c, |text| out.sink.reasoning(text));
    }

    fn text(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        if let Symbol::Char(c) = symbol
            && !c.is_whitespace()
        {
            self.shown[1] = true;
            if std::mem::take(&mut self.breaks) {
                out.sink.text("\n");
            }
        }
        match (&mut self.inner, symbol) {
            (Some(inner), symbol) => inner.read(symbol, out),
            (None, Symbol::Char(c)) => out.char(c),
            (None, Symbol::Mark(mark)) => out.stray(mark),
        }
    }

    fn call(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        // A token is a part of a text only where a grammar says that the text goes on.
        let place = match symbol {
            Symbol::Mark(mark) if mark.id.is_some() && !self.is_held() => {
                self.arguments.missing(out)
            }
            symbol => self.arguments.read(symbol, out),
        };
        match place {
            Place::Inside => {}
            Place::Last => self.state = State::BehindCall,
            Place::Behind => {
                self.state = State::BehindCall;
                self.behind_call(symbol, out);
            }
        }
    }

    fn behind_call(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) if c.is_whitespace() => {}
            _ => {
                self.state = State::Between;
                self.between(symbol, out);
            }
        }
    }

    fn between(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match symbol {
            Symbol::Char(c) if c.is_whitespace() => {}
            Symbol::Char(_) => {
                // Its header is missing.
                out.spaces.part();
                self.breaks = self.shown[1];
                self.state = State::Content(Kind::Text);
                self.text(symbol, out);
            }
            Symbol::Mark(mark) if mark.index == START || mark.index == CHANNEL => {
                self.header.push(symbol);
                self.state = State::Header;
            }
            Symbol::Mark(mark) if mark.index >= END => {}
            Symbol::Mark(mark) => out.stray(mark),
        }
    }
}

impl CallParser for Channels {
    fn read(&mut self, symbol: Symbol, out: &mut Writer<'_>) {
        match self.state {
            State::Content(kind) => self.content(kind, symbol, out),
            _ if matches!(symbol, Symbol::Mark(mark) if !self.is_own(mark)) => {}
            State::Header => self.header(symbol, out),
            State::BehindCall => self.behind_call(symbol, out),
            State::Between => self.between(symbol, out),
        }
    }

    fn end(&mut self, cut: bool, out: &mut Writer<'_>) {
        match self.state {
            // A header that was cut says nothing.
            State::Header if !(cut && self.header.is_of_tokens()) => self.give_up(out),
            State::Content(Kind::Call) if !cut => {
                self.arguments.missing(out);
            }
            _ => {}
        }
        self.header.clear();
        if let Some(inner) = &mut self.inner {
            inner.end(cut, out);
        }
    }

    fn is_open(&self) -> bool {
        self.state == State::Content(Kind::Call)
            || self.inner.as_ref().is_some_and(|inner| inner.is_open())
    }

    fn held(&self) -> usize {
        let inner = self.inner.as_ref().map_or(0, |inner| inner.held());
        self.header.held() + self.spaces.held() + inner
    }

    fn is_thinking(&self) -> bool {
        self.told && self.state == State::Content(Kind::Thought)
    }

    fn is_apart(&self) -> bool {
        self.is_thinking() || !matches!(self.state, State::Content(_))
    }
}
