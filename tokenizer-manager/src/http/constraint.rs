//! Fields by which requests constrain their outputs, as clients of OpenAI, vLLM, SGLang and
//! llama.cpp spell them.

use std::borrow::Cow;

use lockstep_types::constraint::{ConstraintKind, Whitespace};
use serde_json::{Map, Value, json};

use crate::{
    error::{ApiError, ApiResult},
    submission::ConstraintSpec,
};

/// Most bytes of a schema's name, as OpenAI has it.
const LONGEST_NAME: usize = 64;

/// Values of these fields. Every API has some of them.
#[derive(Debug, Default)]
pub(in crate::http) struct ConstraintFields {
    /// OpenAI's.
    pub response_format: Option<Value>,
    /// vLLM's.
    pub structured_outputs: Option<Value>,
    /// vLLM's, older.
    pub guided_json: Option<Value>,
    /// vLLM's, older.
    pub guided_regex: Option<String>,
    /// vLLM's, older.
    pub guided_choice: Option<Vec<String>>,
    /// SGLang's, and vLLM's older one.
    pub structural_tag: Option<Value>,
    /// SGLang's and llama.cpp's.
    pub json_schema: Option<Value>,
    /// SGLang's.
    pub regex: Option<String>,
    /// vLLM's, older.
    pub guided_grammar: Option<String>,
    /// SGLang's.
    pub ebnf: Option<String>,
    /// llama.cpp's.
    pub grammar: Option<String>,
}

impl ConstraintFields {
    /// Returns the constraint that they ask for. `prefix` is the object around them, with its
    /// dot.
    ///
    /// # Errors
    /// 400 for a value of another form, and for two constraints.
    pub fn spec(self, prefix: &'static str) -> ApiResult<Option<ConstraintSpec>> {
        let name = |field: &'static str| match prefix {
            "" => Cow::Borrowed(field),
            prefix => Cow::Owned(format!("{prefix}{field}")),
        };
        let asked = [
            given(self.response_format).map(|value| response_format(&value)),
            given(self.structured_outputs).map(|value| structured_outputs(&value)),
            given(self.guided_json).map(|value| schema(name("guided_json"), &value).map(Some)),
            given(self.json_schema).map(|value| schema(name("json_schema"), &value).map(Some)),
            given(self.structural_tag)
                .map(|value| structural_tag(name("structural_tag"), &value).map(Some)),
            text(self.guided_regex).map(|text| Ok(Some(regex(name("guided_regex"), text)))),
            text(self.regex).map(|text| Ok(Some(regex(name("regex"), text)))),
            text(self.guided_grammar)
                .map(|text| ConstraintSpec::grammar(name("guided_grammar"), &text).map(Some)),
            text(self.ebnf).map(|text| ConstraintSpec::grammar(name("ebnf"), &text).map(Some)),
            text(self.grammar)
                .map(|text| ConstraintSpec::grammar(name("grammar"), &text).map(Some)),
            self.guided_choice
                .filter(|list| !list.is_empty())
                .map(|list| Ok(Some(choice(name("guided_choice"), &json!(list))))),
        ];
        let mut found: Option<ConstraintSpec> = None;
        for asked in asked.into_iter().flatten() {
            let Some(asked) = asked? else {
                continue;
            };
            if let Some(first) = &found {
                return Err(ApiError::invalid(
                    asked.param.clone(),
                    format!(
                        "Only one of '{}' and '{}' may be given.",
                        first.param, asked.param
                    ),
                ));
            }
            found = Some(asked);
        }
        Ok(found)
    }
}

/// Reads the format of an answer in the field `param` of another API: OpenAI's
/// `response_format`, or the same with the schema beside its type.
///
/// # Errors
/// 400 for a value of another form.
pub(in crate::http) fn format(
    value: Option<Value>,
    param: &'static str,
) -> ApiResult<Option<ConstraintSpec>> {
    let Some(value) = given(value) else {
        return Ok(None);
    };
    match response_format(&value) {
        Ok(None) => Ok(None),
        Ok(Some(mut spec)) => {
            for part in &mut spec.parts {
                part.param = part.param.replacen("response_format", param, 1);
            }
            Ok(Some(ConstraintSpec {
                param: param.into(),
                ..spec
            }))
        }
        Err(error) => Err(ApiError {
            param: Some(param.to_owned()),
            message: error.message.replace("response_format", param),
            ..error
        }),
    }
}

fn given(value: Option<Value>) -> Option<Value> {
    value.filter(|value| !matches!(value, Value::Null | Value::Bool(false)))
}

fn text(value: Option<String>) -> Option<String> {
    value.filter(|text| !text.is_empty())
}

/// Reads a schema, which comes as JSON or as a text of JSON.
fn schema(param: Cow<'static, str>, value: &Value) -> ApiResult<ConstraintSpec> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Object(_) | Value::Bool(true) => value.to_string(),
        _ => {
            let problem = "expected a JSON schema, as an object or as a string";
            return Err(invalid(param, problem));
        }
    };
    Ok(ConstraintSpec::new(param, ConstraintKind::JsonSchema, text))
}

fn regex(param: Cow<'static, str>, text: String) -> ConstraintSpec {
    ConstraintSpec::new(param, ConstraintKind::Regex, text)
}

fn choice(param: Cow<'static, str>, list: &Value) -> ConstraintSpec {
    ConstraintSpec::new(param, ConstraintKind::Choice, list.to_string())
}

/// Reads a structural tag, which comes as JSON or as a text of JSON.
fn structural_tag(param: Cow<'static, str>, value: &Value) -> ApiResult<ConstraintSpec> {
    match value {
        Value::String(text) => Ok(ConstraintSpec::structural_tag(param, text.clone())),
        Value::Object(_) => Ok(ConstraintSpec::structural_tag(param, value.to_string())),
        _ => {
            let problem = "expected a structural tag, as an object or as a string";
            Err(invalid(param, problem))
        }
    }
}

fn object(param: impl Into<Cow<'static, str>>) -> ConstraintSpec {
    ConstraintSpec::new(param, ConstraintKind::JsonSchema, r#"{"type":"object"}"#)
}

/// Reads OpenAI's `response_format`.
fn response_format(value: &Value) -> ApiResult<Option<ConstraintSpec>> {
    const PARAM: &str = "response_format";
    const FORMS: &str = "expected an object whose 'type' is 'text', 'json_object', 'json_schema' or \
                         'structural_tag'";
    let kind = value.get("type").and_then(Value::as_str);
    match kind.ok_or_else(|| invalid(PARAM, FORMS))? {
        "text" => Ok(None),
        // llama.cpp has a schema beside this type too.
        "json_object" => match value.get("schema") {
            None | Some(Value::Null) => Ok(Some(object(PARAM))),
            Some(beside) => schema(PARAM.into(), beside).map(Some),
        },
        "json_schema" => {
            // SGLang and llama.cpp also take the schema beside the type.
            let Some(Value::Object(named)) = value.get("json_schema") else {
                let beside = value.get("schema").ok_or_else(|| {
                    invalid(
                        PARAM,
                        "expected 'json_schema', an object with 'name' and 'schema'",
                    )
                })?;
                return schema(PARAM.into(), beside).map(Some);
            };
            check_name(named)?;
            let own = named.get("schema");
            let own = own.ok_or_else(|| {
                invalid(
                    "response_format.json_schema.schema",
                    "expected a JSON schema",
                )
            })?;
            schema(PARAM.into(), own).map(Some)
        }
        "structural_tag" => structural_tag(PARAM.into(), value).map(Some),
        _ => Err(invalid(PARAM, FORMS)),
    }
}

fn check_name(named: &Map<String, Value>) -> ApiResult<()> {
    let param = "response_format.json_schema.name";
    match named.get("name") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(name)) => {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
            let good = (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(plain);
            good.then_some(()).ok_or_else(|| {
                invalid(
                    param,
                    "expected 1 to 64 letters, digits, underscores and dashes",
                )
            })
        }
        Some(_) => Err(invalid(param, "it must be a string")),
    }
}

/// Reads vLLM's `structured_outputs`: exactly one constraint, and options.
fn structured_outputs(value: &Value) -> ApiResult<Option<ConstraintSpec>> {
    const PARAM: &str = "structured_outputs";
    let Value::Object(fields) = value else {
        return Err(invalid(PARAM, "expected an object"));
    };
    let (mut found, mut whitespace) = (Vec::new(), Whitespace::default());
    for (name, value) in fields {
        if matches!(value, Value::Null | Value::Bool(false)) {
            continue;
        }
        let param = || Cow::Owned(format!("{PARAM}.{name}"));
        match (name.as_str(), value) {
            ("json", value) => found.push(schema(param(), value)?),
            ("structural_tag", value) => found.push(structural_tag(param(), value)?),
            ("regex", Value::String(text)) => found.push(regex(param(), text.clone())),
            ("grammar", Value::String(text)) => found.push(ConstraintSpec::grammar(param(), text)?),
            ("choice", Value::Array(_)) => found.push(choice(param(), value)),
            ("json_object", Value::Bool(true)) => found.push(object(param())),
            ("disable_any_whitespace", Value::Bool(true)) => whitespace = Whitespace::Compact,
            ("regex" | "grammar" | "choice" | "json_object" | "disable_any_whitespace", _) => {
                return Err(invalid(param(), "it has another type than it should"));
            }
            _ => {
                return Err(ApiError::unsupported(
                    param(),
                    format!(
                        "'{PARAM}.{name}' is not supported by this version; use 'json', 'regex', \
                         'choice', 'grammar', 'json_object' or 'structural_tag'."
                    ),
                ));
            }
        }
    }
    match found.len() {
        0 if fields.is_empty() => Ok(None),
        1 => Ok(found
            .pop()
            .map(|spec| ConstraintSpec { whitespace, ..spec })),
        _ => Err(invalid(
            PARAM,
            "expected exactly one of 'json', 'regex', 'choice', 'grammar', 'json_object' and \
             'structural_tag'",
        )),
    }
}

fn invalid(param: impl Into<Cow<'static, str>>, problem: &str) -> ApiError {
    let param = param.into();
    let message = format!("Invalid value for '{param}': {problem}.");
    ApiError::invalid(param, message)
}

#[cfg(test)]
mod tests;
