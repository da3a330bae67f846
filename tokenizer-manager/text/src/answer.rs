//! Parts of an answer: reasoning, text and tool calls, told from each other in a growing
//! output.
//!
//! ```text
//! text, tokens ──▶ MarkFinder ──▶ Thought ──▶ CallParser ──▶ Sink
//!                  marks,         reasoning   calls, text
//!                  characters
//! ```
//!
//! The parts, joined, do not depend on how the text is cut.

mod format;
#[cfg(test)]
pub(crate) mod tests;
mod trial;

use std::collections::VecDeque;
use std::sync::Arc;

pub use format::{AUTO, AnswerFormat, NONE, UnknownParser};

use crate::marks::{Mark, MarkFinder, Role, Symbol};
use crate::reasoning::{Read, ReasoningFormat, Thought, Turn};
use crate::tools::channels::{Channels, MARKS};
use crate::tools::{CallParser, Muted, ToolFormat, ToolSchemas, channel_format};
use crate::writer::{Sink, Spaces, Writer};
use crate::{StopScope, Tokenizer};
use trial::Trial;

/// Parts that a request wants told apart.
#[derive(Debug, Clone, Default)]
pub struct AnswerOptions {
    /// Format of the reasoning, and the way in which the output begins; `None` leaves reasoning in
    /// the text.
    pub reasoning: Option<(&'static ReasoningFormat, Turn)>,
    /// Treatment of calls.
    pub calls: Calls,
    /// True if special tokens are left out of the text.
    pub skip_special_tokens: bool,
}

/// Treatment of calls in an output.
#[derive(Debug, Clone, Default)]
pub enum Calls {
    /// Calls are text.
    #[default]
    Text,
    /// Calls are text without the tokens that mark them: the request forbids calls.
    Muted(&'static ToolFormat),
    /// Calls of these tools are told from the text.
    Parsed(&'static ToolFormat, Arc<ToolSchemas>),
}

impl Calls {
    /// Leaves reasoning of a format in the text. Messages of channels lose their headers then.
    #[must_use]
    pub fn with_reasoning(self, format: &ReasoningFormat) -> Self {
        match self {
            Self::Text if format.channels => Self::Muted(channel_format()),
            calls => calls,
        }
    }

    /// True if texts have other parts beside them.
    fn have_parts(&self) -> bool {
        match self {
            Self::Text => false,
            Self::Muted(format) => format.marks == MARKS,
            Self::Parsed(..) => true,
        }
    }
}

impl AnswerOptions {
    /// True if there is nothing to tell apart.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.reasoning.is_none() && matches!(self.calls, Calls::Text)
    }
}

/// Parser of one output.
#[derive(Debug)]
pub struct AnswerParser {
    finder: MarkFinder,
    thought: Thought,
    options: AnswerOptions,
    calls: Option<Box<dyn CallParser>>,
    /// True while a mark inside the reasoning may have opened a call.
    is_tried: bool,
    /// True if a call has ended the reasoning, whose closing mark may still come.
    interrupted: bool,
    /// True until the answer begins, where it is either text or calls.
    undecided: bool,
    /// True between the reasoning and the answer's first character that is not blank.
    begins: bool,
    spaces: Spaces,
    /// Marks that are tokens, whose text has not come yet.
    ahead: VecDeque<Ahead>,
    /// Characters of text so far.
    fed: usize,
}

/// A token that is a mark, with the place of its text in characters.
#[derive(Debug, Clone, Copy)]
struct Ahead {
    mark: Mark,
    start: usize,
    end: usize,
}

impl AnswerParser {
    /// Makes the parser of an output that has no text yet.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer, options: &AnswerOptions) -> Self {
        let skip = options.skip_special_tokens;
        let describe = |mark, role| Mark::new(mark, role, tokenizer, skip);
        let format = options.reasoning.map(|(format, _)| format);
        let channels = format.is_some_and(|format| format.channels);
        let (reasoning, role): (&[_], _) = match &format {
            None => (&[], Role::Reasoning),
            Some(format) if format.channels => (&MARKS, Role::Channel),
            Some(format) => (&format.marks, Role::Reasoning),
        };
        let reasoning = reasoning.iter().copied().enumerate();
        let reasoning = reasoning.map(|mark| describe(mark, role));
        let format = match &options.calls {
            Calls::Text => None,
            Calls::Muted(format) | Calls::Parsed(format, _) => Some(*format),
        };
        // Channels have their calls' marks already.
        let format = format.filter(|format| !channels || format.marks != MARKS);
        let calls = format.into_iter().flat_map(|format| {
            let marks = format.marks.iter().copied().enumerate();
            // A grammar of calls begins behind the reasoning, which has none then.
            let parsed = matches!(&options.calls, Calls::Parsed(_, tools) if !tools.hold());
            marks.map(move |mark| match parsed && mark.0 < format.openings {
                true => describe(mark, Role::OpensCall),
                false => describe(mark, Role::Call),
            })
        });
        let marks: Arc<[Mark]> = reasoning.chain(calls).collect();
        Self {
            finder: MarkFinder::new(marks),
            thought: match options.reasoning {
                Some((format, turn)) if !channels => Thought::new(turn, format.label),
                _ => Thought::new(Turn::Answer, ""),
            },
            calls: parser(options),
            options: options.clone(),
            is_tried: false,
            interrupted: false,
            undecided: !channels
                && matches!(&options.calls, Calls::Parsed(_, tools) if tools.are_alone()),
            begins: false,
            spaces: Spaces::new(channels || options.calls.have_parts(), false),
            ahead: VecDeque::new(),
            fed: 0,
        }
    }

    /// Returns the special tokens whose text the parser has to see.
    #[must_use]
    pub fn special_marks(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let ids = self.finder.marks().iter().filter_map(|mark| mark.id);
        ids.filter(|id| tokenizer.is_special(*id)).collect()
    }

    /// True while the output is inside the reasoning.
    #[must_use]
    pub fn is_reasoning(&self) -> bool {
        self.thought.is_open() || self.calls.as_ref().is_some_and(|calls| calls.is_thinking())
    }

    /// Number of characters that are passed on or belong to a mark or a call; the others are
    /// held back.
    #[must_use]
    pub fn decided(&self) -> usize {
        let calls = self.calls.as_ref().map_or(0, |calls| calls.held());
        let held = self.finder.held() + self.thought.held() + self.spaces.held() + calls;
        self.fed.saturating_sub(held)
    }

    /// Adds a token whose text ends `end` characters behind the output's start. Its text follows,
    /// at once or later.
    pub fn token(&mut self, id: u32, end: usize) {
        if let Some(mark) = self.finder.of_token(id) {
            let start = end.saturating_sub(mark.text.chars().count());
            self.ahead.push_back(Ahead { mark, start, end });
        }
    }

    /// Adds text, and passes on the parts that are certain now.
    pub fn text(&mut self, text: &str, sink: &mut dyn Sink) {
        for c in text.chars() {
            let at = self.fed;
            self.fed += 1;
            match self.ahead.front() {
                Some(ahead) if ahead.start <= at => {
                    let Ahead { mark, end, .. } = *ahead;
                    if self.fed == end {
                        self.ahead.pop_front();
                        self.flush(sink);
                        self.symbol(Symbol::Mark(mark), sink);
                    }
                }
                _ => self.char(c, sink),
            }
        }
    }

    /// Returns where stop strings count: in the answer, not in the reasoning, and not in the
    /// blanks between them.
    #[must_use]
    pub fn stop_scope(&self) -> StopScope {
        let is_apart = self.calls.as_ref().is_some_and(|calls| calls.is_apart());
        if self.thought.is_open() || is_apart {
            StopScope::Nothing
        } else if self.begins {
            StopScope::Visible
        } else {
            StopScope::All
        }
    }

    /// True inside a call that has begun.
    #[must_use]
    pub fn is_in_call(&self) -> bool {
        self.calls.as_ref().is_some_and(|calls| calls.is_open())
    }

    /// Ends the output, and passes on what is held back. `cut` says that the model would have
    /// gone on; a call that it was writing then stays open.
    pub fn finish(&mut self, cut: bool, sink: &mut dyn Sink) {
        self.flush(sink);
        // A stop string may have cut the output inside a mark.
        if let Some(Ahead { mark, start, .. }) = self.ahead.pop_front()
            && start < self.fed
        {
            let shown = mark.shown().chars().take(self.fed - start);
            shown.for_each(|c| self.symbol(Symbol::Char(c), sink));
        }
        let start = self.thought.finish();
        let mut out = Writer {
            spaces: &mut self.spaces,
            sink,
        };
        out.text(&start);
        if self.is_tried {
            self.try_call(sink, |calls, out| calls.end(cut, out));
        } else if let Some(calls) = &mut self.calls {
            calls.end(cut, &mut out);
        }
        self.spaces.flush(|text| sink.text(text));
    }

    fn char(&mut self, c: char, sink: &mut dyn Sink) {
        self.finder.push(c);
        while let Some(symbol) = self.finder.take() {
            self.symbol(symbol, sink);
        }
    }

    fn flush(&mut self, sink: &mut dyn Sink) {
        while let Some(symbol) = self.finder.take_char() {
            self.symbol(symbol, sink);
        }
    }

    fn symbol(&mut self, symbol: Symbol, sink: &mut dyn Sink) {
        if self.is_tried {
            if !Thought::is_closing(symbol) {
                return self.try_call(sink, |calls, out| read(calls.as_mut(), symbol, out));
            }
            self.try_call(sink, |calls, out| calls.end(true, out));
            self.is_tried = false;
            self.calls = parser(&self.options);
        }
        match self.thought.read(symbol, sink) {
            Read::Reasoning => {}
            Read::Closed => {
                self.begins = true;
                self.spaces.part();
            }
            Read::Interrupted => {
                self.is_tried = true;
                self.try_call(sink, |calls, out| read(calls.as_mut(), symbol, out));
            }
            Read::Answer => self.answer(symbol, sink),
            Read::Begins => {
                for c in std::mem::take(&mut self.thought.start).chars() {
                    self.answer(Symbol::Char(c), sink);
                }
                self.answer(symbol, sink);
            }
        }
    }

    fn answer(&mut self, symbol: Symbol, sink: &mut dyn Sink) {
        let blank = matches!(symbol, Symbol::Char(c) if c.is_whitespace());
        self.begins &= blank;
        if !blank && std::mem::take(&mut self.undecided) && matches!(symbol, Symbol::Char(_)) {
            self.calls = None;
        }
        let mut out = Writer {
            spaces: &mut self.spaces,
            sink,
        };
        match (&mut self.calls, symbol) {
            (Some(calls), symbol)
                if self.interrupted && !calls.is_open() && Thought::is_closing(symbol) =>
            {
                self.interrupted = false;
            }
            (Some(calls), symbol) => read(calls.as_mut(), symbol, &mut out),
            (None, Symbol::Char(c)) => out.char(c),
            (None, Symbol::Mark(mark)) => out.text(mark.shown()),
        }
    }

    /// Lets the parser of calls read inside the reasoning. Its text belongs to the reasoning,
    /// which goes on behind it; a call ends the reasoning.
    fn try_call(
        &mut self,
        sink: &mut dyn Sink,
        read: impl FnOnce(&mut Box<dyn CallParser>, &mut Writer<'_>),
    ) {
        let Some(calls) = &mut self.calls else {
            return;
        };
        let mut trial = Trial::new(&mut self.thought, sink);
        read(calls, &mut trial.writer(&mut Spaces::default()));
        if trial.has_called() {
            self.interrupted = true;
            self.spaces.part();
        }
        self.is_tried = self.thought.is_open() && calls.held() > 0;
    }
}

fn parser(options: &AnswerOptions) -> Option<Box<dyn CallParser>> {
    let calls: Option<Box<dyn CallParser>> = match &options.calls {
        Calls::Text => None,
        Calls::Muted(format) if format.marks == MARKS => {
            Some(Box::new(Channels::new(Turn::Open, false, None, None)))
        }
        Calls::Muted(_) => Some(Box::new(Muted)),
        Calls::Parsed(format, tools) => Some((format.parser)(Arc::clone(tools))),
    };
    let Some((_, turn)) = options.reasoning.filter(|(format, _)| format.channels) else {
        return calls;
    };
    let (tools, inner) = match &options.calls {
        Calls::Parsed(format, tools) if format.marks == MARKS => (Some(Arc::clone(tools)), None),
        Calls::Muted(format) if format.marks == MARKS => (None, None),
        _ => (None, calls),
    };
    Some(Box::new(Channels::new(turn, true, tools, inner)))
}

/// Reads a symbol of the answer. Marks of reasoning are text there.
fn read(calls: &mut dyn CallParser, symbol: Symbol, out: &mut Writer<'_>) {
    match symbol {
        Symbol::Mark(mark) if mark.role == Role::Reasoning => {
            for c in mark.shown().chars() {
                calls.read(Symbol::Char(c), out);
            }
        }
        symbol => calls.read(symbol, out),
    }
}
