//! The chat API's form of choices. Streamed, a choice has one chunk with the role, one
//! per step, and one with the finish reason.

use serde::Serialize;

use crate::{
    app::App,
    error::ApiResult,
    generation::{Delta, Event},
    http::{
        openai::{answer::Form, envelope::Chunks, finish_reason, logprobs::ChatLogprobs},
        sse::Frames,
    },
};

/// Form of the choices of one chat request.
pub(super) struct ChatForm {
    logprobs: bool,
    /// True for each choice whose role was sent.
    greeted: Vec<bool>,
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
    content: String,
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
}

impl ChatForm {
    /// Makes the form of `choices` choices, with or without log-probabilities.
    pub(super) fn new(logprobs: bool, choices: usize) -> Self {
        Self {
            logprobs,
            greeted: vec![false; choices],
        }
    }
}

impl Form for ChatForm {
    const WHOLE: &'static str = "chat.completion";
    const CHUNK: &'static str = "chat.completion.chunk";
    type Choice = Choice;

    fn whole(&mut self, app: &App, index: usize, output: Delta) -> ApiResult<Choice> {
        let mut choice = Choice {
            index,
            message: Message {
                role: "assistant",
                content: String::new(),
                refusal: None,
            },
            logprobs: self.logprobs.then(ChatLogprobs::default),
            finish_reason: None,
        };
        for event in output.events {
            match event {
                Event::Text(text) => {
                    match choice.message.content.is_empty() {
                        true => choice.message.content = text.text,
                        false => choice.message.content.push_str(&text.text),
                    }
                    if let Some(logprobs) = &mut choice.logprobs {
                        logprobs.extend(&app.text.tokenizer, &text.tokens);
                    }
                }
                Event::End(end) => choice.finish_reason = Some(finish_reason(&end)?),
            }
        }
        Ok(choice)
    }

    fn chunks(
        &mut self,
        chunks: &mut Chunks,
        index: usize,
        delta: Delta,
        frames: &mut Frames,
    ) -> ApiResult<()> {
        chunks.meter.progress(index, delta.completion_tokens);
        if !std::mem::replace(&mut self.greeted[index], true) {
            let greeting = ChunkChoice {
                index,
                delta: Part {
                    role: Some("assistant"),
                    content: Some(""),
                },
                ..ChunkChoice::default()
            };
            chunks.choice(greeting, frames);
        }
        let ends = delta.end().is_some();
        for event in delta.events {
            let mut choice = ChunkChoice {
                index,
                ..ChunkChoice::default()
            };
            match &event {
                Event::Text(text) => {
                    // A step's chunk may be empty, but an empty one is left out before
                    // the chunk with the finish reason.
                    let shows = !text.text.is_empty() || (self.logprobs && !text.tokens.is_empty());
                    if ends && !shows {
                        continue;
                    }
                    choice.delta.content = Some(&text.text);
                    choice.logprobs = self.logprobs.then(|| {
                        let mut logprobs = ChatLogprobs::default();
                        logprobs.extend(&chunks.envelope.app.text.tokenizer, &text.tokens);
                        logprobs
                    });
                }
                Event::End(end) => {
                    choice.finish_reason = Some(finish_reason(end)?);
                    chunks.meter.end(index, end);
                }
            }
            chunks.choice(choice, frames);
        }
        Ok(())
    }
}
