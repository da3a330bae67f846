//! Growth of an answer's output: reasoning, messages and calls. A whole answer and a stream are
//! made by the same steps; a stream tells each of them.

use lockstep_text::CallIds;

use super::{
    events::{Data, Emit, Place},
    item::{Item, Part, Status},
    object::Outcome,
};
use crate::{
    app::App,
    generation::{CallDelta, Event},
    http::tools::{call_id, call_ids},
};

impl Status {
    /// Returns the state of the last item of an answer that ended.
    pub(super) fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Completed => Self::Completed,
            Outcome::InProgress | Outcome::Incomplete | Outcome::Failed(_) => Self::Incomplete,
        }
    }
}

/// The items so far. The last one may be open.
#[derive(Debug)]
pub(super) struct Items {
    /// Id of the request, in which the ids of items end.
    request_id: String,
    call_ids: CallIds,
    items: Vec<Item>,
    open: bool,
}

impl Items {
    /// Makes an empty output.
    pub(super) fn new(app: &App, request_id: &str) -> Self {
        Self {
            request_id: request_id.to_owned(),
            call_ids: call_ids(app),
            items: Vec::new(),
            open: false,
        }
    }

    /// Returns all items.
    pub(super) fn all(&self) -> &[Item] {
        &self.items
    }

    /// Adds an event of the generation.
    pub(super) fn add(&mut self, event: Event, out: &mut impl Emit) {
        match event {
            Event::Text(text) => self.text(false, &text.text, out),
            Event::Reasoning(text) => self.text(true, &text.text, out),
            Event::ToolCall(call) => self.call(call, out),
            Event::End(_) => {}
        }
    }

    /// Ends the output. Its last item gets the state `last`.
    pub(super) fn finish(&mut self, last: Status, out: &mut impl Emit) {
        let at = self.items.len().saturating_sub(1);
        if let Some(item) = self.items.last_mut().filter(|_| self.open) {
            item.close(last, at, out);
        }
        self.open = false;
    }

    fn text(&mut self, reasoning: bool, more: &str, out: &mut impl Emit) {
        // A message never begins empty: a call may follow instead.
        if more.is_empty() {
            return;
        }
        let fits = match self.items.last() {
            Some(Item::Reasoning { .. }) => reasoning,
            Some(Item::Message { .. }) => !reasoning,
            Some(Item::FunctionCall { .. }) | None => false,
        };
        if !(fits && self.open) {
            let item = match reasoning {
                true => Item::Reasoning {
                    id: self.id("rs"),
                    summary: [],
                    content: Vec::new(),
                    status: Status::InProgress,
                },
                false => Item::Message {
                    id: self.id("msg"),
                    status: Status::InProgress,
                    role: "assistant",
                    content: Vec::new(),
                },
            };
            self.begin(item, out);
        }
        let at = self.items.len() - 1;
        if let Some(item) = self.items.last_mut() {
            item.grow(more, at, out);
        }
    }

    fn call(&mut self, call: CallDelta, out: &mut impl Emit) {
        if let Some(mut begin) = call.begin {
            // Clients tell calls by their ids.
            let seen = |item: &Item| matches!(item, Item::FunctionCall { call_id, .. } if Some(call_id) == begin.id.as_ref());
            if self.items.iter().any(seen) {
                begin.id = None;
            }
            let item = Item::FunctionCall {
                id: self.id("fc"),
                call_id: call_id(&begin, self.call_ids, "call"),
                name: begin.name,
                arguments: String::new(),
                status: Status::InProgress,
            };
            self.begin(item, out);
        }
        let at = self.items.len().saturating_sub(1);
        if let Some(item) = self.items.last_mut()
            && !call.arguments.is_empty()
        {
            item.grow(&call.arguments, at, out);
        }
    }

    fn begin(&mut self, item: Item, out: &mut impl Emit) {
        self.finish(Status::Completed, out);
        let data = Data::Item {
            output_index: self.items.len(),
            item: &item,
        };
        out.emit("response.output_item.added", data);
        self.items.push(item);
        self.open = true;
    }

    /// Returns the id of the next item.
    fn id(&self, prefix: &str) -> String {
        format!("{prefix}_{}-{}", self.request_id, self.items.len())
    }
}

impl Item {
    fn place(&self, output_index: usize) -> Place<'_> {
        let (Self::Reasoning { id, .. } | Self::Message { id, .. } | Self::FunctionCall { id, .. }) =
            self;
        Place {
            item_id: id,
            output_index,
        }
    }

    /// Adds text or arguments.
    fn grow(&mut self, more: &str, at: usize, out: &mut impl Emit) {
        self.begin_part(at, out);
        match self {
            Self::FunctionCall { arguments, .. } => arguments.push_str(more),
            Self::Reasoning { content, .. } | Self::Message { content, .. } => {
                if let Some(Part::ReasoningText { text } | Part::OutputText { text, .. }) =
                    content.last_mut()
                {
                    text.push_str(more);
                }
            }
        }
        let place = self.place(at);
        let text = |logprobs| Data::TextDelta {
            place,
            content_index: 0,
            delta: more,
            logprobs,
        };
        match self {
            Self::FunctionCall { .. } => {
                let data = Data::ArgumentsDelta { place, delta: more };
                out.emit("response.function_call_arguments.delta", data);
            }
            Self::Reasoning { .. } => out.emit("response.reasoning_text.delta", text(None)),
            Self::Message { .. } => out.emit("response.output_text.delta", text(Some([]))),
        }
    }

    /// Begins the only part of a content that has none.
    fn begin_part(&mut self, at: usize, out: &mut impl Emit) {
        let text = String::new();
        let (content, part) = match self {
            Self::Reasoning { content, .. } => (content, Part::ReasoningText { text }),
            Self::Message { content, .. } => (
                content,
                Part::OutputText {
                    text,
                    annotations: [],
                    logprobs: [],
                },
            ),
            Self::FunctionCall { .. } => return,
        };
        if content.is_empty() {
            content.push(part);
            self.tell_part("response.content_part.added", at, out);
        }
    }

    fn tell_part(&self, name: &'static str, at: usize, out: &mut impl Emit) {
        let (Self::Reasoning { content, .. } | Self::Message { content, .. }) = self else {
            return;
        };
        for (content_index, part) in content.iter().enumerate() {
            let place = self.place(at);
            let data = Data::Part {
                place,
                content_index,
                part,
            };
            out.emit(name, data);
        }
    }

    /// Ends the item.
    fn close(&mut self, ends: Status, at: usize, out: &mut impl Emit) {
        let (Self::Reasoning { status, .. }
        | Self::Message { status, .. }
        | Self::FunctionCall { status, .. }) = self;
        *status = ends;
        let place = self.place(at);
        match &*self {
            Self::FunctionCall {
                name, arguments, ..
            } => {
                let data = Data::ArgumentsDone {
                    place,
                    name,
                    arguments,
                };
                out.emit("response.function_call_arguments.done", data);
            }
            Self::Reasoning { content, .. } | Self::Message { content, .. } => {
                for (content_index, part) in content.iter().enumerate() {
                    let (name, text, logprobs) = match part {
                        Part::ReasoningText { text } => {
                            ("response.reasoning_text.done", text, None)
                        }
                        Part::OutputText { text, .. } => {
                            ("response.output_text.done", text, Some([]))
                        }
                    };
                    let data = Data::TextDone {
                        place,
                        content_index,
                        text,
                        logprobs,
                    };
                    out.emit(name, data);
                }
                self.tell_part("response.content_part.done", at, out);
            }
        }
        let data = Data::Item {
            output_index: at,
            item: self,
        };
        out.emit("response.output_item.done", data);
    }
}
