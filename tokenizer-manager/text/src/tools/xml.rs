//! Arguments alone, as tags around raw values, for structural tags that name what stands around
//! them.

use serde_json::Value;

use super::grammar::{CallableTool, GrammarError, Lark, RawStyle, keys};
use super::{ToolFormat, deepseek_dsml, glm45, minimax_m2, qwen3_coder};

/// Behind an argument, where other tags follow.
const NEWLINE: &str = "\"\\n\"?";

/// Layout of arguments as tags around raw values, as a family of models writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XmlStyle {
    /// `<parameter=KEY>`, a line with the value, `</parameter>`.
    Qwen,
    /// `<parameter name="KEY">VALUE</parameter>`.
    Minimax,
    /// `<｜DSML｜parameter name="KEY" string="true">VALUE</｜DSML｜parameter>`; `false` before JSON.
    Deepseek,
    /// `<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`.
    Glm,
}

/// A part of a grammar: the arguments of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XmlArguments {
    /// The expression of them all.
    pub expression: String,
    /// The rules that it needs.
    pub rules: String,
}

impl XmlStyle {
    fn layout(self) -> (&'static ToolFormat, RawStyle) {
        let (format, style) = match self {
            Self::Qwen => (&qwen3_coder::FORMAT, qwen3_coder::STYLE),
            Self::Minimax => (&minimax_m2::FORMAT, minimax_m2::STYLE),
            Self::Deepseek => (&deepseek_dsml::V32, deepseek_dsml::STYLE),
            Self::Glm => (&glm45::FORMAT, glm45::STYLE),
        };
        let behind = NEWLINE;
        (format, RawStyle { behind, ..style })
    }

    /// Returns the arguments whose schema this is. `prefix` keeps the names of rules apart from
    /// those of other parts.
    ///
    /// # Errors
    /// [`GrammarError`] for what the layout can't express.
    pub fn arguments(self, schema: &Value, prefix: &str) -> Result<XmlArguments, GrammarError> {
        let (format, style) = self.layout();
        let tools = [CallableTool {
            name: "",
            schema: Some(schema),
            known: None,
            strict: true,
        }];
        let mut lark = Lark::spelled(format.marks, &tools, prefix);
        let expression = keys(&mut lark, 0, &style)?;
        Ok(XmlArguments {
            expression,
            rules: lark.into_rules()?,
        })
    }
}
