//! Conversion of system prompt and messages to the messages of chat templates.

use serde_json::{Map, Value, json};

use super::blocks::{Block, Sender, blocks, invalid, texts};
use crate::{
    error::{ApiError, ApiResult},
    http::conversation::content,
};

/// Begin of a line in which a command-line client counts its requests. It is meant for the
/// service's books. As the first text of every prompt it would keep requests from sharing the
/// prefix cache.
const BILLING: &str = "x-anthropic-billing-header:";

/// Returns the messages, and true if the answer continues the last one, which is an assistant's.
///
/// # Errors
/// 400 that names the block.
pub(super) fn messages(system: Option<Value>, given: Vec<Value>) -> ApiResult<(Vec<Value>, bool)> {
    if given.is_empty() {
        return Err(ApiError {
            code: Some("empty_array"),
            ..ApiError::invalid(
                "messages",
                "Invalid 'messages': at least one message is required.",
            )
        });
    }
    let mut messages = Vec::with_capacity(given.len() + 1);
    if let Some(system) = system.filter(|system| !system.is_null()) {
        let instructions = instructions(blocks(system, Sender::System, "system")?);
        messages.extend(instructions);
    }
    let last = given.len() - 1;
    let mut continues = false;
    for (at, message) in given.into_iter().enumerate() {
        let place = format!("messages[{at}]");
        let Value::Object(mut message) = message else {
            return Err(invalid(&place, "a message must be an object"));
        };
        let sender = sender(&message, &place)?;
        let place = format!("{place}.content");
        let content = message.remove("content").unwrap_or_default();
        let blocks = blocks(content, sender, &place)?;
        continues = sender == Sender::Assistant;
        // A prefill without text is none: the answer begins a turn of its own.
        if continues && at == last && blocks.iter().all(Block::is_empty) {
            continues = false;
            break;
        }
        if continues && at == last && blocks.iter().any(|block| matches!(block, Block::Call(_))) {
            return Err(invalid(
                &place,
                "the last message calls a tool; send the 'tool_result' after it",
            ));
        }
        match sender {
            Sender::User => user(blocks, &mut messages),
            Sender::Assistant => messages.push(assistant(blocks)),
            Sender::System => messages.extend(instructions(blocks)),
        }
    }
    join_users(&mut messages);
    Ok((messages, continues))
}

fn sender(message: &Map<String, Value>, place: &str) -> ApiResult<Sender> {
    match message.get("role").and_then(Value::as_str) {
        Some("user") => Ok(Sender::User),
        Some("assistant") => Ok(Sender::Assistant),
        Some("system") => Ok(Sender::System),
        _ => Err(invalid(
            &format!("{place}.role"),
            "expected \"user\" or \"assistant\"",
        )),
    }
}

/// Returns the message of a system prompt; `None` if it has no text.
fn instructions(blocks: Vec<Block>) -> Option<Value> {
    let mut texts = texts(blocks);
    for text in &mut texts {
        if text.starts_with(BILLING) {
            let line = text.find('\n').map_or(text.len(), |end| end + 1);
            text.drain(..line);
        }
    }
    texts.retain(|text| !text.is_empty());
    (!texts.is_empty()).then(|| json!({"role": "system", "content": content(texts)}))
}

/// Adds a user's message. Each result of a tool is a message of its own.
fn user(blocks: Vec<Block>, messages: &mut Vec<Value>) {
    let message = |texts: &mut Vec<String>| {
        let content = content(std::mem::take(texts));
        json!({"role": "user", "content": content})
    };
    let (mut texts, before) = (Vec::new(), messages.len());
    for block in blocks {
        match block {
            Block::Text(text) => texts.push(text),
            Block::Result(result) => {
                if !texts.is_empty() {
                    messages.push(message(&mut texts));
                }
                messages.push(result);
            }
            // An assistant alone has these.
            Block::Call(_) | Block::Thinking(_) | Block::Hidden => {}
        }
    }
    if !texts.is_empty() || messages.len() == before {
        messages.push(message(&mut texts));
    }
}

/// Joins messages of users that follow each other, as Anthropic does: many templates want the
/// roles to alternate.
fn join_users(messages: &mut Vec<Value>) {
    let role = |message: &Value| message["role"] == "user";
    messages.dedup_by(|next, before| {
        let joins = role(next) && role(before);
        if joins {
            let mut all = parts(before["content"].take());
            all.extend(parts(next["content"].take()));
            before["content"] = content(all);
        }
        joins
    });
}

/// Returns the texts of a message's content.
fn parts(content: Value) -> Vec<String> {
    let text = |part: Value| match part {
        Value::String(text) => text,
        Value::Object(mut part) => match part.remove("text") {
            Some(Value::String(text)) => text,
            _ => String::new(),
        },
        _ => String::new(),
    };
    match content {
        Value::Array(parts) => parts.into_iter().map(text).collect(),
        only => vec![text(only)],
    }
}

fn assistant(blocks: Vec<Block>) -> Value {
    let (mut texts, mut thoughts, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for block in blocks {
        match block {
            Block::Text(text) => texts.push(text),
            Block::Thinking(thinking) => thoughts.push(thinking),
            Block::Call(call) => calls.push(call),
            Block::Result(_) | Block::Hidden => {}
        }
    }
    let mut message = json!({"role": "assistant"});
    message["content"] = match texts.is_empty() && !calls.is_empty() {
        true => Value::Null,
        false => content(texts),
    };
    if !thoughts.is_empty() {
        message["reasoning_content"] = thoughts.join("\n").into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    message
}
