//! Parsers of the model's answers, by name.

use lockstep_text::{AUTO, AnswerFormat, UnknownParser};
use lockstep_types::{AnswersConfig, ToolStrictLevel};

use super::ConfigError;
use crate::args::{ServerArgs, StrictLevelArg};

pub(super) fn resolve(given: &ServerArgs) -> Result<AnswersConfig, ConfigError> {
    Ok(AnswersConfig {
        tool_call_parser: name(
            "--tool-call-parser",
            given.tool_call_parser.as_deref(),
            AnswerFormat::check_tool_parser,
        )?,
        reasoning_parser: name(
            "--reasoning-parser",
            given.reasoning_parser.as_deref(),
            AnswerFormat::check_reasoning_parser,
        )?,
        tool_strict_level: match given.tool_strict_level.unwrap_or(StrictLevelArg::Function) {
            StrictLevelArg::Off => ToolStrictLevel::Off,
            StrictLevelArg::Function => ToolStrictLevel::Function,
            StrictLevelArg::Parameter => ToolStrictLevel::Parameter,
        },
    })
}

fn name(
    option: &'static str,
    given: Option<&str>,
    check: fn(&str) -> Result<(), UnknownParser>,
) -> Result<String, ConfigError> {
    let name = given.unwrap_or(AUTO);
    check(name).map_err(|unknown| {
        let names = unknown.names.join(", ");
        ConfigError::value(
            option,
            name,
            "is the name of no parser",
            format!("Give one of {names}"),
        )
    })?;
    Ok(name.to_owned())
}
