//! A mark that opens calls, inside the reasoning. The model may have forgotten the closing mark
//! of the reasoning, or only mention the mark.

use crate::reasoning::Thought;
use crate::writer::{Sink, Spaces, Writer};

/// Receiver of what a parser of calls reads inside the reasoning: text belongs to the reasoning,
/// and a call ends it.
pub(super) struct Trial<'a> {
    thought: &'a mut Thought,
    sink: &'a mut dyn Sink,
    called: bool,
}

impl<'a> Trial<'a> {
    pub fn new(thought: &'a mut Thought, sink: &'a mut dyn Sink) -> Self {
        Self {
            thought,
            sink,
            called: false,
        }
    }

    /// Returns the way out for the parser.
    pub fn writer<'b>(&'b mut self, spaces: &'b mut Spaces) -> Writer<'b> {
        Writer { spaces, sink: self }
    }

    /// True if there was a call.
    pub fn has_called(&self) -> bool {
        self.called
    }
}

impl Sink for Trial<'_> {
    fn text(&mut self, text: &str) {
        match self.called {
            true => self.sink.text(text),
            false => self.thought.text(text, self.sink),
        }
    }

    fn reasoning(&mut self, text: &str) {
        self.sink.reasoning(text);
    }

    fn call(&mut self, name: &str, id: Option<&str>) {
        self.called = true;
        self.thought.close();
        self.sink.call(name, id);
    }

    fn arguments(&mut self, text: &str) {
        self.sink.arguments(text);
    }
}
