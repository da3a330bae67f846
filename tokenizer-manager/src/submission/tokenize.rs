//! Tokenization of prompts. Long prompts run outside the async reactor.

use std::sync::Arc;

use lockstep_text::EncodeError;
use lockstep_types::{EngineConfig, sampling::token_in_vocabulary};

use super::{FieldNames, Input, context::prompt_too_long, sampling::vocabulary};
use crate::{
    error::{ApiError, ApiResult},
    text::Text,
};

/// Returns the tokens of each prompt, in order.
pub(super) async fn tokenize(
    config: &EngineConfig,
    text: &Text,
    fields: &FieldNames,
    inputs: Vec<Input>,
) -> ApiResult<Vec<Arc<[u32]>>> {
    let mut prompts = Vec::with_capacity(inputs.len());
    for input in inputs {
        prompts.push(match input {
            Input::Ids(ids) => in_vocabulary(config, fields, ids)?.into(),
            Input::Text {
                text: prompt,
                add_special_tokens: special,
            } => encode(config, text, fields, prompt, special).await?.into(),
        });
    }
    Ok(prompts)
}

fn in_vocabulary(config: &EngineConfig, fields: &FieldNames, ids: Vec<u32>) -> ApiResult<Vec<u32>> {
    for id in &ids {
        token_in_vocabulary(fields.input, *id, vocabulary(config))?;
    }
    Ok(ids)
}

async fn encode(
    config: &EngineConfig,
    text: &Text,
    fields: &FieldNames,
    prompt: String,
    special: bool,
) -> ApiResult<Vec<u32>> {
    let context = config.server.context_length;
    let tokenizer = text.tokenizer.clone();
    let bytes = prompt.len();
    let work = move || tokenizer.encode_bounded(&prompt, special, context);
    let encoded = text.pool.run(bytes, work).await?;
    encoded.map_err(|error| match error {
        EncodeError::TooLong {
            at_least,
            limit,
            exact,
        } => {
            let reserved = config.speculation.max_speculative_num_draft_tokens;
            if exact {
                prompt_too_long(fields, at_least, limit, reserved)
            } else {
                prompt_too_long(fields, format!("at least {at_least}"), limit, reserved)
            }
        }
        failed @ EncodeError::Failed { .. } => ApiError::invalid(fields.input, failed.to_string()),
    })
}
