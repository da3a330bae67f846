//! Blocks of content: texts, tool calls and their results, and thinking.

use serde_json::{Map, Value, json};

use crate::{
    error::{ApiError, ApiResult},
    http::conversation::content,
};

/// A block, in the words of chat templates.
#[derive(Debug)]
pub(super) enum Block {
    /// A text.
    Text(String),
    /// A call of a tool: an entry of `tool_calls`.
    Call(Value),
    /// A result of a tool: a message of its own.
    Result(Value),
    /// Thinking of an earlier turn.
    Thinking(String),
    /// A block that no template shows.
    Hidden,
}

impl Block {
    /// True if the block says nothing.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Hidden => true,
            Self::Call(_) | Self::Result(_) | Self::Thinking(_) => false,
        }
    }
}

/// Sender of a message, who decides which blocks it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    User,
    Assistant,
    System,
}

/// Returns the blocks of content, which may be a text instead.
pub(super) fn blocks(content: Value, sender: Sender, place: &str) -> ApiResult<Vec<Block>> {
    match content {
        Value::String(text) => Ok(vec![Block::Text(text)]),
        Value::Array(blocks) => {
            let blocks = blocks.into_iter().enumerate();
            blocks
                .map(|(at, block)| one(block, sender, &format!("{place}[{at}]")))
                .collect()
        }
        _ => Err(invalid(place, "it must be a string or a list of blocks")),
    }
}

fn one(block: Value, sender: Sender, place: &str) -> ApiResult<Block> {
    let Value::Object(mut block) = block else {
        return Err(invalid(place, "a block must be an object"));
    };
    let Some(Value::String(kind)) = block.remove("type") else {
        return Err(invalid(place, "a block must have a 'type'"));
    };
    match (kind.as_str(), sender) {
        ("text", _) => Ok(Block::Text(text(&mut block, "text", place)?)),
        ("tool_use", Sender::Assistant) => call(block, place),
        ("tool_result", Sender::User) => result(block, place),
        ("thinking", Sender::Assistant) => {
            let thinking = text(&mut block, "thinking", place)?;
            Ok(Block::Thinking(thinking))
        }
        ("redacted_thinking", Sender::Assistant) => Ok(Block::Hidden),
        ("tool_use" | "tool_result" | "thinking" | "redacted_thinking", _) => {
            let problem = format!("a message of this role has no blocks of type '{kind}'");
            Err(invalid(place, &problem))
        }
        _ => Err(unsupported(place, &kind)),
    }
}

fn call(mut block: Map<String, Value>, place: &str) -> ApiResult<Block> {
    let id = text(&mut block, "id", place)?;
    let name = text(&mut block, "name", place)?;
    match block.remove("input") {
        Some(input @ Value::Object(_)) => Ok(Block::Call(json!({
            "id": id, "type": "function", "function": {"name": name, "arguments": input}
        }))),
        _ => Err(invalid(&format!("{place}.input"), "it must be an object")),
    }
}

fn result(mut block: Map<String, Value>, place: &str) -> ApiResult<Block> {
    let id = text(&mut block, "tool_use_id", place)?;
    let failed = match block.remove("is_error") {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Bool(true)) => true,
        Some(_) => {
            let place = format!("{place}.is_error");
            return Err(invalid(&place, "it must be true or false"));
        }
    };
    let place = format!("{place}.content");
    let mut texts = match block.remove("content") {
        None | Some(Value::Null) => Vec::new(),
        // Results have the blocks that a system's message may have: texts alone.
        Some(content) => texts(blocks(content, Sender::System, &place)?),
    };
    if failed {
        // No template has a place for it, and the model has to know.
        match texts.first_mut() {
            Some(first) => first.insert_str(0, "Error: "),
            None => texts.push("Error".to_owned()),
        }
    }
    Ok(Block::Result(json!({
        "role": "tool", "tool_call_id": id, "content": content(texts)
    })))
}

/// Returns the texts among the blocks.
pub(super) fn texts(blocks: Vec<Block>) -> Vec<String> {
    let text = |block| match block {
        Block::Text(text) => Some(text),
        Block::Call(_) | Block::Result(_) | Block::Thinking(_) | Block::Hidden => None,
    };
    blocks.into_iter().filter_map(text).collect()
}

fn text(block: &mut Map<String, Value>, field: &str, place: &str) -> ApiResult<String> {
    match block.remove(field) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(invalid(&format!("{place}.{field}"), "it must be a string")),
    }
}

/// Returns the error for a value of a wrong form.
pub(super) fn invalid(place: &str, problem: &str) -> ApiError {
    ApiError::invalid(place, format!("Invalid value for '{place}': {problem}."))
}

fn unsupported(place: &str, kind: &str) -> ApiError {
    ApiError::unsupported(
        place,
        format!(
            "Invalid value for '{place}': blocks of type '{kind}' are not supported, the model \
             takes text only."
        ),
    )
}
