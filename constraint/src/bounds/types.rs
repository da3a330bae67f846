//! Types of the values of keywords, checked before a compiler takes them for granted.

use serde_json::{Map, Value};

/// The type that a keyword's value must have.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Text,
    Texts,
    Number,
    Count,
    Object,
    List,
}

const KINDS: [(&str, Kind); 26] = [
    ("$ref", Kind::Text),
    ("$schema", Kind::Text),
    ("pattern", Kind::Text),
    ("format", Kind::Text),
    ("required", Kind::Texts),
    ("minimum", Kind::Number),
    ("maximum", Kind::Number),
    ("exclusiveMinimum", Kind::Number),
    ("exclusiveMaximum", Kind::Number),
    ("multipleOf", Kind::Number),
    ("minLength", Kind::Count),
    ("maxLength", Kind::Count),
    ("minItems", Kind::Count),
    ("maxItems", Kind::Count),
    ("minProperties", Kind::Count),
    ("maxProperties", Kind::Count),
    ("properties", Kind::Object),
    ("patternProperties", Kind::Object),
    ("$defs", Kind::Object),
    ("definitions", Kind::Object),
    ("enum", Kind::List),
    ("allOf", Kind::List),
    ("anyOf", Kind::List),
    ("oneOf", Kind::List),
    ("prefixItems", Kind::List),
    ("examples", Kind::List),
];

/// Names of types.
const TYPES: [&str; 7] = [
    "string", "number", "integer", "boolean", "null", "object", "array",
];

/// Returns the first keyword whose value has another type than it must, and that type.
pub(super) fn wrong(fields: &Map<String, Value>) -> Option<(&'static str, &'static str)> {
    if let Some(kinds) = fields.get("type") {
        let is_type = |kind: &Value| kind.as_str().is_some_and(|kind| TYPES.contains(&kind));
        let good = match kinds {
            Value::Array(kinds) => !kinds.is_empty() && kinds.iter().all(is_type),
            kind => is_type(kind),
        };
        if !good {
            return Some(("type", "the name of a type, or a list of such names"));
        }
    }
    KINDS.iter().find_map(|(keyword, kind)| {
        let value = fields.get(*keyword)?;
        let (good, wanted) = match kind {
            Kind::Text => (value.is_string(), "a string"),
            Kind::Texts => (
                value
                    .as_array()
                    .is_some_and(|list| list.iter().all(Value::is_string)),
                "a list of strings",
            ),
            Kind::Number => (value.is_number(), "a number"),
            Kind::Count => (
                value.as_u64().is_some_and(|count| count <= MOST_COUNT),
                "a whole number from 0 to 1000000",
            ),
            Kind::Object => (value.is_object(), "an object"),
            Kind::List => (value.is_array(), "a list"),
        };
        (!good).then_some((*keyword, wanted))
    })
}

/// Largest length or number of parts.
const MOST_COUNT: u64 = 1_000_000;
