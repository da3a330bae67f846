//! Checks that prompt and output fit the context.

use std::fmt::Display;

use lockstep_text::Tokenizer;
use lockstep_types::EngineConfig;

use super::{FieldNames, GenerateSpec, MaxTokens, non_negative};
use crate::{
    error::{ApiError, ApiResult},
    text::Conversation,
};

/// Returns the limit of output tokens after a prompt of `prompt_len` tokens. Prompt,
/// output and the tokens reserved for drafts fit the context together.
pub(super) fn max_new_tokens(
    config: &EngineConfig,
    spec: &GenerateSpec,
    prompt_len: usize,
) -> ApiResult<u32> {
    let context = config.server.context_length;
    let reserved = config.speculation.max_speculative_num_draft_tokens;
    let fields = &spec.fields;
    if prompt_len == 0 {
        return Err(ApiError::invalid(
            fields.input,
            format!("Invalid '{}': it has no tokens.", fields.input),
        ));
    }
    let wanted = match spec.max_tokens {
        MaxTokens::Exact(tokens) => Some(non_negative(fields.max_tokens, tokens)? as usize),
        MaxTokens::Default(_) | MaxTokens::Rest => None,
    };
    if wanted == Some(0) {
        return scoring_only(spec, prompt_len, context);
    }
    let left = config.max_output_tokens(prompt_len);
    if left == 0 {
        return Err(prompt_too_long(fields, prompt_len, context, reserved));
    }
    let tokens = match (wanted, spec.max_tokens) {
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
    minimum_within(spec, tokens)?;
    Ok(tokens)
}

/// Refuses messages whose text has too many tokens at any rate, before a template makes
/// several copies of it. Text that a template leaves out, such as the thoughts in
/// earlier answers, counts here too. The check takes every token to be as long as the
/// longest, so it matters only with contexts of few tokens.
///
/// # Errors
/// 400, with the smallest number of tokens that the messages can have.
pub fn fits(
    config: &EngineConfig,
    tokenizer: &Tokenizer,
    fields: &FieldNames,
    chat: &Conversation,
) -> ApiResult<()> {
    let context = config.server.context_length;
    let least = tokenizer.min_tokens(chat.text_bytes());
    if least <= context {
        return Ok(());
    }
    let reserved = config.speculation.max_speculative_num_draft_tokens;
    let least = format!("at least {least}");
    Err(prompt_too_long(fields, least, context, reserved))
}

/// Checks a request with `max_tokens` 0, which is valid only if it asks for
/// log-probabilities of the prompt.
fn scoring_only(spec: &GenerateSpec, prompt_len: usize, context: usize) -> ApiResult<u32> {
    let fields = &spec.fields;
    if spec.logprobs.prompt_start.is_none() {
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
    minimum_within(spec, 0)?;
    Ok(0)
}

fn minimum_within(spec: &GenerateSpec, max_new_tokens: u32) -> ApiResult<()> {
    let field = spec.sampling.min_tokens_field;
    let minimum = spec.sampling.min_tokens.unwrap_or(0);
    if minimum > i64::from(max_new_tokens) {
        return Err(ApiError::invalid(
            spec.fields.name(field),
            format!(
                "Invalid '{field}': {minimum} is more than the {max_new_tokens} tokens that the \
                 output may have."
            ),
        ));
    }
    Ok(())
}

/// Returns the error for a prompt that leaves no room for a single token. `prompt_len`
/// is its number of tokens, or a text such as `at least 9000` if they were not counted.
pub(super) fn prompt_too_long(
    fields: &FieldNames,
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
    fields: &FieldNames,
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

fn too_long(fields: &FieldNames, message: String) -> ApiError {
    ApiError {
        code: Some("context_length_exceeded"),
        ..ApiError::invalid(fields.input, message)
    }
}
