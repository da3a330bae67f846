//! Tokenization of prompts. Long prompts run outside the async reactor.

use std::sync::Arc;

use lockstep_text::EncodeError;
use lockstep_types::sampling::token_in_vocabulary;

use super::{FieldNames, Input, context::prompt_too_long, sampling::vocabulary};
use crate::{
    app::App,
    error::{ApiError, ApiResult},
};

/// Returns the tokens of each prompt, in order.
pub(super) async fn tokenize(
    app: &App,
    fields: &FieldNames,
    inputs: Vec<Input>,
) -> ApiResult<Vec<Arc<[u32]>>> {
    let mut prompts = Vec::with_capacity(inputs.len());
    for input in inputs {
        prompts.push(match input {
            Input::Ids(ids) => in_vocabulary(app, fields, ids)?.into(),
            Input::Text {
                text,
                add_special_tokens,
            } => encode(app, fields, text, add_special_tokens).await?.into(),
        });
    }
    Ok(prompts)
}

fn in_vocabulary(app: &App, fields: &FieldNames, ids: Vec<u32>) -> ApiResult<Vec<u32>> {
    for id in &ids {
        token_in_vocabulary(fields.input, *id, vocabulary(app))?;
    }
    Ok(ids)
}

async fn encode(
    app: &App,
    fields: &FieldNames,
    text: String,
    special: bool,
) -> ApiResult<Vec<u32>> {
    let context = app.config.server.context_length;
    let tokenizer = app.text.tokenizer.clone();
    let bytes = text.len();
    let work = move || tokenizer.encode_bounded(&text, special, context);
    let encoded = app.text.pool.run(bytes, work).await?;
    encoded.map_err(|error| match error {
        EncodeError::TooLong {
            at_least,
            limit,
            exact,
        } => {
            let reserved = app.config.speculation.max_speculative_num_draft_tokens;
            if exact {
                prompt_too_long(fields, at_least, limit, reserved)
            } else {
                prompt_too_long(fields, format!("at least {at_least}"), limit, reserved)
            }
        }
        failed @ EncodeError::Failed { .. } => ApiError::invalid(fields.input, failed.to_string()),
    })
}
