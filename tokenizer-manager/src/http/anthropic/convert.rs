//! Conversion of a Messages request to a spec.

mod blocks;
mod history;
mod thinking;
mod tools;

use super::types::MessagesRequest;
use crate::{
    app::App,
    error::{ApiError, ApiResult},
    http::{constraint, conversation::prompt, thinking::budget_fields, tools::CallPlan},
    submission::{FieldNames, GenerateSpec, MaxTokens, check_stops, count, integer},
    text::Conversation,
};

/// Form of an answer, as far as it depends on the request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// The request's limit of output tokens.
    pub max_tokens: u32,
    /// True if the text of the reasoning is shown.
    pub shows_thinking: bool,
}

/// A conversation, and what of its answer is told apart.
#[derive(Debug)]
pub(super) struct Chat {
    pub conversation: Conversation,
    calls: CallPlan,
    shows_thinking: bool,
}

/// Checks the fields that only the Messages API has, renders the messages, and returns the spec
/// and the form of the answer.
pub(super) async fn spec(
    app: &App,
    request: &mut MessagesRequest,
    trace_id: String,
) -> ApiResult<(GenerateSpec, Shape)> {
    let max_tokens = max_tokens(request)?;
    let stops = request.stop_sequences.take().unwrap_or_default();
    check_stops(&stops, "stop_sequences", &app.config.server.limits.request)?;
    let chat = chat(app, request)?;
    let fields = FieldNames {
        input: "messages",
        noun: "messages",
        max_tokens: "max_tokens",
        prefix: "",
    };
    let mut spec = GenerateSpec::new(fields, trace_id, Vec::new());
    // Clients ask for more than the context leaves: the stop reason tells the two apart.
    spec.max_tokens = MaxTokens::Default(max_tokens);
    spec.stops = stops;
    spec.priority = request.priority;
    spec.data_parallel_rank = request.data_parallel_rank;
    spec.cache_salt = request.cache_salt.take();
    spec.speculative = request.speculative.unwrap_or_default().0.spec();
    spec.sampling = request.sampling();
    let config = request.output_config.as_mut();
    let format = config.and_then(|config| config.remove("format"));
    spec.constraint = constraint::format(format, "output_config.format")?;
    let reasoning = app.text.answers.reasoning;
    spec.thinking_budget = budget_fields!(request).budget(thinking::budget(request))?;
    if reasoning.is_none() {
        // A model that never reasons keeps every budget. Clients send one to any model.
        spec.thinking_budget
            .take_if(|budget| budget.param == thinking::BUDGET);
    }
    prompt(app, &mut spec, chat.conversation, reasoning, chat.calls).await?;
    let shape = Shape {
        max_tokens,
        shows_thinking: chat.shows_thinking,
    };
    Ok((spec, shape))
}

/// Takes the conversation out of the request. It alone decides how many tokens the prompt has.
pub(super) fn chat(app: &App, request: &mut MessagesRequest) -> ApiResult<Chat> {
    let tools = tools::in_chat_form(request.tools.take().unwrap_or_default())?;
    let calls = tools::calls(app, &tools, request.tool_choice.as_ref())?;
    let (kwargs, shows_thinking) = thinking::kwargs(request)?;
    let given = std::mem::take(&mut request.messages);
    let (messages, continues) = history::messages(request.system.take(), given)?;
    count(
        "messages",
        messages.len(),
        app.config.server.limits.request.messages,
    )?;
    Ok(Chat {
        conversation: Conversation {
            messages,
            tools: Some(tools).filter(|tools| !tools.is_empty()),
            add_generation_prompt: !continues,
            continue_final_message: continues,
            kwargs,
        },
        calls,
        shows_thinking,
    })
}

/// Returns the limit of output tokens, which this API requires.
fn max_tokens(request: &MessagesRequest) -> ApiResult<u32> {
    let Some(tokens) = request.max_tokens else {
        return Err(ApiError {
            code: Some("missing_required_parameter"),
            ..ApiError::invalid("max_tokens", "Missing required parameter: 'max_tokens'.")
        });
    };
    let tokens = integer("max_tokens", tokens, 1, i64::from(i32::MAX))?;
    Ok(u32::try_from(tokens).unwrap_or(u32::MAX))
}
