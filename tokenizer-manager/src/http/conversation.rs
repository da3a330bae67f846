//! Prompts of conversations, for all APIs that have messages.

mod constraint;

use lockstep_text::{AnswerOptions, ReasoningFormat};
use serde_json::{Value, json};

use crate::{
    app::App,
    error::{ApiError, ApiResult},
    http::tools::{CallPlan, Held, hold},
    request_stats::RequestStats,
    submission::{FieldNames, GenerateSpec, Input, fits},
    text::Conversation,
};

/// Renders the conversation as the only prompt of `spec`, and sets the parts of the answer that
/// are told apart. Without `reasoning` it stays in the text.
///
/// # Errors
/// 400 for messages that do not suit the template or cannot fit the context.
pub(super) async fn prompt(
    app: &App,
    spec: &mut GenerateSpec,
    conversation: Conversation,
    reasoning: Option<&'static ReasoningFormat>,
    calls: CallPlan,
) -> ApiResult<()> {
    let tools = conversation.tools.as_deref().unwrap_or_default();
    let (calls, held) = hold(app, spec, tools, calls, reasoning.is_some()).await?;
    let continued = continued(&conversation);
    fits(
        &app.config,
        &app.text.tokenizer,
        &spec.fields,
        &conversation,
    )?;
    let text = render(app, &spec.fields, conversation).await?;
    let turn = |format: &ReasoningFormat| match &continued {
        Some(message) => format.continued(message),
        None => format.turn(&text),
    };
    if held == Held::Asked && reasoning.is_none() {
        constraint::check_apart(app.text.answers.reasoning.map(turn))?;
    }
    constraint::after_reasoning(app, spec, (held, &calls), turn)?;
    spec.answer = AnswerOptions {
        reasoning: reasoning.map(|format| (format, turn(format))),
        calls: match (reasoning, app.text.answers.reasoning) {
            (None, Some(format)) => calls.with_reasoning(format),
            _ => calls,
        },
        skip_special_tokens: spec.skip_special_tokens,
    };
    spec.inputs = vec![Input::Text {
        text,
        add_special_tokens: false,
    }];
    end_turn(app, spec);
    Ok(())
}

/// Ends the output with the tokens that end a turn of the model's format. Copies of a model often
/// come without the file that lists them.
fn end_turn(app: &App, spec: &mut GenerateSpec) {
    if spec.sampling.ignore_eos {
        return;
    }
    let format = app.text.answers.reasoning;
    let ends = format.into_iter().flat_map(|format| format.ends);
    let ends = ends.filter_map(|end| app.text.tokenizer.token_to_id(end));
    let known = &app.config.model.eos_token_ids;
    let stops = &mut spec.sampling.stop_token_ids;
    stops.extend(ends.filter(|token| !known.contains(token)));
}

/// Renders the conversation. Errors name the API's own field.
async fn render(app: &App, fields: &FieldNames, conversation: Conversation) -> ApiResult<String> {
    let stats = RequestStats::current();
    let trace = stats.as_deref().and_then(RequestStats::trace);
    let _span = trace.map(|trace| trace.child("render chat template"));
    let text = app.text.render(conversation).await;
    text.map_err(|error| ApiError {
        param: error.param.map(|_| fields.input.to_owned()),
        ..error
    })
}

/// Returns the text of the last message if the answer continues it.
fn continued(conversation: &Conversation) -> Option<String> {
    let last = conversation.messages.last()?;
    let text = match &last["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| part["text"].as_str());
            texts.collect()
        }
        _ => String::new(),
    };
    conversation.continue_final_message.then_some(text)
}

/// Returns texts as the content of a chat message: one as it is, several as parts.
pub(super) fn content(mut texts: Vec<String>) -> Value {
    match (texts.pop(), texts.is_empty()) {
        (None, _) => "".into(),
        (Some(only), true) => only.into(),
        (Some(last), false) => {
            texts.push(last);
            let part = |text| json!({"type": "text", "text": text});
            texts.into_iter().map(part).collect()
        }
    }
}
