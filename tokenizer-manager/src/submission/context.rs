//! What fits the context, with the tokens that speculation keeps reserved.

use std::fmt::Display;

use super::{Draft, Fields, MaxTokens, non_negative};
use crate::{
    engine::Engine,
    error::{ApiError, ApiResult},
};

/// The output limit of a prompt of `prompt_len` tokens: `prompt + output +
/// reserved draft tokens <= context`.
pub(super) fn max_new_tokens(engine: &Engine, draft: &Draft, prompt_len: usize) -> ApiResult<u32> {
    let context = engine.config.server.context_length;
    let reserved = engine.config.speculation.max_speculative_num_draft_tokens;
    let fields = &draft.fields;
    if prompt_len == 0 {
        return Err(ApiError::invalid(
            fields.input,
            format!("Invalid '{}': it has no tokens.", fields.input),
        ));
    }
    let wanted = match draft.max_tokens {
        MaxTokens::Exact(tokens) => Some(non_negative(fields.max_tokens, tokens)? as usize),
        MaxTokens::Default(_) | MaxTokens::Rest => None,
    };
    if wanted == Some(0) {
        return scoring_only(draft, prompt_len, context);
    }
    let left = context.saturating_sub(prompt_len + reserved);
    if left == 0 {
        return Err(prompt_too_long(fields, prompt_len, context, reserved));
    }
    let tokens = match (wanted, draft.max_tokens) {
        (Some(wanted), _) if wanted > left => {
            return Err(request_too_long(
                fields, prompt_len, wanted, context, reserved,
            ));
        }
        (Some(wanted), _) => wanted,
        (None, MaxTokens::Default(default)) => left.min(default as usize),
        (None, _) => left,
    };
    let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
    minimum_within(draft, tokens)?;
    Ok(tokens)
}

/// No output: only a prompt whose probabilities are asked for makes sense.
fn scoring_only(draft: &Draft, prompt_len: usize, context: usize) -> ApiResult<u32> {
    let fields = &draft.fields;
    if draft.logprobs.prompt_start.is_none() {
        return Err(ApiError {
            code: Some("integer_below_min_value"),
            ..ApiError::invalid(
                fields.max_tokens,
                format!(
                    "Invalid '{}': integer below minimum value. Expected a value >= 1, but got 0 \
                     instead.",
                    fields.max_tokens
                ),
            )
        });
    }
    if prompt_len > context {
        return Err(prompt_too_long(fields, prompt_len, context, 0));
    }
    minimum_within(draft, 0)?;
    Ok(0)
}

fn minimum_within(draft: &Draft, max_new_tokens: u32) -> ApiResult<()> {
    let field = draft.sampling.min_tokens_field;
    let minimum = draft.sampling.min_tokens.unwrap_or(0);
    if minimum > i64::from(max_new_tokens) {
        return Err(ApiError::invalid(
            draft.fields.name(field),
            format!(
                "Invalid '{field}': {minimum} is more than the {max_new_tokens} tokens that the \
                 output may have."
            ),
        ));
    }
    Ok(())
}

/// The error for a prompt that leaves no room for a single token. `prompt_len`
/// is its tokens, or `at least` so many where they were not counted.
pub(super) fn prompt_too_long(
    fields: &Fields,
    prompt_len: impl Display,
    context: usize,
    reserved: usize,
) -> ApiError {
    let noun = fields.noun;
    too_long(
        fields,
        format!(
            "This model's maximum context length is {context} tokens. However, your {noun} resulted \
             in {prompt_len} tokens{}. Please reduce the length of the {noun}.",
            reserve(
                reserved,
                " (",
                " more are reserved for speculative decoding)"
            )
        ),
    )
}

fn request_too_long(
    fields: &Fields,
    prompt_len: usize,
    wanted: usize,
    context: usize,
    reserved: usize,
) -> ApiError {
    let noun = fields.noun;
    too_long(
        fields,
        format!(
            "This model's maximum context length is {context} tokens. However, you requested {} \
             tokens ({prompt_len} in the {noun}, {wanted} in the completion{}). Please reduce the \
             length of the {noun} or completion.",
            prompt_len + wanted + reserved,
            reserve(reserved, ", ", " reserved for speculative decoding")
        ),
    )
}

fn reserve(tokens: usize, before: &str, after: &str) -> String {
    if tokens == 0 {
        String::new()
    } else {
        format!("{before}{tokens}{after}")
    }
}

fn too_long(fields: &Fields, message: String) -> ApiError {
    ApiError {
        code: Some("context_length_exceeded"),
        ..ApiError::invalid(fields.input, message)
    }
}
