//! Values of an argument that is written as a raw value.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::bare::is_annotation;
use super::enumeration::enumeration;
use super::schema::Unwritable;
use crate::tools::schema::{Kinds, target};

/// Longest bound of a text's length.
const MOST_LENGTH: u64 = 4096;
/// Most schemas behind references and in unions of a value.
const MOST_SCHEMAS: usize = 256;

/// Walk through the schemas of an argument.
#[derive(Debug, Default)]
pub(super) struct Walk<'a> {
    schemas: usize,
    /// References that are followed. Following one again adds nothing to a union.
    followed: BTreeSet<&'a str>,
}

/// Values of an argument.
#[derive(Debug, Default)]
pub(super) struct Values {
    /// Lengths of texts, if there may be any: the least, and the most.
    pub texts: Option<(u64, Option<u64>)>,
    /// Texts that are enumerated.
    pub literals: Vec<String>,
    /// Schemas of all that is no text.
    pub json: Vec<Value>,
}

impl Values {
    /// Returns any values that the parser reads as values of these types.
    pub fn loose(kinds: Kinds) -> Self {
        let mut values = Self::default();
        match kinds.has_json() {
            true => values.any(),
            false => values.texts = Some((0, None)),
        }
        if !kinds.has_json() && kinds.has_null() {
            values.push(json!({"type": "null"}));
        }
        values
    }

    pub fn is_empty(&self) -> bool {
        self.texts.is_none() && self.literals.is_empty() && self.json.is_empty()
    }

    fn push(&mut self, schema: Value) {
        if !self.json.contains(&schema) {
            self.json.push(schema);
        }
    }

    /// Adds the instances of a schema.
    pub fn add<'a>(
        &mut self,
        schema: &'a Value,
        root: &'a Map<String, Value>,
        walk: &mut Walk<'a>,
    ) -> Result<(), Unwritable> {
        let Value::Object(fields) = schema else {
            return match schema {
                Value::Bool(true) => {
                    self.any();
                    Ok(())
                }
                _ => Err(Unwritable::other("a schema must be an object or 'true'")),
            };
        };
        let only = |keyword: &str| {
            let mut own = fields.keys().map(String::as_str);
            own.all(|key| key == keyword || is_annotation(key))
        };
        if walk.schemas == MOST_SCHEMAS {
            return Err(Unwritable::keyword("$ref"));
        }
        walk.schemas += 1;
        if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
            let target = target(root, reference);
            return match target.filter(|_| only("$ref")) {
                Some(_) if !walk.followed.insert(reference) => Ok(()),
                Some(target) => self.add(target, root, walk),
                None => Err(Unwritable::keyword("$ref")),
            };
        }
        if let Some(values) = enumeration(fields)? {
            values.into_iter().for_each(|value| self.value(value));
            return Ok(());
        }
        for union in ["anyOf", "oneOf"] {
            if let Some(Value::Array(branches)) = fields.get(union) {
                if !only(union) {
                    return Err(Unwritable::keyword(union));
                }
                return branches
                    .iter()
                    .try_for_each(|branch| self.add(branch, root, walk));
            }
        }
        self.typed(fields, only(""))
    }

    fn any(&mut self) {
        self.texts = Some((0, None));
        self.push(json!({"type": ["null", "boolean", "number", "object", "array"]}));
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::String(text) if self.literals.contains(text) => {}
            Value::String(text) => self.literals.push(text.clone()),
            other => self.push(json!({"const": other})),
        }
    }

    /// Adds the instances of a schema without a union. `bare` = it has nothing but annotations.
    fn typed(&mut self, fields: &Map<String, Value>, bare: bool) -> Result<(), Unwritable> {
        let types: Vec<&str> = match fields.get("type") {
            None if bare => {
                self.any();
                return Ok(());
            }
            None => return Err(Unwritable::other("give each property a 'type'")),
            Some(Value::String(name)) => vec![name],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            Some(_) => return Err(Unwritable::keyword("type")),
        };
        let others: Vec<_> = types.iter().filter(|name| **name != "string").collect();
        if others.len() < types.len() {
            self.text(fields)?;
        }
        if !others.is_empty() {
            let mut fields = fields.clone();
            fields.insert("type".to_owned(), json!(others));
            for keyword in ["minLength", "maxLength", "pattern", "format"] {
                fields.remove(keyword);
            }
            self.push(Value::Object(fields));
        }
        Ok(())
    }

    fn text(&mut self, fields: &Map<String, Value>) -> Result<(), Unwritable> {
        for keyword in ["pattern", "format", "allOf", "not"] {
            if fields.contains_key(keyword) {
                return Err(Unwritable::keyword(keyword));
            }
        }
        let length = |keyword: &str| match fields.get(keyword) {
            None => Ok(None),
            Some(length) => match length.as_u64().filter(|length| *length <= MOST_LENGTH) {
                Some(length) => Ok(Some(length)),
                None => Err(Unwritable::keyword(keyword)),
            },
        };
        let lengths = (length("minLength")?.unwrap_or(0), length("maxLength")?);
        if self.texts.is_some_and(|texts| texts != lengths) {
            return Err(Unwritable::keyword("anyOf"));
        }
        if lengths.1.is_some_and(|most| most < lengths.0.max(1)) {
            return Err(Unwritable::keyword("maxLength"));
        }
        self.texts = Some(lengths);
        Ok(())
    }
}
