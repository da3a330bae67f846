//! Values that a schema enumerates.

use serde_json::{Map, Value};

use super::bare::is_annotation;
use super::schema::Unwritable;

/// Returns the values of `enum` or `const` that have the schema's `type`; `None` for a schema
/// without an enumeration.
///
/// # Errors
/// [`Unwritable`] for other keywords beside them, and if no value is left.
pub(super) fn enumeration(fields: &Map<String, Value>) -> Result<Option<Vec<&Value>>, Unwritable> {
    let (all, only) = (fields.get("enum"), fields.get("const"));
    let values: Vec<&Value> = match (all.and_then(Value::as_array), only) {
        (Some(values), Some(only)) => values.iter().filter(|value| *value == only).collect(),
        (Some(values), None) => values.iter().collect(),
        (None, Some(only)) => vec![only],
        (None, None) => return Ok(None),
    };
    let known = ["enum", "const", "type"];
    let mut keywords = fields.keys().map(String::as_str);
    if let Some(other) = keywords.find(|own| !known.contains(own) && !is_annotation(own)) {
        return Err(Unwritable::keyword(other));
    }
    let values: Vec<_> = match fields.get("type") {
        None => values,
        Some(Value::String(name)) => {
            let typed = |value: &&Value| is_of(value, name);
            values.into_iter().filter(typed).collect()
        }
        Some(Value::Array(names)) => {
            let names = names.iter().filter_map(Value::as_str);
            let typed = |value: &&Value| names.clone().any(|name| is_of(value, name));
            values.into_iter().filter(typed).collect()
        }
        Some(_) => return Err(Unwritable::keyword("type")),
    };
    match values.is_empty() {
        true => Err(Unwritable::keyword(if all.is_some() {
            "enum"
        } else {
            "const"
        })),
        false => Ok(Some(values)),
    }
}

/// True if a value has the type with this name.
fn is_of(value: &Value, name: &str) -> bool {
    match value {
        Value::Null => name == "null",
        Value::Bool(_) => name == "boolean",
        Value::String(_) => name == "string",
        Value::Array(_) => name == "array",
        Value::Object(_) => name == "object",
        Value::Number(number) => {
            let whole = || number.as_f64().is_some_and(|number| number.fract() == 0.0);
            name == "number" || name == "integer" && whole()
        }
    }
}
