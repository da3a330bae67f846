//! Arguments with their names and something in between, such as Python's: `a=1, b="x"`.

use serde_json::Map;
use serde_json::Value;

use super::GrammarError;
use super::lark::Lark;
use super::schema::{Properties, Unwritable, properties};
use crate::lark::literal;

/// The way in which a format writes its arguments.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct NamedStyle {
    /// Text between a name and its value.
    pub assign: &'static str,
    /// Text between two arguments.
    pub comma: &'static str,
    /// Returns the expression of the instances of a schema inside another.
    pub value: WriteValue,
}

type WriteValue = fn(&mut Lark<'_>, &Value, &Map<String, Value>) -> Result<String, Unwritable>;

/// Returns the expression of a tool's arguments.
///
/// # Errors
/// [`GrammarError::Arguments`] for a strict tool.
pub(in super::super) fn named(
    lark: &mut Lark<'_>,
    tool: usize,
    style: &NamedStyle,
) -> Result<String, GrammarError> {
    let callable = lark.tools[tool];
    let empty = Map::new();
    let schema = callable.schema.and_then(Value::as_object).unwrap_or(&empty);
    match listed(lark, schema, style) {
        Ok(arguments) => Ok(arguments),
        Err(_) if !callable.strict => {
            any(lark, &Value::Bool(true), &empty, style).map_err(|error| error.of(tool))
        }
        Err(error) => Err(error.of(tool)),
    }
}

fn listed(
    lark: &mut Lark<'_>,
    schema: &Map<String, Value>,
    style: &NamedStyle,
) -> Result<String, Unwritable> {
    let properties = match properties(schema)? {
        Properties::Listed(properties) => properties,
        Properties::Any(values) => return any(lark, values, schema, style),
    };
    // Two rules for each argument and those behind it: one without a comma before it.
    let (mut first, mut later) = (String::new(), String::new());
    let comma = literal(style.comma);
    for property in properties.iter().rev() {
        if !is_identifier(property.name) {
            return Err(Unwritable::other(format!(
                "the property name {:?} can't be written as an argument's name in this model's \
                 format of calls; use letters, digits and underscores",
                property.name
            )));
        }
        let key = literal(&format!("{}{}", property.name, style.assign));
        let one = format!("{key} {}", (style.value)(lark, property.schema, schema)?);
        let one = lark.rule(&one);
        let without = |rest: &str| match property.required {
            true => String::new(),
            false if rest.is_empty() => " | \"\"".to_owned(),
            false => format!(" | {rest}"),
        };
        let now = lark.rule(&format!("{one} {later}{}", without(&first)));
        later = lark.rule(&format!("{comma} {one} {later}{}", without(&later)));
        first = now;
    }
    Ok(first)
}

/// Returns the expression of arguments with any names.
fn any(
    lark: &mut Lark<'_>,
    values: &Value,
    root: &Map<String, Value>,
    style: &NamedStyle,
) -> Result<String, Unwritable> {
    let name = lark.terminal("/[A-Za-z_][A-Za-z0-9_]{0,63}/");
    let values = match values {
        Value::Bool(true) => Value::Object(Map::new()),
        other => other.clone(),
    };
    let value = (style.value)(lark, &values, root)?;
    let one = lark.rule(&format!("{name} {} {value}", literal(style.assign)));
    let rule = lark.rule(&format!("{one} ({} {one})*", literal(style.comma)));
    Ok(format!("{rule}?"))
}

fn is_identifier(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.len() <= 200
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
