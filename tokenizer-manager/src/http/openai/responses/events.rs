//! Events of a stream.

use serde::Serialize;

use super::{
    item::{Item, Part},
    object::Response,
};
use crate::error::ApiError;

/// Data of an event, without its name and number.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Data<'a> {
    Response {
        response: &'a Response<'a>,
    },
    Item {
        output_index: usize,
        item: &'a Item,
    },
    Part {
        #[serde(flatten)]
        place: Place<'a>,
        content_index: usize,
        part: &'a Part,
    },
    TextDelta {
        #[serde(flatten)]
        place: Place<'a>,
        content_index: usize,
        delta: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<[(); 0]>,
    },
    TextDone {
        #[serde(flatten)]
        place: Place<'a>,
        content_index: usize,
        text: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<[(); 0]>,
    },
    ArgumentsDelta {
        #[serde(flatten)]
        place: Place<'a>,
        delta: &'a str,
    },
    ArgumentsDone {
        #[serde(flatten)]
        place: Place<'a>,
        name: &'a str,
        arguments: &'a str,
    },
    Error {
        code: &'a str,
        message: &'a str,
        param: Option<&'a str>,
    },
}

impl<'a> Data<'a> {
    /// Returns the data of an error.
    pub(super) fn error(error: &'a ApiError) -> Self {
        Self::Error {
            code: error.code(),
            message: &error.message,
            param: error.param.as_deref(),
        }
    }
}

/// Place of an event in the output.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Place<'a> {
    pub item_id: &'a str,
    pub output_index: usize,
}

/// Receiver of events.
pub(super) trait Emit {
    /// Takes an event.
    fn emit(&mut self, name: &'static str, data: Data<'_>);
}

/// Receiver for a whole answer, which has no events.
pub(super) struct Nowhere;

impl Emit for Nowhere {
    fn emit(&mut self, _: &'static str, _: Data<'_>) {}
}
