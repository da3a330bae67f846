//! The growing answer of one choice.

mod speculation;

use std::sync::Arc;

use lockstep_types::{
    request::{FinishReason, Usage},
    sampling::TokenLogprob,
};
use serde::Serialize;
use speculation::Speculation;

use crate::{
    app::{App, FIRST_WEIGHTS},
    generation::{Delta, End, Event, Matched, TextDelta},
    submission::LogprobSpec,
};

/// SGLang's `[logprob, token id, text or null]`.
type Triple = (Option<f32>, u32, Option<String>);

/// Output of a choice so far.
pub(super) struct Meta {
    app: Arc<App>,
    id: String,
    text: String,
    output_ids: Vec<u32>,
    usage: Usage,
    /// Version of the weights; `None` = the weights that the engine started with.
    weight_version: Option<Arc<str>>,
    dp_rank: Option<u32>,
    end: Option<End>,
    logprobs: bool,
    top: bool,
    text_in_logprobs: bool,
    input: Vec<Triple>,
    input_top: Vec<Option<Vec<Triple>>>,
    output: Vec<Triple>,
    output_top: Vec<Option<Vec<Triple>>>,
}

/// One answer object.
#[derive(Serialize)]
pub(super) struct Answer<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    text: &'a str,
    output_ids: &'a [u32],
    meta_info: MetaInfo<'a>,
}

#[derive(Serialize)]
struct MetaInfo<'a> {
    id: &'a str,
    finish_reason: Option<Finish<'a>>,
    prompt_tokens: u32,
    completion_tokens: u32,
    cached_tokens: u32,
    weight_version: &'a str,
    /// Present if there are several DP ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    dp_rank: Option<u32>,
    #[serde(flatten)]
    speculation: Option<Speculation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_token_logprobs: Option<&'a [Triple]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_token_logprobs: Option<&'a [Triple]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_top_logprobs: Option<&'a [Option<Vec<Triple>>]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_top_logprobs: Option<&'a [Option<Vec<Triple>>]>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Finish<'a> {
    Stop {
        #[serde(skip_serializing_if = "Option::is_none")]
        matched: Option<Match<'a>>,
    },
    Length {
        length: u32,
    },
    Abort {
        message: &'static str,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Match<'a> {
    Token(u32),
    Text(&'a str),
}

impl Meta {
    pub(super) fn new(
        app: Arc<App>,
        id: String,
        prompt_tokens: usize,
        logprobs: &LogprobSpec,
        text_in_logprobs: bool,
    ) -> Self {
        Self {
            weight_version: None,
            dp_rank: None,
            app,
            id,
            text: String::new(),
            output_ids: Vec::new(),
            usage: Usage {
                prompt_tokens: u32::try_from(prompt_tokens).unwrap_or(u32::MAX),
                ..Usage::default()
            },
            end: None,
            logprobs: logprobs.output,
            top: logprobs.top > 0,
            text_in_logprobs,
            input: Vec::new(),
            input_top: Vec::new(),
            output: Vec::new(),
            output_top: Vec::new(),
        }
    }

    /// Adds the output of one step.
    pub(super) fn add(&mut self, delta: Delta) {
        self.weight_version = delta.weight_version;
        self.dp_rank = delta.dp_rank;
        self.usage.completion_tokens = delta.completion_tokens;
        for logprob in &delta.prompt_logprobs {
            let (own, top) = self.triples(logprob);
            self.input.push(own);
            self.input_top.push(top);
        }
        for event in delta.events {
            match event {
                Event::Text(text) => self.text(text),
                // This surface asks for no parts, so all output is text.
                Event::Reasoning(_) | Event::ToolCall(_) => {}
                Event::End(end) => {
                    self.usage = end.usage;
                    self.end = Some(end);
                }
            }
        }
    }

    fn text(&mut self, text: TextDelta) {
        self.text.push_str(&text.text);
        for token in text.tokens {
            self.output_ids.push(token.id);
            if let Some(logprob) = &token.logprob {
                let (own, top) = self.triples(logprob);
                self.output.push(own);
                self.output_top.push(top);
            }
        }
    }

    fn triples(&self, logprob: &TokenLogprob) -> (Triple, Option<Vec<Triple>>) {
        let text = |id: u32| {
            let tokenizer = &self.app.text.tokenizer;
            self.text_in_logprobs
                .then(|| tokenizer.token_text(id).unwrap_or_default())
        };
        let own = (logprob.logprob, logprob.token_id, text(logprob.token_id));
        let top = logprob.logprob.map(|_| {
            let top = logprob.top.iter();
            top.map(|(id, value)| (Some(*value), *id, text(*id)))
                .collect()
        });
        (own, top)
    }

    /// Returns the answer so far. `index` is present for one choice of several.
    pub(super) fn answer(&self, index: Option<usize>) -> Answer<'_> {
        Answer {
            index,
            text: &self.text,
            output_ids: &self.output_ids,
            meta_info: MetaInfo {
                id: &self.id,
                finish_reason: self.end.as_ref().map(finish),
                prompt_tokens: self.usage.prompt_tokens,
                completion_tokens: self.usage.completion_tokens,
                cached_tokens: self.usage.cached_tokens,
                weight_version: self.weight_version.as_deref().unwrap_or(FIRST_WEIGHTS),
                dp_rank: self.dp_rank,
                speculation: self
                    .end
                    .as_ref()
                    .and_then(|end| end.speculation.as_ref())
                    .map(Into::into),
                input_token_logprobs: self.logprobs.then_some(&self.input),
                output_token_logprobs: self.logprobs.then_some(&self.output),
                input_top_logprobs: self.top.then_some(&self.input_top),
                output_top_logprobs: self.top.then_some(&self.output_top),
            },
        }
    }
}

fn finish(end: &End) -> Finish<'_> {
    match end.reason {
        FinishReason::Stop => Finish::Stop {
            matched: end.matched.as_ref().map(|matched| match matched {
                Matched::Token(id) => Match::Token(*id),
                Matched::Text(text) => Match::Text(text),
            }),
        },
        FinishReason::Length => Finish::Length {
            length: end.usage.completion_tokens,
        },
        FinishReason::Abort => Finish::Abort {
            message: "Abort requested, by its id or by an operator.",
        },
    }
}
