//! Properties of arguments, for formats that write each by itself.

use serde_json::{Map, Value};

/// Keywords of an object's schema that such formats can't follow.
const MISSING: [&str; 16] = [
    "$ref",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "enum",
    "const",
    "patternProperties",
    "minProperties",
    "maxProperties",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedProperties",
];

/// Most bytes of a name that the parsers read.
const MOST_NAME: usize = 200;

/// A part of a schema that a format can't follow.
#[derive(Debug)]
pub(in super::super) struct Unwritable {
    pub keyword: Option<String>,
    pub problem: String,
}

impl Unwritable {
    /// Makes the error of a keyword.
    pub fn keyword(keyword: &str) -> Self {
        Self {
            keyword: Some(keyword.to_owned()),
            problem: format!(
                "the keyword '{keyword}' can't be followed there in this model's format of calls; \
                 leave it out"
            ),
        }
    }

    /// Makes another error.
    pub fn other(problem: impl Into<String>) -> Self {
        Self {
            keyword: None,
            problem: problem.into(),
        }
    }
}

/// A property.
#[derive(Debug)]
pub(in super::super) struct Property<'a> {
    pub name: &'a str,
    pub schema: &'a Value,
    pub required: bool,
}

/// Properties of an object.
#[derive(Debug)]
pub(in super::super) enum Properties<'a> {
    /// These, in this order.
    Listed(Vec<Property<'a>>),
    /// Any, with values of this schema.
    Any(&'a Value),
}

/// Returns the properties that an instance may have. Additional ones are left out where some are
/// listed.
pub(in super::super) fn properties(
    schema: &Map<String, Value>,
) -> Result<Properties<'_>, Unwritable> {
    if let Some(keyword) = MISSING
        .iter()
        .find(|keyword| schema.contains_key(**keyword))
    {
        return Err(Unwritable::keyword(keyword));
    }
    if !matches!(schema.get("type"), None | Some(Value::Null)) && schema["type"] != "object" {
        return Err(Unwritable {
            keyword: Some("type".to_owned()),
            ..Unwritable::other("the arguments of a function must be an object")
        });
    }
    let listed = schema.get("properties").and_then(Value::as_object);
    let required = schema.get("required").and_then(Value::as_array);
    let required: Vec<_> = required
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let additional = schema
        .get("additionalProperties")
        .unwrap_or(&Value::Bool(true));
    let is_listed = |name: &str| listed.is_some_and(|listed| listed.contains_key(name));
    let unlisted = required.iter().filter(|name| !is_listed(name));
    let unlisted = unlisted.map(|name| (*name, additional));
    let listed = listed.into_iter().flatten();
    let all: Vec<_> = listed
        .map(|(name, schema)| (name.as_str(), schema))
        .chain(unlisted)
        .map(|(name, schema)| Property {
            name,
            schema,
            required: required.contains(&name),
        })
        .collect();
    match (all.is_empty(), additional) {
        (false, _) | (true, Value::Bool(false)) => Ok(Properties::Listed(all)),
        (true, additional) => Ok(Properties::Any(additional)),
    }
}

/// Checks that a name can stand in a tag.
pub(in super::super) fn plain_name(name: &str) -> Result<(), Unwritable> {
    let plain = |c: char| c.is_alphanumeric() || "_-.$@ ".contains(c);
    match !name.is_empty()
        && name.len() <= MOST_NAME
        && name.trim() == name
        && name.chars().all(plain)
    {
        true => Ok(()),
        false => Err(Unwritable::other(format!(
            "the property name {name:?} can't be written in this model's format of calls; use \
             letters, digits and underscores"
        ))),
    }
}
