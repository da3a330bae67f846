//! Tool calls in the chat API's form.

use lockstep_text::CallIds;
use serde::Serialize;

use crate::{generation::CallDelta, http::tools::call_id};

/// Prefix of random ids.
const PREFIX: &str = "call";

/// A call of a whole answer.
#[derive(Debug, Serialize)]
pub(super) struct Call {
    id: String,
    r#type: &'static str,
    function: Function<String>,
}

/// A part of a call in a chunk. Its first part has the id and the name.
#[derive(Debug, Serialize)]
pub(super) struct CallPart<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    function: FunctionPart<'a>,
}

#[derive(Debug, Serialize)]
struct Function<T> {
    name: T,
    arguments: T,
}

#[derive(Debug, Serialize)]
struct FunctionPart<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: &'a str,
}

/// Adds a part to the calls of a whole answer.
pub(super) fn add(calls: &mut Vec<Call>, part: CallDelta, ids: CallIds) {
    if let Some(begin) = part.begin {
        calls.push(Call {
            id: call_id(&begin, ids, PREFIX),
            r#type: "function",
            function: Function {
                name: begin.name,
                arguments: String::new(),
            },
        });
    }
    if let Some(call) = calls.last_mut() {
        call.function.arguments.push_str(&part.arguments);
    }
}

/// Returns the begin of a call and a piece of its arguments, as far as the part has them.
pub(super) fn parts(part: &CallDelta, ids: CallIds) -> impl Iterator<Item = CallPart<'_>> {
    let index = part.index;
    let begin = part.begin.as_ref().map(|begin| CallPart {
        index,
        id: Some(call_id(begin, ids, PREFIX)),
        r#type: Some("function"),
        function: FunctionPart {
            name: Some(&begin.name),
            arguments: "",
        },
    });
    let arguments = (!part.arguments.is_empty()).then_some(CallPart {
        index,
        id: None,
        r#type: None,
        function: FunctionPart {
            name: None,
            arguments: &part.arguments,
        },
    });
    begin.into_iter().chain(arguments)
}
