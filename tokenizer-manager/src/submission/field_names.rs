//! Names of fields in error messages.

use std::borrow::Cow;

/// Names of the fields that differ between APIs, for error messages.
#[derive(Debug, Clone, Copy)]
pub struct FieldNames {
    /// Field that holds the prompt, such as `prompt` or `messages`.
    pub input: &'static str,
    /// Word for the prompt in sentences: "the messages", "your prompt".
    pub noun: &'static str,
    /// Field that limits the output's length.
    pub max_tokens: &'static str,
    /// The object around the sampling parameters with its dot, such as
    /// `sampling_params.`; empty if the parameters stand at the top level.
    pub prefix: &'static str,
}

impl FieldNames {
    /// Returns the full name of a sampling field.
    pub fn name(&self, field: &'static str) -> Cow<'static, str> {
        if self.prefix.is_empty() {
            Cow::Borrowed(field)
        } else {
            Cow::Owned(format!("{}{field}", self.prefix))
        }
    }
}
