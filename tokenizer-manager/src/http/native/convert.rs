//! Conversion of a native request to one [`GenerateSpec`] per prompt.

use std::borrow::Cow;

use super::types::{GenerateRequest, SamplingFields};
use crate::{
    app::App,
    error::{ApiError, ApiResult},
    http::{
        constraint::ConstraintFields,
        json::{Integer, Object, OneOrMany, Prompt},
    },
    request_id::check_id,
    submission::{
        FieldNames, GenerateSpec, Input, LogprobSpec, MaxTokens, adapter, check_lengths, count,
    },
};

/// SGLang's default of `max_new_tokens`.
const MAX_NEW_TOKENS: u32 = 128;

/// The prompts of a request, and the form of the answer.
pub(super) struct NativeSpecs {
    pub specs: Vec<GenerateSpec>,
    /// True if the request was a list. Then the answer is one too.
    pub is_list: bool,
    /// True if log-probabilities come with their token's text.
    pub text_in_logprobs: bool,
}

/// Returns one [`GenerateSpec`] per prompt of the request.
pub(super) fn specs(
    app: &App,
    mut request: GenerateRequest,
    request_id: &str,
) -> ApiResult<NativeSpecs> {
    let (inputs, is_list, field) = inputs(&mut request)?;
    let len = inputs.len();
    count(field, len, app.config.server.limits.request.prompts)?;
    let rids = rids(request.rid.take(), len, request_id)?;
    let with_input = |(input, rid)| GenerateSpec {
        priority: request.priority,
        data_parallel_rank: request.data_parallel_rank,
        ..GenerateSpec::new(fields(field), rid, vec![input])
    };
    let mut specs: Vec<_> = inputs.into_iter().zip(rids).map(with_input).collect();
    check_shared(app, &request, field)?;
    let params = request.sampling_params.take();
    let params = per_prompt("sampling_params", params, len, Object::default())?;
    for (spec, Object(params)) in specs.iter_mut().zip(params) {
        sampling(params, spec)?;
    }
    let wanted = per_prompt("return_logprob", request.return_logprob.take(), len, false)?;
    let starts = request.logprob_start_len.take();
    let starts = per_prompt("logprob_start_len", starts, len, Integer(-1))?;
    let tops = request.top_logprobs_num.take();
    let tops = per_prompt("top_logprobs_num", tops, len, Integer(0))?;
    let speculative = request.speculative.take();
    let speculative = per_prompt("speculative", speculative, len, Object::default())?;
    for (spec, Object(speculative)) in specs.iter_mut().zip(speculative) {
        spec.speculative = speculative.spec();
    }
    if let Some(salts) = request.cache_salt.take() {
        let salts = per_prompt("cache_salt", Some(salts), len, String::new())?;
        for (spec, salt) in specs.iter_mut().zip(salts) {
            spec.cache_salt = Some(salt);
        }
    }
    if let Some(names) = request.lora_path.take() {
        let names = per_prompt("lora_path", Some(names), len, String::new())?;
        for (spec, name) in specs.iter_mut().zip(names) {
            spec.adapter = adapter(&app.config, "lora_path", name)?;
        }
    }
    let logprob_fields = wanted.into_iter().zip(starts).zip(tops);
    for (spec, ((wanted, start), top)) in specs.iter_mut().zip(logprob_fields) {
        spec.logprobs = logprobs(wanted, start.0, top.0)?;
    }
    let choices: i64 = specs
        .iter()
        .map(|spec| spec.n.max(0))
        .fold(0, i64::saturating_add);
    let most = app.config.server.limits.request.all_choices();
    count("n", usize::try_from(choices).unwrap_or(usize::MAX), most)?;
    Ok(NativeSpecs {
        specs,
        is_list,
        text_in_logprobs: request.return_text_in_logprobs.unwrap_or(false),
    })
}

/// Checks what is given once for all prompts, before it is copied for each.
fn check_shared(app: &App, request: &GenerateRequest, field: &'static str) -> ApiResult<()> {
    let mut shared = GenerateSpec::new(fields(field), String::new(), Vec::new());
    if let Some(OneOrMany::One(Object(params))) = &request.sampling_params {
        sampling(params.clone(), &mut shared)?;
    }
    if let Some(OneOrMany::One(name)) = &request.lora_path {
        adapter(&app.config, "lora_path", name.clone())?;
    }
    if let Some(OneOrMany::One(salt)) = &request.cache_salt {
        shared.cache_salt = Some(salt.clone());
    }
    check_lengths(&app.config, &shared)
}

fn fields(input: &'static str) -> FieldNames {
    FieldNames {
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
            // One list of tokens is one prompt. SGLang answers a list that holds one
            // list with a list; after parsing the two forms cannot be told apart.
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

/// Returns a field's value for each of `len` prompts. The field has one value for all,
/// or a list.
fn per_prompt<T: Clone>(
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
    if let Some(OneOrMany::One(rid)) = &rid {
        check_id("rid", rid)?;
    }
    let rids = match rid {
        None => (0..len).map(drawn).collect(),
        Some(OneOrMany::One(rid)) if len > 1 => (0..len).map(|at| format!("{rid}-{at}")).collect(),
        Some(rids) => per_prompt("rid", Some(rids), len, String::new())?,
    };
    for rid in &rids {
        check_id("rid", rid)?;
    }
    Ok(rids)
}

fn sampling(mut params: SamplingFields, spec: &mut GenerateSpec) -> ApiResult<()> {
    spec.n = params.n.unwrap_or(1);
    spec.max_tokens = match params.max_new_tokens {
        Some(tokens) => MaxTokens::Exact(tokens),
        None => MaxTokens::Default(MAX_NEW_TOKENS),
    };
    spec.stops = params
        .stop
        .take()
        .map(OneOrMany::into_vec)
        .unwrap_or_default();
    spec.include_stop = params.no_stop_trim.unwrap_or(false);
    spec.skip_special_tokens = params.skip_special_tokens.unwrap_or(true);
    // SGLang's name of the seed takes precedence over OpenAI's.
    params.seed = params.sampling_seed.or(params.seed);
    let constraint = ConstraintFields {
        json_schema: params.json_schema.take(),
        regex: params.regex.take(),
        ebnf: params.ebnf.take(),
        structural_tag: params.structural_tag.take(),
        ..ConstraintFields::default()
    };
    spec.constraint = constraint.spec("sampling_params.")?;
    spec.sampling = params.sampling();
    Ok(())
}

/// Returns the log-probabilities to compute. `logprob_start_len` of -1 means: output
/// tokens only.
fn logprobs(wanted: bool, start: i64, top: i64) -> ApiResult<LogprobSpec> {
    let prompt_start = match start {
        -1 => None,
        start => Some(crate::submission::non_negative("logprob_start_len", start)?),
    };
    Ok(LogprobSpec {
        output: wanted,
        top: if wanted { top } else { 0 },
        top_field: Cow::Borrowed("top_logprobs_num"),
        prompt_start: prompt_start.filter(|_| wanted),
    })
}
