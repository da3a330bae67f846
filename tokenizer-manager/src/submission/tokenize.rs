//! Prompts to tokens, off the reactor where they are long.

use std::sync::Arc;

use lockstep_text::EncodeError;
use lockstep_types::sampling::token_in_vocabulary;

use super::{Draft, Fields, Input, context::prompt_too_long, sampling::vocabulary};
use crate::{
    engine::Engine,
    error::{ApiError, ApiResult},
};

/// The tokens of each prompt, in order.
pub(super) async fn tokenize(engine: &Engine, draft: &Draft) -> ApiResult<Vec<Arc<[u32]>>> {
    let mut prompts = Vec::with_capacity(draft.inputs.len());
    for input in &draft.inputs {
        prompts.push(match input {
            Input::Ids(ids) => in_vocabulary(engine, &draft.fields, ids)?.into(),
            Input::Text {
                text,
                add_special_tokens,
            } => encode(engine, &draft.fields, text, *add_special_tokens)
                .await?
                .into(),
        });
    }
    Ok(prompts)
}

fn in_vocabulary<'a>(engine: &Engine, fields: &Fields, ids: &'a [u32]) -> ApiResult<&'a [u32]> {
    for id in ids {
        token_in_vocabulary(fields.input, *id, vocabulary(engine))?;
    }
    Ok(ids)
}

async fn encode(
    engine: &Engine,
    fields: &Fields,
    text: &str,
    special: bool,
) -> ApiResult<Vec<u32>> {
    let context = engine.config.server.context_length;
    let tokenizer = engine.text.tokenizer.clone();
    // A text too long for its tokens to fit whatever they are is not tokenized.
    let counted = tokenizer.min_tokens(text.len()) <= context;
    let owned = text.to_owned();
    let encoded = engine
        .text
        .pool
        .run(text.len(), move || {
            tokenizer.encode_bounded(&owned, special, context)
        })
        .await?;
    encoded.map_err(|error| match error {
        EncodeError::TooLong { at_least, limit } => {
            let reserved = engine.config.speculation.max_speculative_num_draft_tokens;
            if counted {
                prompt_too_long(fields, at_least, limit, reserved)
            } else {
                prompt_too_long(fields, format!("at least {at_least}"), limit, reserved)
            }
        }
        failed @ EncodeError::Failed { .. } => ApiError::invalid(fields.input, failed.to_string()),
    })
}
