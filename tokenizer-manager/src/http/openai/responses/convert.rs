//! Conversion of a Responses request to a spec, and to the settings that its answer repeats.

use lockstep_types::sampling::SamplingParams;
use serde_json::{Map, Value, json};

use super::{input, object::Settings, tools, types::ResponsesRequest};
use crate::{
    app::App,
    error::{ApiError, ApiResult},
    http::{
        constraint,
        conversation::prompt,
        thinking::{self, Asked, Wish, agreed},
    },
    submission::{FieldNames, GenerateSpec, MaxTokens, count},
    text::Conversation,
};

/// Parts of an answer that a client may ask to include, and that need nothing here: reasoning is
/// not encrypted.
const INCLUDED: &str = "reasoning.encrypted_content";

/// OpenAI's limits of `metadata`: entries, characters of a key and of a value.
const MOST_METADATA: usize = 16;
const MOST_KEY: usize = 64;
const MOST_VALUE: usize = 512;

/// Summaries of reasoning that clients may ask for. None is made: reasoning is shown whole.
const SUMMARIES: [&str; 3] = ["auto", "concise", "detailed"];

/// Checks the fields that only the Responses API has, renders the input, and returns the spec
/// and the settings.
pub(super) async fn spec(
    app: &App,
    request: &mut ResponsesRequest,
    trace_id: String,
) -> ApiResult<(GenerateSpec, Settings)> {
    check(request)?;
    check_echo(request)?;
    let tools = tools::in_chat_form(&request.tools.take().unwrap_or_default())?;
    let mut settings = settings(request, &tools);
    let calls = tools::calls(app, &tools, request)?;
    let wish = wish(request)?;
    let kwargs = kwargs(request, wish)?;
    let given = std::mem::take(&mut request.input);
    let messages = input::messages(request.instructions.take(), given)?;
    count(
        "input",
        messages.len(),
        app.config.server.limits.request.messages,
    )?;
    let fields = FieldNames {
        input: "input",
        noun: "messages",
        max_tokens: "max_output_tokens",
        prefix: "",
    };
    let mut spec = GenerateSpec::new(fields, trace_id, Vec::new());
    if let Some(tokens) = request.max_output_tokens {
        spec.max_tokens = MaxTokens::Exact(tokens);
    }
    spec.priority = request.priority;
    spec.data_parallel_rank = request.data_parallel_rank;
    spec.cache_salt = request.cache_salt.take();
    spec.speculative = request.speculative.unwrap_or_default().0.spec();
    spec.sampling = request.sampling();
    let format = request.text.as_mut().and_then(|text| text.remove("format"));
    spec.constraint = constraint::format(format.clone(), "text.format")?;
    settings.format = format.unwrap_or_else(|| json!({"type": "text"}));
    let conversation = Conversation {
        messages,
        tools: Some(tools).filter(|tools| !tools.is_empty()),
        add_generation_prompt: true,
        continue_final_message: false,
        kwargs,
    };
    let reasoning = app.text.answers.reasoning;
    let asked = Asked::read(request.reasoning.as_ref())?;
    spec.thinking_budget = thinking::budget_fields!(request).budget(asked.budget)?;
    prompt(app, &mut spec, conversation, reasoning, calls).await?;
    if let Some(wish) = wish.filter(|wish| !wish.on) {
        thinking::check_off(&spec, wish.param)?;
    }
    Ok((spec, settings))
}

/// Refuses what this version cannot do.
fn check(request: &ResponsesRequest) -> ApiResult<()> {
    if let Some(text) = &request.text {
        check_verbosity(text.get("verbosity"))?;
    }
    match request.truncation.as_deref() {
        None | Some("disabled") => {}
        Some(_) => {
            return Err(ApiError::unsupported(
                "truncation",
                "A 'truncation' other than \"disabled\" is not supported by this version; send an \
                 input that fits and leave it out.",
            ));
        }
    }
    if Asked::read(request.reasoning.as_ref())?.exclude {
        return Err(ApiError::unsupported(
            "reasoning.exclude",
            "'reasoning.exclude' is not supported by this version; use it with \
             /v1/chat/completions.",
        ));
    }
    let mut included = request.include.iter().flatten();
    match included.find(|part| *part != INCLUDED) {
        None => Ok(()),
        Some(part) => Err(ApiError::unsupported(
            "include",
            format!("'{part}' in 'include' is not supported by this version; leave it out."),
        )),
    }
}

/// Checks fields that the answer repeats, with OpenAI's limits.
fn check_echo(request: &ResponsesRequest) -> ApiResult<()> {
    let metadata = request.metadata.iter().flatten();
    let fits = |(key, value): (&String, &Value)| {
        let value = value
            .as_str()
            .map_or(usize::MAX, |text| text.chars().count());
        key.chars().count() <= MOST_KEY && value <= MOST_VALUE
    };
    if metadata.clone().count() > MOST_METADATA || !metadata.clone().all(fits) {
        return Err(ApiError::invalid(
            "metadata",
            format!(
                "Invalid value for 'metadata': expected at most {MOST_METADATA} texts of at most \
                 {MOST_VALUE} characters, under keys of at most {MOST_KEY}."
            ),
        ));
    }
    for (field, value) in [
        ("user", &request.user),
        ("safety_identifier", &request.safety_identifier),
        ("prompt_cache_key", &request.prompt_cache_key),
    ] {
        if value
            .as_ref()
            .is_some_and(|value| value.chars().count() > MOST_VALUE)
        {
            let message =
                format!("Invalid value for '{field}': expected at most {MOST_VALUE} characters.");
            return Err(ApiError::invalid(field, message));
        }
    }
    match request
        .reasoning
        .as_ref()
        .and_then(|reasoning| reasoning.get("summary"))
    {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(kind)) if SUMMARIES.contains(&kind.as_str()) => Ok(()),
        Some(_) => Err(ApiError::invalid(
            "reasoning.summary",
            format!(
                "Invalid value for 'reasoning.summary': expected one of {}.",
                SUMMARIES.join(", ")
            ),
        )),
    }
}

fn check_verbosity(verbosity: Option<&Value>) -> ApiResult<()> {
    match verbosity {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(verbosity)) if verbosity == "medium" => Ok(()),
        Some(_) => Err(ApiError::unsupported(
            "text.verbosity",
            "A 'text.verbosity' other than \"medium\" is not supported by this version; leave it \
             out, and ask for it in a message.",
        )),
    }
}

/// Returns what turns reasoning on or off, under all names but the template's own.
fn wish(request: &ResponsesRequest) -> ApiResult<Option<Wish>> {
    let own = request.enable_thinking.map(|on| Wish {
        param: "enable_thinking",
        on,
    });
    let asked = Asked::read(request.reasoning.as_ref())?;
    agreed(own.into_iter().chain(asked.wishes()))
}

/// Takes the variables of the template out of the request. What turns reasoning off or on does so
/// unless the request sets the template's switch itself.
fn kwargs(
    request: &mut ResponsesRequest,
    wish: Option<Wish>,
) -> ApiResult<Option<Map<String, Value>>> {
    let kwargs = request.chat_template_kwargs.take();
    if wish.is_none() {
        return Ok(kwargs);
    }
    let mut kwargs = kwargs.unwrap_or_default();
    Asked::read(request.reasoning.as_ref())?.set(&mut kwargs, wish)?;
    Ok(Some(kwargs))
}

fn settings(request: &mut ResponsesRequest, tools: &[Value]) -> Settings {
    let default = SamplingParams::default();
    let of_reasoning = |name: &str| {
        let reasoning = request.reasoning.as_ref();
        reasoning.and_then(|reasoning| reasoning.get(name)).cloned()
    };
    Settings {
        instructions: request.instructions.clone(),
        max_output_tokens: request.max_output_tokens,
        max_tool_calls: request.max_tool_calls,
        parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
        reasoning: json!({"effort": of_reasoning("effort"), "summary": of_reasoning("summary")}),
        temperature: request.temperature.unwrap_or(default.temperature.into()),
        top_p: request.top_p.unwrap_or(default.top_p.into()),
        tool_choice: request.tool_choice.clone().unwrap_or("auto".into()),
        tools: tools.iter().map(tools::in_own_form).collect(),
        metadata: request.metadata.take().unwrap_or_default(),
        user: request.user.take(),
        safety_identifier: request.safety_identifier.take(),
        prompt_cache_key: request.prompt_cache_key.take(),
        format: Value::Null,
    }
}
