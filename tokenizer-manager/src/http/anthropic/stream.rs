//! Answers of the Messages API that are streamed: a message, its blocks one after the other,
//! and its end.
//!
//! ```text
//! message_start
//!   content_block_start ─▶ content_block_delta, … ─▶ content_block_stop     per block
//! message_delta: stop reason, token counts
//! message_stop
//! ```

use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;

use super::{
    answer::{Answer, Block, Message, SIGNATURE, Stop, Usage},
    errors,
};
use crate::{
    error::{ApiError, ApiResult},
    generation::{CallDelta, Delta, End, Event, first, merge},
    http::{
        middleware::RequestId,
        openai::usage::UsageMeter,
        sse::{self, Framer, Frames, KEEP_ALIVE},
    },
    submission::Submission,
};

/// Streams the only choice.
pub(super) async fn stream(
    answer: Answer,
    RequestId(request_id): RequestId,
    submission: Submission,
) -> ApiResult<Response> {
    let framer = MessageFramer {
        answer,
        request_id,
        meter: UsageMeter::new(&submission),
        begun: false,
        calls: false,
        open: None,
        blocks: 0,
    };
    // The wait ends before a proxy could close the silent connection.
    let deltas = first(merge(submission.generations), KEEP_ALIVE).await?;
    Ok(sse::response(deltas, framer))
}

/// State of a streamed message.
struct MessageFramer {
    answer: Answer,
    request_id: Arc<str>,
    meter: UsageMeter,
    /// True after the message's begin.
    begun: bool,
    /// True if the message calls a tool.
    calls: bool,
    /// Kind of the block that is open.
    open: Option<Kind>,
    /// Number of blocks so far.
    blocks: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
    Call,
}

/// Data of the events.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Data<'a> {
    MessageStart { message: Message<'a> },
    ContentBlockStart { index: usize, content_block: Block },
    ContentBlockDelta { index: usize, delta: BlockDelta<'a> },
    ContentBlockStop { index: usize },
    MessageDelta { delta: Stop<'a>, usage: Usage },
    MessageStop,
}

/// Growth of a block.
#[derive(Serialize)]
#[serde(tag = "type")]
enum BlockDelta<'a> {
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "signature_delta")]
    Signature { signature: &'a str },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: &'a str },
}

impl Data<'_> {
    /// Returns the name of the event.
    fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
        }
    }

    fn send(&self, frames: &mut Frames) {
        frames.named(self.name(), self);
    }
}

impl MessageFramer {
    fn delta(&mut self, delta: Delta, frames: &mut Frames) -> ApiResult<()> {
        if !std::mem::replace(&mut self.begun, true) {
            let message = self.answer.message(self.meter.totals().into());
            Data::MessageStart { message }.send(frames);
        }
        for event in delta.events {
            match event {
                // A block of text never begins empty: a call may follow instead.
                Event::Text(text) if text.text.is_empty() => {}
                Event::Text(text) => {
                    let empty = || Block::Text {
                        text: String::new(),
                    };
                    self.open(Kind::Text, empty, frames);
                    self.grow(BlockDelta::Text { text: &text.text }, frames);
                }
                Event::Reasoning(text) => self.thinking(&text.text, frames),
                Event::ToolCall(call) => self.call(call, frames),
                Event::End(end) => self.finish(&end, frames)?,
            }
        }
        Ok(())
    }

    fn thinking(&mut self, thinking: &str, frames: &mut Frames) {
        if thinking.is_empty() {
            return;
        }
        let empty = || Block::Thinking {
            thinking: String::new(),
            signature: "",
        };
        self.open(Kind::Thinking, empty, frames);
        if self.answer.shape.shows_thinking {
            self.grow(BlockDelta::Thinking { thinking }, frames);
        }
    }

    fn call(&mut self, call: CallDelta, frames: &mut Frames) {
        if let Some(begin) = call.begin {
            self.calls = true;
            self.close(frames);
            let block = self.answer.tool_use(begin);
            self.open(Kind::Call, || block, frames);
        }
        if !call.arguments.is_empty() {
            let partial_json = &call.arguments;
            self.grow(BlockDelta::InputJson { partial_json }, frames);
        }
    }

    /// Opens a block, unless one of its kind is open.
    fn open(&mut self, kind: Kind, block: impl FnOnce() -> Block, frames: &mut Frames) {
        if self.open == Some(kind) {
            return;
        }
        self.close(frames);
        self.open = Some(kind);
        let index = self.blocks;
        let content_block = block();
        let start = Data::ContentBlockStart {
            index,
            content_block,
        };
        start.send(frames);
    }

    fn grow(&self, delta: BlockDelta<'_>, frames: &mut Frames) {
        let index = self.blocks;
        Data::ContentBlockDelta { index, delta }.send(frames);
    }

    fn close(&mut self, frames: &mut Frames) {
        let Some(kind) = self.open.take() else {
            return;
        };
        if kind == Kind::Thinking {
            let signature = SIGNATURE;
            self.grow(BlockDelta::Signature { signature }, frames);
        }
        let index = self.blocks;
        Data::ContentBlockStop { index }.send(frames);
        self.blocks += 1;
    }

    fn finish(&mut self, end: &End, frames: &mut Frames) -> ApiResult<()> {
        let delta = self.answer.stop(end, self.calls)?;
        self.close(frames);
        self.meter.end(0, end);
        let usage = self.meter.totals().into();
        Data::MessageDelta { delta, usage }.send(frames);
        Data::MessageStop.send(frames);
        Ok(())
    }

    fn fail(&self, error: &ApiError, frames: &mut Frames) {
        frames.failed(error);
        frames.named("error", &errors::body(error, &self.request_id));
    }
}

impl Framer for MessageFramer {
    type Item = (usize, ApiResult<Delta>);

    fn item(&mut self, (_, delta): Self::Item, frames: &mut Frames) -> bool {
        match delta.and_then(|delta| self.delta(delta, frames)) {
            Ok(()) => true,
            Err(error) => {
                self.fail(&error, frames);
                false
            }
        }
    }

    // The end of the choice has ended the message.
    fn end(&mut self, _: &mut Frames) {}
}
