//! Answers of the Messages API that are sent whole.

use std::sync::Arc;

use axum::response::Response;
use lockstep_text::CallIds;
use lockstep_types::request::FinishReason;
use serde::Serialize;
use serde_json::{Map, Value};

use super::convert::Shape;
use crate::{
    app::App,
    error::{ApiError, ApiResult},
    generation::{CallBegin, CallDelta, End, Event, Matched},
    http::{
        json,
        openai::{
            AskedModel,
            usage::{Totals, UsageMeter},
        },
        tools::{call_id, call_ids},
    },
    submission::Submission,
};

/// Signature of thinking. Nobody checks it when it comes back.
pub(super) const SIGNATURE: &str = "lockstep";
/// Key under which arguments that are no JSON object are shown, as Anthropic's documentation
/// has it.
const INVALID_JSON: &str = "INVALID_JSON";

/// An answer that has not begun.
pub(super) struct Answer {
    pub app: Arc<App>,
    pub id: String,
    pub model: AskedModel,
    pub shape: Shape,
}

/// The message object.
#[derive(Serialize)]
pub(super) struct Message<'a> {
    id: &'a str,
    r#type: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Block>,
    stop_reason: Option<&'static str>,
    stop_sequence: Option<&'a str>,
    usage: Usage,
}

/// A block of content. The begin of a block in a stream has this form too.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Block {
    Text {
        text: String,
    },
    Thinking {
        thinking: String,
        signature: &'static str,
    },
    ToolUse {
        id: String,
        name: String,
        input: Value,
    },
}

/// Token counts. The tokens of the prompt are those that were cached and the others.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Usage {
    input_tokens: u64,
    cache_creation_input_tokens: u64,
    cache_read_input_tokens: u64,
    output_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_tokens_details: Option<OutputDetails>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct OutputDetails {
    thinking_tokens: u64,
}

impl From<Totals> for Usage {
    fn from(totals: Totals) -> Self {
        let details = |thinking_tokens| OutputDetails { thinking_tokens };
        Self {
            input_tokens: totals.prompt_tokens.saturating_sub(totals.cached_tokens),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: totals.cached_tokens,
            output_tokens: totals.completion_tokens,
            output_tokens_details: totals.reasoning_tokens.map(details),
        }
    }
}

impl Answer {
    /// Waits for the end of the only choice, and answers with all of it.
    pub(super) async fn whole(self, submission: Submission) -> ApiResult<Response> {
        let mut meter = UsageMeter::new(&submission);
        let mut blocks = Blocks::new(&self);
        let mut ended = None;
        for generation in submission.generations {
            for event in generation.complete().await?.events {
                match event {
                    Event::Text(text) => blocks.text(text.text),
                    Event::Reasoning(text) => blocks.thinking(&text.text),
                    Event::ToolCall(call) => blocks.call(call),
                    Event::End(end) => {
                        meter.end(0, &end);
                        ended = Some(end);
                    }
                }
            }
        }
        let (content, calls) = blocks.finish();
        let stop = ended.as_ref().map(|end| self.stop(end, calls));
        let stop = stop.transpose()?;
        let mut message = self.message(meter.totals().into());
        message.content = content;
        if let Some(stop) = stop {
            message.stop_reason = Some(stop.reason);
            message.stop_sequence = stop.sequence;
        }
        json(&message)
    }

    /// Returns the message without content.
    pub(super) fn message(&self, usage: Usage) -> Message<'_> {
        Message {
            id: &self.id,
            r#type: "message",
            role: "assistant",
            model: self.model.name(&self.app),
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage,
        }
    }

    /// Returns the reason of the end; `calls` says that the answer calls tools.
    ///
    /// # Errors
    /// An abort is an error, since the API has no reason for it.
    pub(super) fn stop<'a>(&self, end: &'a End, calls: bool) -> ApiResult<Stop<'a>> {
        let reason = |reason| Stop {
            reason,
            sequence: None,
        };
        Ok(match (end.reason, &end.matched) {
            (FinishReason::Abort, _) => return Err(ApiError::aborted()),
            (FinishReason::Length, _) if end.usage.completion_tokens < self.shape.max_tokens => {
                reason("model_context_window_exceeded")
            }
            (FinishReason::Length, _) => reason("max_tokens"),
            (FinishReason::Stop, Some(Matched::Text(text))) => Stop {
                reason: "stop_sequence",
                sequence: Some(text),
            },
            (FinishReason::Stop, _) if calls => reason("tool_use"),
            (FinishReason::Stop, _) => reason("end_turn"),
        })
    }

    /// Returns the begin of a call's block.
    pub(super) fn tool_use(&self, begin: CallBegin) -> Block {
        tool_use(begin, call_ids(&self.app))
    }
}

/// Reason of an answer's end.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Stop<'a> {
    #[serde(rename = "stop_reason")]
    reason: &'static str,
    #[serde(rename = "stop_sequence")]
    sequence: Option<&'a str>,
}

fn tool_use(begin: CallBegin, ids: CallIds) -> Block {
    Block::ToolUse {
        id: call_id(&begin, ids, "toolu"),
        name: begin.name,
        input: Value::Object(Map::new()),
    }
}

/// Blocks of a whole answer.
struct Blocks {
    blocks: Vec<Block>,
    /// Arguments of the last call.
    arguments: String,
    calls: bool,
    shows_thinking: bool,
    ids: CallIds,
}

impl Blocks {
    fn new(answer: &Answer) -> Self {
        Self {
            blocks: Vec::new(),
            arguments: String::new(),
            calls: false,
            shows_thinking: answer.shape.shows_thinking,
            ids: call_ids(&answer.app),
        }
    }

    fn text(&mut self, more: String) {
        match self.blocks.last_mut() {
            _ if more.is_empty() => {}
            Some(Block::Text { text }) => text.push_str(&more),
            _ => self.push(Block::Text { text: more }),
        }
    }

    fn thinking(&mut self, more: &str) {
        if more.is_empty() {
            return;
        }
        if !matches!(self.blocks.last(), Some(Block::Thinking { .. })) {
            self.push(Block::Thinking {
                thinking: String::new(),
                signature: SIGNATURE,
            });
        }
        if let Some(Block::Thinking { thinking, .. }) = self.blocks.last_mut()
            && self.shows_thinking
        {
            thinking.push_str(more);
        }
    }

    fn call(&mut self, call: CallDelta) {
        if let Some(begin) = call.begin {
            self.calls = true;
            self.push(tool_use(begin, self.ids));
        }
        self.arguments.push_str(&call.arguments);
    }

    fn push(&mut self, block: Block) {
        self.close();
        self.blocks.push(block);
    }

    /// Gives the last call its arguments.
    fn close(&mut self) {
        let arguments = std::mem::take(&mut self.arguments);
        if let Some(Block::ToolUse { input, .. }) = self.blocks.last_mut() {
            *input = self::input(arguments);
        }
    }

    /// Returns the blocks, and true if there is a call among them.
    fn finish(mut self) -> (Vec<Block>, bool) {
        self.close();
        (self.blocks, self.calls)
    }
}

/// Returns the arguments of a call as an object. Others, as an answer that was cut has them,
/// are not lost.
fn input(arguments: String) -> Value {
    if arguments.trim().is_empty() {
        return Value::Object(Map::new());
    }
    match serde_json::from_str(&arguments) {
        Ok(Value::Object(input)) => Value::Object(input),
        _ => Value::from_iter([(INVALID_JSON, arguments)]),
    }
}
