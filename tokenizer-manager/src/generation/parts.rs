//! Parts of an answer as events, each token beside the part that its text begins in.

use std::mem;

use lockstep_text::{AnswerOptions, AnswerParser, Sink, StopScope, TokenText, Tokenizer};

use super::{
    event::{CallBegin, CallDelta, Event, TextDelta},
    pending::Pending,
};

/// Parser of one output, and the events of the current step.
#[derive(Debug)]
pub(super) struct Parts {
    parser: AnswerParser,
    events: Vec<Event>,
    /// Number of calls so far.
    calls: usize,
    /// Number of tokens that are reasoning, if they are counted.
    reasoning_tokens: Option<u32>,
    /// Kind of the last event, if there was one.
    last: Option<Kind>,
}

/// Kinds of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Reasoning,
    Call,
}

impl Parts {
    /// Makes the parser; `None` if the whole answer is text.
    pub(super) fn new(tokenizer: &Tokenizer, options: &AnswerOptions) -> Option<Self> {
        if options.is_plain() {
            return None;
        }
        Some(Self {
            parser: AnswerParser::new(tokenizer, options),
            events: Vec::new(),
            calls: 0,
            reasoning_tokens: options.reasoning.as_ref().map(|_| 0),
            last: None,
        })
    }

    /// Returns the special tokens whose text the parser has to see.
    pub(super) fn special_marks(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        self.parser.special_marks(tokenizer)
    }

    /// Number of tokens that are reasoning; `None` if reasoning is text.
    pub(super) fn reasoning_tokens(&self) -> Option<u32> {
        self.reasoning_tokens
    }

    /// Adds a token and the text that shows with it.
    pub(super) fn token(&mut self, id: u32, token: TokenText<'_>, pending: &mut Pending) {
        let was_reasoning = self.parser.is_reasoning();
        self.parser.token(id, token.text_end);
        self.text(token.text, pending);
        // Both marks around the reasoning count too.
        if was_reasoning || self.parser.is_reasoning() {
            self.reasoning_tokens = self.reasoning_tokens.map(|tokens| tokens + 1);
        }
    }

    /// Adds text. Tokens show with the first event that the text gives.
    pub(super) fn text(&mut self, text: &str, pending: &mut Pending) {
        self.feed(pending, |parser, events| parser.text(text, events));
    }

    /// Takes the events since the last call.
    pub(super) fn take(&mut self) -> Vec<Event> {
        mem::take(&mut self.events)
    }

    /// Returns the tokens in which stop strings count.
    pub(super) fn stop_scope(&self) -> StopScope {
        self.parser.stop_scope()
    }

    /// True inside a call.
    pub(super) fn is_in_call(&self) -> bool {
        self.parser.is_in_call()
    }

    /// Ends the output and takes its last events. `cut` says that the model would have gone on.
    pub(super) fn rest(&mut self, cut: bool, pending: &mut Pending) -> Vec<Event> {
        self.feed(pending, |parser, events| parser.finish(cut, events));
        self.take()
    }

    fn feed(
        &mut self,
        pending: &mut Pending,
        feed: impl FnOnce(&mut AnswerParser, &mut Events<'_>),
    ) {
        let mut events = Events {
            events: &mut self.events,
            calls: &mut self.calls,
            first: None,
        };
        feed(&mut self.parser, &mut events);
        let first = events.first;
        pending.showed_up_to(self.parser.decided());
        let tokens = pending.take();
        if tokens.is_empty() {
            return self.note_last();
        }
        // Tokens of marks and blanks give nothing to show. They belong to the part before them.
        let event = match first {
            Some(at) => self.events.get_mut(at),
            None => {
                if self.events.is_empty() {
                    self.events.push(self.more());
                }
                self.events.last_mut()
            }
        };
        match event {
            Some(Event::Text(text) | Event::Reasoning(text)) => text.tokens.extend(tokens),
            Some(Event::ToolCall(call)) => call.tokens.extend(tokens),
            Some(Event::End(_)) | None => {}
        }
        self.note_last();
    }

    /// Returns an empty event that continues the last part.
    fn more(&self) -> Event {
        let begins = match self.parser.is_reasoning() {
            true => Kind::Reasoning,
            false => Kind::Text,
        };
        match self.last.unwrap_or(begins) {
            Kind::Call => Event::ToolCall(CallDelta {
                index: self.calls.saturating_sub(1),
                ..CallDelta::default()
            }),
            Kind::Reasoning => Event::Reasoning(TextDelta::default()),
            Kind::Text => Event::Text(TextDelta::default()),
        }
    }

    fn note_last(&mut self) {
        self.last = match self.events.last() {
            Some(Event::Text(_)) => Some(Kind::Text),
            Some(Event::Reasoning(_)) => Some(Kind::Reasoning),
            Some(Event::ToolCall(_)) => Some(Kind::Call),
            Some(Event::End(_)) | None => self.last,
        };
    }
}

/// Collector of events. An event grows as long as no other kind follows.
struct Events<'a> {
    events: &'a mut Vec<Event>,
    calls: &'a mut usize,
    /// Place of the first event that grew.
    first: Option<usize>,
}

impl Events<'_> {
    /// Returns the last event, or a new one if `grows` says that the last one is of another kind.
    fn last(
        &mut self,
        grows: fn(&Event) -> bool,
        new: impl FnOnce(usize) -> Event,
    ) -> Option<&mut Event> {
        if !self.events.last().is_some_and(grows) {
            self.events.push(new(*self.calls));
        }
        let at = self.events.len() - 1;
        self.first.get_or_insert(at);
        self.events.last_mut()
    }
}

impl Sink for Events<'_> {
    fn text(&mut self, text: &str) {
        let is_text = |event: &Event| matches!(event, Event::Text(_));
        let last = self.last(is_text, |_| Event::Text(TextDelta::default()));
        if let Some(Event::Text(last)) = last {
            last.text.push_str(text);
        }
    }

    fn reasoning(&mut self, text: &str) {
        let is_reasoning = |event: &Event| matches!(event, Event::Reasoning(_));
        let last = self.last(is_reasoning, |_| Event::Reasoning(TextDelta::default()));
        if let Some(Event::Reasoning(last)) = last {
            last.text.push_str(text);
        }
    }

    fn call(&mut self, name: &str, id: Option<&str>) {
        let begin = CallBegin {
            name: name.to_owned(),
            id: id.map(str::to_owned),
        };
        self.last(
            |_| false,
            |index| {
                Event::ToolCall(CallDelta {
                    index,
                    begin: Some(begin),
                    ..CallDelta::default()
                })
            },
        );
        *self.calls += 1;
    }

    fn arguments(&mut self, text: &str) {
        let is_call = |event: &Event| matches!(event, Event::ToolCall(_));
        let last = self.last(is_call, |calls| {
            Event::ToolCall(CallDelta {
                index: calls.saturating_sub(1),
                ..CallDelta::default()
            })
        });
        if let Some(Event::ToolCall(last)) = last {
            last.arguments.push_str(text);
        }
    }
}
