//! The response object, which is the whole answer, and stands in events of a stream.

use std::sync::Arc;

use lockstep_ports::Reservation;
use lockstep_types::request::FinishReason;
use serde::Serialize;
use serde_json::{Map, Value};

use super::item::Item;
use crate::{
    app::{App, now},
    error::{ApiError, ApiResult},
    generation::End,
    http::openai::{AskedModel, usage::Totals},
    text::json_bytes,
};

/// Settings of a request, which its answer repeats.
#[derive(Debug, Serialize)]
pub(super) struct Settings {
    pub instructions: Option<String>,
    pub max_output_tokens: Option<i64>,
    pub max_tool_calls: Option<i64>,
    pub parallel_tool_calls: bool,
    pub reasoning: Value,
    pub temperature: f64,
    pub top_p: f64,
    pub tool_choice: Value,
    /// Tools in this API's form.
    pub tools: Vec<Value>,
    pub metadata: Map<String, Value>,
    pub user: Option<String>,
    pub safety_identifier: Option<String>,
    pub prompt_cache_key: Option<String>,
    /// Format of the answer's text, which stands in `text`.
    #[serde(skip)]
    pub format: Value,
}

/// An answer, but for its output.
pub(super) struct Answer {
    app: Arc<App>,
    id: String,
    model: AskedModel,
    created_at: u64,
    settings: Settings,
    /// Memory of the settings, which live as long as the answer.
    _memory: Vec<Reservation>,
}

impl Settings {
    /// Approximate bytes that the settings take.
    pub(super) fn bytes(&self) -> usize {
        let tools: usize = self.tools.iter().map(json_bytes).sum();
        let metadata = self.metadata.iter();
        let metadata: usize = metadata
            .map(|(key, value)| key.len() + json_bytes(value))
            .sum();
        let texts = [
            &self.instructions,
            &self.user,
            &self.safety_identifier,
            &self.prompt_cache_key,
        ];
        let texts: usize = texts.into_iter().flatten().map(String::len).sum();
        tools + metadata + texts + json_bytes(&self.tool_choice) + json_bytes(&self.format)
    }
}

/// State of an answer.
#[derive(Debug)]
pub(super) enum Outcome {
    /// More output comes.
    InProgress,
    /// The model ended the answer.
    Completed,
    /// A limit ended the answer.
    Incomplete,
    /// An error ended the answer.
    Failed(ApiError),
}

impl Outcome {
    /// Returns the state after an end.
    ///
    /// # Errors
    /// An abort is an error.
    pub(super) fn of(end: &End) -> ApiResult<Self> {
        match end.reason {
            FinishReason::Stop => Ok(Self::Completed),
            FinishReason::Length => Ok(Self::Incomplete),
            FinishReason::Abort => Err(ApiError::aborted()),
        }
    }

    /// Returns OpenAI's name of the state.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
            Self::Failed(_) => "failed",
        }
    }
}

/// The response object.
#[derive(Serialize)]
pub(super) struct Response<'a> {
    id: &'a str,
    object: &'static str,
    created_at: u64,
    completed_at: Option<u64>,
    status: &'static str,
    background: bool,
    error: Option<Failure>,
    incomplete_details: Option<Details>,
    model: &'a str,
    output: &'a [Item],
    previous_response_id: Option<()>,
    service_tier: &'static str,
    store: bool,
    text: Text<'a>,
    top_logprobs: u32,
    truncation: &'static str,
    usage: Option<Usage>,
    #[serde(flatten)]
    settings: &'a Settings,
}

#[derive(Serialize)]
struct Failure {
    code: &'static str,
    message: String,
}

#[derive(Serialize)]
struct Details {
    reason: &'static str,
}

#[derive(Serialize)]
struct Text<'a> {
    format: &'a Value,
    verbosity: &'static str,
}

#[derive(Serialize)]
struct Usage {
    input_tokens: u64,
    input_tokens_details: InputDetails,
    output_tokens: u64,
    output_tokens_details: OutputDetails,
    total_tokens: u64,
}

#[derive(Serialize)]
struct InputDetails {
    cached_tokens: u64,
    cache_write_tokens: u64,
}

#[derive(Serialize)]
struct OutputDetails {
    reasoning_tokens: u64,
}

impl From<Totals> for Usage {
    fn from(totals: Totals) -> Self {
        Self {
            input_tokens: totals.prompt_tokens,
            input_tokens_details: InputDetails {
                cached_tokens: totals.cached_tokens,
                cache_write_tokens: 0,
            },
            output_tokens: totals.completion_tokens,
            output_tokens_details: OutputDetails {
                reasoning_tokens: totals.reasoning_tokens.unwrap_or(0),
            },
            total_tokens: totals.prompt_tokens + totals.completion_tokens,
        }
    }
}

impl Answer {
    /// Makes an answer that has no output yet. `memory` is that of its settings.
    pub(super) fn new(
        app: Arc<App>,
        (id, model): (String, AskedModel),
        settings: Settings,
        memory: Vec<Reservation>,
    ) -> Self {
        Self {
            app,
            id,
            model,
            created_at: now(),
            settings,
            _memory: memory,
        }
    }

    /// Returns the object with this output; `usage` is known once all of it is.
    pub(super) fn response<'a>(
        &'a self,
        outcome: Outcome,
        output: &'a [Item],
        usage: Option<Totals>,
    ) -> Response<'a> {
        let status = outcome.name();
        let incomplete = matches!(outcome, Outcome::Incomplete);
        let completed = matches!(outcome, Outcome::Completed);
        Response {
            id: &self.id,
            object: "response",
            created_at: self.created_at,
            completed_at: completed.then(now),
            status,
            background: false,
            error: match outcome {
                Outcome::Failed(error) => Some(failure(error)),
                _ => None,
            },
            incomplete_details: incomplete.then_some(Details {
                reason: "max_output_tokens",
            }),
            model: self.model.name(&self.app),
            output,
            previous_response_id: None,
            service_tier: "default",
            store: false,
            text: Text {
                format: &self.settings.format,
                verbosity: "medium",
            },
            top_logprobs: 0,
            truncation: "disabled",
            usage: usage.map(Usage::from),
            settings: &self.settings,
        }
    }
}

/// Returns the error in the object, whose codes are few.
fn failure(error: ApiError) -> Failure {
    const RATE_LIMIT: &str = "rate_limit_exceeded";
    Failure {
        code: match error.code {
            Some(RATE_LIMIT) => RATE_LIMIT,
            _ => "server_error",
        },
        message: error.message,
    }
}
