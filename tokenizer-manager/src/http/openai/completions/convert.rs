//! Conversion of a completions request to a spec.

use std::borrow::Cow;

use super::{shape::Shape, types::CompletionRequest};
use crate::{
    error::{ApiError, ApiResult},
    http::json::Prompt,
    submission::{FieldNames, GenerateSpec, Input, LogprobSpec, MaxTokens, integer},
};

/// OpenAI's default of `max_tokens`.
const MAX_TOKENS: u32 = 16;
/// OpenAI's limit of `logprobs`.
const MOST_LOGPROBS: i64 = 5;

const FIELDS: FieldNames = FieldNames {
    input: "prompt",
    noun: "prompt",
    max_tokens: "max_tokens",
    prefix: "",
};

/// Checks the fields that only the completions API has, and returns the spec.
pub(super) fn spec(
    request: &mut CompletionRequest,
    trace_id: String,
) -> ApiResult<(GenerateSpec, Shape)> {
    if request
        .suffix
        .as_ref()
        .is_some_and(|suffix| !suffix.is_empty())
    {
        return Err(ApiError::unsupported(
            "suffix",
            "Insertion ('suffix') is not supported by this version.",
        ));
    }
    let mut spec = GenerateSpec::new(FIELDS, trace_id, inputs(request)?);
    request.common(&mut spec)?;
    let shape = Shape {
        echo: request.echo.unwrap_or(false),
        logprobs: request.logprobs.is_some(),
        output: request.max_tokens != Some(0),
        skip_special_tokens: spec.skip_special_tokens,
    };
    let top = integer("logprobs", request.logprobs.unwrap_or(0), 0, MOST_LOGPROBS)?;
    spec.logprobs = LogprobSpec {
        output: shape.logprobs,
        top,
        top_field: Cow::Borrowed("logprobs"),
        // An echo alone needs no log-probabilities, but a request without output must
        // ask for some.
        prompt_start: (shape.echo && (shape.logprobs || !shape.output)).then_some(0),
    };
    spec.max_tokens = match request.max_tokens {
        Some(tokens) => MaxTokens::Exact(tokens),
        None => MaxTokens::Default(MAX_TOKENS),
    };
    Ok((spec, shape))
}

fn inputs(request: &mut CompletionRequest) -> ApiResult<Vec<Input>> {
    let special = request.add_special_tokens.unwrap_or(true);
    match request.prompt.take() {
        None => Err(ApiError {
            code: Some("missing_required_parameter"),
            ..ApiError::invalid("prompt", "Missing required parameter: 'prompt'.")
        }),
        Some(Prompt::Texts(texts)) => Ok(texts
            .into_iter()
            .map(|text| Input::Text {
                text,
                add_special_tokens: special,
            })
            .collect()),
        Some(Prompt::Tokens(lists)) => Ok(lists.into_iter().map(Input::Ids).collect()),
    }
}
