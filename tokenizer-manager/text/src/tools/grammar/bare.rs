//! Schemas without what changes nothing about their instances, and parts of schemas.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::schema::Unwritable;

/// Keywords that change nothing about an instance.
const ANNOTATIONS: [&str; 9] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
    "$schema",
];
/// Keywords whose values are schemas by name.
const NAMED: [&str; 5] = [
    "properties",
    "patternProperties",
    "dependentSchemas",
    "$defs",
    "definitions",
];
/// Keywords whose values are instances.
const INSTANCES: [&str; 2] = ["enum", "const"];
/// Keywords behind which a schema may define others, for references into it.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// True if a keyword changes nothing about an instance.
pub(super) fn is_annotation(keyword: &str) -> bool {
    ANNOTATIONS.contains(&keyword)
}

/// Returns a schema without its annotations.
pub(super) fn map(schema: &Map<String, Value>) -> Map<String, Value> {
    let fields = schema.iter().filter(|(keyword, _)| !is_annotation(keyword));
    let field = |(keyword, value): (&String, &Value)| {
        let value = match value {
            Value::Object(named) if NAMED.contains(&keyword.as_str()) => {
                let one = |(name, schema): (&String, &Value)| (name.clone(), bare(schema));
                named.iter().map(one).collect()
            }
            value if INSTANCES.contains(&keyword.as_str()) => value.clone(),
            value => bare(value),
        };
        (keyword.clone(), value)
    };
    fields.map(field).collect()
}

/// Returns a schema, or a list of them, without annotations.
fn bare(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => Value::Object(map(fields)),
        Value::Array(list) => list.iter().map(bare).collect(),
        other => other.clone(),
    }
}

/// Returns a schema inside another, `root`, as a schema by itself: with the definitions that it
/// needs.
///
/// # Errors
/// [`Unwritable`] for a reference that does not lead to a definition of `root`.
pub(super) fn part(schema: &Value, root: &Map<String, Value>) -> Result<Value, Unwritable> {
    let Value::Object(mut part) = bare(schema) else {
        return Ok(schema.clone());
    };
    for keyword in DEFINITIONS {
        part.remove(keyword);
    }
    let mut part = Value::Object(part);
    let (mut known, mut next) = (BTreeSet::new(), Vec::new());
    definitions(&part, &mut next)?;
    while let Some((keyword, name)) = next.pop() {
        if !known.insert((keyword, name.clone())) {
            continue;
        }
        let definition = root.get(keyword).and_then(|all| all.get(&name));
        let definition = bare(definition.ok_or_else(|| Unwritable::keyword("$ref"))?);
        definitions(&definition, &mut next)?;
        part[keyword][name] = definition;
    }
    Ok(part)
}

/// Appends the definitions to which the references in a schema lead.
fn definitions(schema: &Value, found: &mut Vec<(&'static str, String)>) -> Result<(), Unwritable> {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get("$ref") {
                let definition = definition(reference);
                found.push(definition.ok_or_else(|| Unwritable::keyword("$ref"))?);
            }
            fields
                .values()
                .try_for_each(|value| definitions(value, found))
        }
        Value::Array(list) => list.iter().try_for_each(|value| definitions(value, found)),
        _ => Ok(()),
    }
}

/// Returns the keyword and the name of the definition to which a reference leads.
fn definition(reference: &str) -> Option<(&'static str, String)> {
    let (keyword, path) = reference.strip_prefix("#/")?.split_once('/')?;
    let keyword = DEFINITIONS.into_iter().find(|known| *known == keyword)?;
    let name = path.split('/').next()?;
    Some((keyword, name.replace("~1", "/").replace("~0", "~")))
}
