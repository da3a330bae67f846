//! From a native request to one draft per prompt.

use std::borrow::Cow;

use super::types::{GenerateRequest, SamplingFields};
use crate::{
    engine::Engine,
    error::{ApiError, ApiResult},
    http::{
        json::{Object, OneOrMany, Prompt},
        middleware::valid_id,
    },
    submission::{Draft, Fields, Input, LogprobDraft, MaxTokens, SamplingDraft, count},
};

/// SGLang's default of `max_new_tokens`.
const MAX_NEW_TOKENS: u32 = 128;

/// The drafts of a request and how to answer.
pub(super) struct Batch {
    pub drafts: Vec<Draft>,
    /// A list came, so a list goes back.
    pub is_list: bool,
    /// Log-probabilities come with their token's text.
    pub text_in_logprobs: bool,
}

/// Takes a request apart.
pub(super) fn drafts(
    engine: &Engine,
    mut request: GenerateRequest,
    request_id: &str,
) -> ApiResult<Batch> {
    let (inputs, is_list, field) = inputs(&mut request)?;
    let len = inputs.len();
    count(field, len, engine.config.server.limits.request.prompts)?;
    let rids = rids(request.rid.take(), len, request_id)?;
    let params = spread(
        "sampling_params",
        request.sampling_params.take(),
        len,
        Object::default(),
    )?;
    let wanted = spread("return_logprob", request.return_logprob.take(), len, false)?;
    let starts = spread(
        "logprob_start_len",
        request.logprob_start_len.take(),
        len,
        -1,
    )?;
    let tops = spread("top_logprobs_num", request.top_logprobs_num.take(), len, 0)?;
    let speculative = spread(
        "speculative",
        request.speculative.take(),
        len,
        Object::default(),
    )?;
    let mut drafts = Vec::with_capacity(len);
    for ((((((input, rid), Object(params)), wanted), start), top), Object(speculative)) in inputs
        .into_iter()
        .zip(rids)
        .zip(params)
        .zip(wanted)
        .zip(starts)
        .zip(tops)
        .zip(speculative)
    {
        let mut draft = Draft::new(fields(field), rid, vec![input]);
        sampling(params, &mut draft)?;
        draft.priority = request.priority;
        draft.speculative = speculative.draft();
        draft.logprobs = logprobs(wanted, start, top)?;
        drafts.push(draft);
    }
    let choices: i64 = drafts
        .iter()
        .map(|draft| draft.n.max(0))
        .fold(0, i64::saturating_add);
    let most = engine.config.server.limits.request.choices;
    count("n", usize::try_from(choices).unwrap_or(usize::MAX), most)?;
    Ok(Batch {
        drafts,
        is_list,
        text_in_logprobs: request.return_text_in_logprobs.unwrap_or(false),
    })
}

fn fields(input: &'static str) -> Fields {
    Fields {
        input,
        noun: "prompt",
        max_tokens: "sampling_params.max_new_tokens",
        prefix: "sampling_params.",
    }
}

fn inputs(request: &mut GenerateRequest) -> ApiResult<(Vec<Input>, bool, &'static str)> {
    match (request.text.take(), request.input_ids.take()) {
        (Some(text), None) => {
            let is_list = matches!(text, OneOrMany::Many(_));
            let texts = text.into_vec().into_iter().map(|text| Input::Text {
                text,
                add_special_tokens: true,
            });
            not_empty(texts.collect(), is_list, "text")
        }
        (None, Some(Prompt::Tokens(lists))) if lists.len() == 1 => {
            // One list of tokens is one prompt; SGLang answers a list of one
            // list with a list, which cannot be told apart after parsing.
            not_empty(
                lists.into_iter().map(Input::Ids).collect(),
                false,
                "input_ids",
            )
        }
        (None, Some(Prompt::Tokens(lists))) => not_empty(
            lists.into_iter().map(Input::Ids).collect(),
            true,
            "input_ids",
        ),
        (None, Some(Prompt::Texts(_))) => Err(ApiError::invalid(
            "input_ids",
            "Invalid value for 'input_ids': expected token ids; texts go into 'text'.",
        )),
        (Some(_), Some(_)) => Err(ApiError::invalid(
            "input_ids",
            "Either 'text' or 'input_ids' must be given, not both.",
        )),
        (None, None) => Err(ApiError {
            code: Some("missing_required_parameter"),
            ..ApiError::invalid("text", "Either 'text' or 'input_ids' must be given.")
        }),
    }
}

fn not_empty(
    inputs: Vec<Input>,
    is_list: bool,
    field: &'static str,
) -> ApiResult<(Vec<Input>, bool, &'static str)> {
    if inputs.is_empty() {
        return Err(ApiError::invalid(
            field,
            format!("Invalid '{field}': it must not be empty."),
        ));
    }
    Ok((inputs, is_list, field))
}

/// One value for each of `len` prompts.
fn spread<T: Clone>(
    field: &str,
    values: Option<OneOrMany<T>>,
    len: usize,
    default: T,
) -> ApiResult<Vec<T>> {
    match values {
        None => Ok(vec![default; len]),
        Some(OneOrMany::One(value)) => Ok(vec![value; len]),
        Some(OneOrMany::Many(values)) if values.len() == len => Ok(values),
        Some(OneOrMany::Many(values)) => Err(ApiError::invalid(
            field,
            format!(
                "Invalid '{field}': {} values for {len} prompts; give one value or one for each.",
                values.len()
            ),
        )),
    }
}

fn rids(rid: Option<OneOrMany<String>>, len: usize, request_id: &str) -> ApiResult<Vec<String>> {
    let drawn = |at: usize| match len {
        1 => request_id.to_owned(),
        _ => format!("{request_id}-{at}"),
    };
    let rids = match rid {
        None => (0..len).map(drawn).collect(),
        Some(OneOrMany::One(rid)) if len > 1 => (0..len).map(|at| format!("{rid}-{at}")).collect(),
        Some(rids) => spread("rid", Some(rids), len, String::new())?,
    };
    if let Some(wrong) = rids.iter().find(|rid| !valid_id(rid)) {
        return Err(ApiError::invalid(
            "rid",
            format!(
                "Invalid 'rid' {wrong:?}: expected 1 to 128 letters, digits and characters of \
                 \"-_.:/\"."
            ),
        ));
    }
    Ok(rids)
}

fn sampling(params: SamplingFields, draft: &mut Draft) -> ApiResult<()> {
    draft.n = params.n.unwrap_or(1);
    draft.max_tokens = match params.max_new_tokens {
        Some(tokens) => MaxTokens::Exact(tokens),
        None => MaxTokens::Default(MAX_NEW_TOKENS),
    };
    draft.stops = params.stop.map(OneOrMany::into_vec).unwrap_or_default();
    draft.include_stop = params.no_stop_trim.unwrap_or(false);
    draft.skip_special_tokens = params.skip_special_tokens.unwrap_or(true);
    draft.sampling = SamplingDraft {
        temperature: params.temperature,
        top_p: params.top_p,
        top_k: params.top_k,
        min_p: params.min_p,
        presence_penalty: params.presence_penalty,
        frequency_penalty: params.frequency_penalty,
        repetition_penalty: params.repetition_penalty,
        logit_bias: params.logit_bias.unwrap_or_default().0,
        seed: params.sampling_seed.or(params.seed).map(|seed| seed.0),
        min_tokens: params.min_new_tokens,
        stop_token_ids: params.stop_token_ids.unwrap_or_default(),
        ignore_eos: params.ignore_eos.unwrap_or(false),
        min_tokens_field: "min_new_tokens",
    };
    Ok(())
}

/// `logprob_start_len` of -1 means: output tokens only.
fn logprobs(wanted: bool, start: i64, top: i64) -> ApiResult<LogprobDraft> {
    let prompt_start = match start {
        -1 => None,
        start => Some(crate::submission::non_negative("logprob_start_len", start)?),
    };
    Ok(LogprobDraft {
        output: wanted,
        top: if wanted { top } else { 0 },
        top_field: Cow::Borrowed("top_logprobs_num"),
        prompt_start: prompt_start.filter(|_| wanted),
    })
}
