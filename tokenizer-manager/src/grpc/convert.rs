//! Conversion of a gRPC request to a spec. A field that is absent has no value; zero is
//! a value.

use std::borrow::Cow;

use lockstep_proto::pb::lockstep::{
    Chat, GenerateRequest, LogprobParams, SamplingParams,
    generate_request::{self, Constraint},
};
use lockstep_types::constraint::ConstraintKind;
use serde_json::json;

use crate::{
    app::App,
    error::{ApiError, ApiResult},
    request_id::{check_id, fresh_id},
    submission::{
        ConstraintSpec, FieldNames, GenerateSpec, Input, LogprobSpec, MaxTokens, SamplingSpec,
        SpeculativeSpec, adapter, check_messages, count, fits,
    },
    text::Conversation,
};

/// Checks the fields that only gRPC has, renders a chat, and returns the spec.
pub(super) async fn spec(app: &App, request: GenerateRequest) -> ApiResult<GenerateSpec> {
    let id = match request.request_id {
        None => fresh_id(),
        Some(id) => {
            check_id("request_id", &id)?;
            id
        }
    };
    let (field, input) = match request.input {
        None => {
            return Err(ApiError::invalid(
                "input",
                "One of 'text', 'tokens' and 'chat' must be given.",
            ));
        }
        Some(generate_request::Input::Text(text)) => (
            "text",
            Input::Text {
                text,
                add_special_tokens: true,
            },
        ),
        Some(generate_request::Input::Tokens(tokens)) => ("tokens", Input::Ids(tokens.ids)),
        Some(generate_request::Input::Chat(chat)) => {
            ("chat", render(app, &names("chat"), chat).await?)
        }
    };
    let fields = names(field);
    let mut spec = GenerateSpec::new(fields, id, vec![input]);
    spec.n = request.n.unwrap_or(1).into();
    spec.max_tokens = match request.max_new_tokens {
        Some(tokens) => MaxTokens::Exact(tokens.into()),
        None => MaxTokens::Rest,
    };
    spec.stops = request.stop;
    spec.skip_special_tokens = request.skip_special_tokens.unwrap_or(true);
    spec.priority = request.priority;
    spec.timeout_ms = request.timeout_ms;
    spec.data_parallel_rank = request.data_parallel_rank.map(Into::into);
    spec.cache_salt = request.cache_salt;
    if let Some(name) = request.adapter {
        spec.adapter = adapter(&app.config, "adapter", name)?;
    }
    let speculative = request.speculative.unwrap_or_default();
    spec.speculative = SpeculativeSpec {
        enabled: speculative.enabled,
        max_steps: speculative.max_steps.map(Into::into),
    };
    spec.sampling = sampling(request.sampling.unwrap_or_default());
    spec.constraint = request.constraint.map(constraint).transpose()?;
    spec.logprobs = logprobs(request.logprobs.unwrap_or_default());
    Ok(spec)
}

fn names(input: &'static str) -> FieldNames {
    FieldNames {
        input,
        noun: "prompt",
        max_tokens: "max_new_tokens",
        prefix: "",
    }
}

async fn render(app: &App, fields: &FieldNames, chat: Chat) -> ApiResult<Input> {
    let limit = app.config.server.limits.request.messages;
    count("chat.messages", chat.messages.len(), limit)?;
    let messages = chat.messages.into_iter();
    let messages = messages
        .map(|message| json!({"role": message.role, "content": message.content}))
        .collect::<Vec<_>>();
    check_messages(&messages)?;
    let conversation = Conversation {
        messages,
        add_generation_prompt: true,
        ..Conversation::default()
    };
    fits(&app.config, &app.text.tokenizer, fields, &conversation)?;
    let text = app.text.render(conversation).await?;
    Ok(Input::Text {
        text,
        add_special_tokens: false,
    })
}

fn sampling(wire: SamplingParams) -> SamplingSpec {
    let mut logit_bias: Vec<(u32, f64)> = wire
        .logit_bias
        .into_iter()
        .map(|(id, bias)| (id, bias.into()))
        .collect();
    logit_bias.sort_by_key(|(id, _)| *id);
    SamplingSpec {
        temperature: wire.temperature.map(decimal),
        top_p: wire.top_p.map(decimal),
        top_k: wire.top_k.map(Into::into),
        min_p: wire.min_p.map(decimal),
        presence_penalty: wire.presence_penalty.map(decimal),
        frequency_penalty: wire.frequency_penalty.map(decimal),
        repetition_penalty: wire.repetition_penalty.map(decimal),
        logit_bias,
        seed: wire.seed,
        min_tokens: wire.min_new_tokens.map(Into::into),
        stop_token_ids: wire.stop_token_ids,
        ignore_eos: wire.ignore_eos.unwrap_or(false),
        min_tokens_field: "min_new_tokens",
    }
}

fn constraint(wire: Constraint) -> ApiResult<ConstraintSpec> {
    Ok(match wire {
        Constraint::JsonSchema(text) => {
            ConstraintSpec::new("json_schema", ConstraintKind::JsonSchema, text)
        }
        Constraint::Regex(text) => ConstraintSpec::new("regex", ConstraintKind::Regex, text),
        Constraint::Choice(list) => {
            let list = json!(list.texts).to_string();
            ConstraintSpec::new("choice", ConstraintKind::Choice, list)
        }
        Constraint::Grammar(text) => ConstraintSpec::grammar("grammar", &text)?,
        Constraint::StructuralTag(text) => ConstraintSpec::structural_tag("structural_tag", text),
    })
}

/// Returns the shortest decimal of an `f32`, so that messages show 0.1 as 0.1.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

fn logprobs(wire: LogprobParams) -> LogprobSpec {
    LogprobSpec {
        output: wire.output.unwrap_or(false),
        top: wire.top.unwrap_or(0).into(),
        top_field: Cow::Borrowed("logprobs.top"),
        prompt_start: wire.prompt_start,
    }
}
