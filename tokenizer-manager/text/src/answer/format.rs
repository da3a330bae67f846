//! Choice of the formats that a model writes.

use crate::Tokenizer;
use crate::reasoning::{REASONING_FORMATS, ReasoningFormat};
use crate::tools::{TOOL_FORMATS, ToolFormat};

/// Name that chooses the model's own format.
pub const AUTO: &str = "auto";
/// Name that chooses no format.
pub const NONE: &str = "none";

/// Formats of a model's answers.
#[derive(Debug, Clone, Copy, Default)]
pub struct AnswerFormat {
    /// Format of the reasoning; `None` if it is text.
    pub reasoning: Option<&'static ReasoningFormat>,
    /// Format of calls; `None` if they are text.
    pub tools: Option<&'static ToolFormat>,
}

/// A name that no parser has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no parser called {name:?}; the names are {}", names.join(", "))]
pub struct UnknownParser {
    /// The name.
    pub name: String,
    /// All names.
    pub names: Vec<&'static str>,
}

impl AnswerFormat {
    /// Returns the formats of these names. [`AUTO`] means the format that the chat template and
    /// the vocabulary show.
    ///
    /// # Errors
    /// [`UnknownParser`].
    pub fn named(
        tools: &str,
        reasoning: &str,
        template: &str,
        tokenizer: &Tokenizer,
    ) -> Result<Self, UnknownParser> {
        Self::check_tool_parser(tools)?;
        Self::check_reasoning_parser(reasoning)?;
        let is_token = |token: &str| tokenizer.token_to_id(token).is_some();
        Ok(Self {
            tools: match tools {
                AUTO => ToolFormat::of_template(template),
                name => ToolFormat::named(name),
            },
            reasoning: match reasoning {
                AUTO => ReasoningFormat::of_model(template, is_token),
                name => ReasoningFormat::named(name),
            },
        })
    }

    /// Checks the name of a parser of calls.
    ///
    /// # Errors
    /// [`UnknownParser`].
    pub fn check_tool_parser(name: &str) -> Result<(), UnknownParser> {
        known(name, TOOL_FORMATS.iter().map(|format| format.names))
    }

    /// Checks the name of a parser of reasoning.
    ///
    /// # Errors
    /// [`UnknownParser`].
    pub fn check_reasoning_parser(name: &str) -> Result<(), UnknownParser> {
        known(name, REASONING_FORMATS.iter().map(|format| format.names))
    }
}

fn known(
    name: &str,
    formats: impl Iterator<Item = &'static [&'static str]>,
) -> Result<(), UnknownParser> {
    let names: Vec<_> = [AUTO, NONE]
        .into_iter()
        .chain(formats.flatten().copied())
        .collect();
    match names.contains(&name) {
        true => Ok(()),
        false => Err(UnknownParser {
            name: name.to_owned(),
            names,
        }),
    }
}
