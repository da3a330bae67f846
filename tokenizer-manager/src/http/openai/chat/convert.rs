//! Conversion of a chat request to a spec.

mod reasoning;
mod tools;
mod unsupported;

use std::borrow::Cow;

use super::types::ChatRequest;
use crate::{
    app::App,
    error::{ApiError, ApiResult},
    http::conversation::prompt,
    submission::{
        FieldNames, GenerateSpec, LogprobSpec, MaxTokens, check_messages, count, integer,
    },
    text::Conversation,
};

/// OpenAI's limit of `top_logprobs`.
const MOST_TOP_LOGPROBS: i64 = 20;

/// Checks the fields that only the chat API has, renders the messages, and returns the
/// spec, and whether the answer shows the reasoning.
pub(super) async fn spec(
    app: &App,
    request: &mut ChatRequest,
    trace_id: String,
) -> ApiResult<(GenerateSpec, bool)> {
    unsupported::check(request)?;
    count(
        "messages",
        request.messages.len(),
        app.config.server.limits.request.messages,
    )?;
    check_messages(&request.messages)?;
    let calls = tools::calls(app, request)?;
    let reasoning = reasoning::format(app, request)?;
    let (max_tokens, max_tokens_field) = max_tokens(request)?;
    let logprobs = logprobs(request)?;
    let mut spec = GenerateSpec::new(
        FieldNames {
            input: "messages",
            noun: "messages",
            max_tokens: max_tokens_field,
            prefix: "",
        },
        trace_id,
        Vec::new(),
    );
    request.common(&mut spec)?;
    spec.max_tokens = max_tokens;
    spec.logprobs = logprobs;
    spec.thinking_budget = reasoning::budget(request)?;
    let conversation = conversation(request)?;
    prompt(app, &mut spec, conversation, reasoning, calls).await?;
    reasoning::check_off(request, &spec)?;
    Ok((spec, reasoning::is_shown(request)?))
}

fn max_tokens(request: &ChatRequest) -> ApiResult<(MaxTokens, &'static str)> {
    match (request.max_completion_tokens, request.max_tokens) {
        (Some(new), Some(old)) if new != old => Err(ApiError::invalid(
            "max_tokens",
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
        )),
        (Some(tokens), _) => Ok((MaxTokens::Exact(tokens), "max_completion_tokens")),
        (None, Some(tokens)) => Ok((MaxTokens::Exact(tokens), "max_tokens")),
        (None, None) => Ok((MaxTokens::Rest, "max_completion_tokens")),
    }
}

fn logprobs(request: &ChatRequest) -> ApiResult<LogprobSpec> {
    let output = request.logprobs.unwrap_or(false);
    let top = integer(
        "top_logprobs",
        request.top_logprobs.unwrap_or(0),
        0,
        MOST_TOP_LOGPROBS,
    )?;
    if top > 0 && !output {
        return Err(ApiError::invalid(
            "top_logprobs",
            "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.",
        ));
    }
    Ok(LogprobSpec {
        output,
        top,
        top_field: Cow::Borrowed("top_logprobs"),
        prompt_start: None,
    })
}

/// Takes the messages out of the request.
fn conversation(request: &mut ChatRequest) -> ApiResult<Conversation> {
    let kwargs = reasoning::kwargs(request)?;
    let messages = std::mem::take(&mut request.messages);
    let continue_final_message = request.continue_final_message.unwrap_or(false);
    Ok(Conversation {
        messages,
        tools: request.tools.take().filter(|tools| !tools.is_empty()),
        add_generation_prompt: request
            .add_generation_prompt
            .unwrap_or(!continue_final_message),
        continue_final_message,
        kwargs,
    })
}
