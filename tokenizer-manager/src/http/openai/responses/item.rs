//! Items of an answer's output, as the response object and the events of a stream show them.

use serde::Serialize;

/// An item of the output.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Item {
    Reasoning {
        id: String,
        /// No summaries are made: all of the reasoning is in the content.
        summary: [(); 0],
        content: Vec<Part>,
        status: Status,
    },
    Message {
        id: String,
        status: Status,
        role: &'static str,
        content: Vec<Part>,
    },
    FunctionCall {
        id: String,
        call_id: String,
        name: String,
        arguments: String,
        status: Status,
    },
}

/// A part of an item's content.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Part {
    ReasoningText {
        text: String,
    },
    OutputText {
        text: String,
        annotations: [(); 0],
        logprobs: [(); 0],
    },
}

/// State of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    InProgress,
    Completed,
    Incomplete,
}
