//! The chat API's form of choices. Streamed, a choice has one chunk with the role, one
//! per step and kind of part, and one with the finish reason.

use lockstep_types::request::FinishReason;
use serde::Serialize;

use super::calls::{self, Call, CallPart};
use crate::{
    app::App,
    error::ApiResult,
    generation::{Delta, End, Event, OutputToken},
    http::{
        openai::{answer::Form, envelope::Chunks, finish_reason, logprobs::ChatLogprobs},
        sse::Frames,
        tools::call_ids,
    },
};

/// Form of the choices of one chat request.
pub(super) struct ChatForm {
    shows: Shows,
    /// State of each choice.
    choices: Vec<State>,
}

/// Optional parts of an answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shows {
    /// True if log-probabilities are shown.
    pub logprobs: bool,
    /// True if reasoning is shown.
    pub reasoning: bool,
    /// True if a text may be empty. Where parts are told apart, clients would take an empty one
    /// for the answer's begin.
    pub empty_text: bool,
}

/// State of a choice.
#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// True if the role was sent.
    greeted: bool,
    /// True if the choice calls a tool.
    calls: bool,
}

/// A choice of a whole answer.
#[derive(Serialize)]
pub(super) struct Choice {
    index: usize,
    message: Message,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
struct Message {
    role: &'static str,
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
    refusal: Option<()>,
}

/// A choice of a chunk.
#[derive(Default, Serialize)]
struct ChunkChoice<'a> {
    index: usize,
    delta: Part<'a>,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
struct Part<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[CallPart<'a>; 1]>,
}

impl ChatForm {
    /// Makes the form of `choices` choices.
    pub(super) fn new(shows: Shows, choices: usize) -> Self {
        Self {
            shows,
            choices: vec![State::default(); choices],
        }
    }

    /// Returns the reason of a choice's end. A choice that calls tools ends for that, unless it
    /// was cut.
    fn finish_reason(&self, index: usize, end: &End) -> ApiResult<&'static str> {
        match end.reason {
            FinishReason::Stop if self.choices[index].calls && !end.cuts_call => Ok("tool_calls"),
            _ => finish_reason(end),
        }
    }

    /// Returns the log-probabilities of the tokens, if they are shown.
    fn logprobs(&self, app: &App, tokens: &[OutputToken]) -> Option<ChatLogprobs> {
        self.shows.logprobs.then(|| {
            let mut logprobs = ChatLogprobs::default();
            logprobs.extend(&app.text.tokenizer, tokens);
            logprobs
        })
    }

    /// Adds the chunks of one event; `ends` says that the choice ends with this step.
    fn event(
        &mut self,
        chunks: &mut Chunks,
        (index, ends): (usize, bool),
        event: &Event,
        frames: &mut Frames,
    ) -> ApiResult<()> {
        let mut choice = ChunkChoice {
            index,
            logprobs: match event {
                Event::End(_) => None,
                event => self.logprobs(&chunks.envelope.app, event.tokens()),
            },
            ..ChunkChoice::default()
        };
        match event {
            Event::Text(text) => {
                // A step's chunk may be empty, but an empty one is left out before the
                // chunk with the finish reason.
                let shows = self.shows.logprobs && !text.tokens.is_empty();
                if ends && text.text.is_empty() && !shows {
                    return Ok(());
                }
                let shows = self.shows.empty_text || !text.text.is_empty();
                choice.delta.content = shows.then_some(&text.text);
            }
            // Reasoning that is left out still has its step's chunk.
            Event::Reasoning(text) => {
                let shows = self.shows.reasoning && !text.text.is_empty();
                choice.delta.reasoning_content = shows.then_some(&text.text);
            }
            Event::ToolCall(call) => {
                self.choices[index].calls = true;
                for part in calls::parts(call, call_ids(&chunks.envelope.app)) {
                    choice.delta.tool_calls = Some([part]);
                    chunks.choice(std::mem::take(&mut choice), frames);
                    choice.index = index;
                }
                // Tokens of marks have log-probabilities, but nothing to show.
                if choice.logprobs.is_none() {
                    return Ok(());
                }
            }
            Event::End(end) => {
                choice.finish_reason = Some(self.finish_reason(index, end)?);
                chunks.meter.end(index, end);
            }
        }
        chunks.choice(choice, frames);
        Ok(())
    }
}

impl Form for ChatForm {
    const WHOLE: &'static str = "chat.completion";
    const CHUNK: &'static str = "chat.completion.chunk";
    type Choice = Choice;

    fn whole(&mut self, app: &App, index: usize, output: Delta) -> ApiResult<Choice> {
        let (mut content, mut reasoning) = (String::new(), String::new());
        let mut tool_calls = Vec::new();
        let mut logprobs = self.logprobs(app, &[]);
        let mut reason = None;
        for event in output.events {
            if let Some(logprobs) = &mut logprobs {
                logprobs.extend(&app.text.tokenizer, event.tokens());
            }
            match event {
                Event::Text(text) => append(&mut content, text.text),
                Event::Reasoning(text) => append(&mut reasoning, text.text),
                Event::ToolCall(call) => {
                    self.choices[index].calls = true;
                    calls::add(&mut tool_calls, call, call_ids(app));
                }
                Event::End(end) => reason = Some(self.finish_reason(index, &end)?),
            }
        }
        let shows_reasoning = self.shows.reasoning && !reasoning.is_empty();
        Ok(Choice {
            index,
            message: Message {
                role: "assistant",
                content: (tool_calls.is_empty() || !content.is_empty()).then_some(content),
                reasoning_content: shows_reasoning.then_some(reasoning),
                tool_calls,
                refusal: None,
            },
            logprobs,
            finish_reason: reason,
        })
    }

    fn chunks(
        &mut self,
        chunks: &mut Chunks,
        index: usize,
        delta: Delta,
        frames: &mut Frames,
    ) -> ApiResult<()> {
        chunks.meter.progress(index, delta.completion_tokens);
        if !std::mem::replace(&mut self.choices[index].greeted, true) {
            let greeting = ChunkChoice {
                index,
                delta: Part {
                    role: Some("assistant"),
                    content: Some(""),
                    ..Part::default()
                },
                ..ChunkChoice::default()
            };
            chunks.choice(greeting, frames);
        }
        let ends = delta.end().is_some();
        for event in &delta.events {
            self.event(chunks, (index, ends), event, frames)?;
        }
        Ok(())
    }
}

/// Appends a text, without a copy if it is the first one.
fn append(whole: &mut String, text: String) {
    match whole.is_empty() {
        true => *whole = text,
        false => whole.push_str(&text),
    }
}
