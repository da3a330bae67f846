//! Bounds on JSON schemas, and keywords that can't be obeyed.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{
    formats, regex, types, values,
    words::{self, could_be},
};
use crate::ConstraintError;

/// Deepest nesting of schemas.
const MOST_NESTING: usize = 64;
/// Most schemas in one.
const MOST_SCHEMAS: usize = 5000;
/// Most properties of an object. Each costs time at every token until it has come.
const MOST_PROPERTIES: usize = 256;
/// Most properties and required names of all objects, since objects may be joined.
const MOST_NAMES: usize = 2000;
/// Most `patternProperties` of an object. Every two of them are compared.
const MOST_PATTERNS: usize = 16;
/// Largest product of all different `multipleOf`, since numbers may have to be multiples of all.
const MOST_MULTIPLES: u64 = 10_000;
/// Most digits' worth of a `multipleOf`: an automaton has a state for each remainder.
const MOST_MULTIPLE: u64 = 1000;

/// Keywords that would be needed to tell valid instances from others, and are not obeyed.
const MISSING: [&str; 17] = [
    "not",
    "if",
    "then",
    "else",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
    "x-guidance",
];

/// Parses and checks a schema. It is returned in the form of an object, with expressions in the
/// place of formats that a compiler would read too widely.
///
/// # Errors
/// [`ConstraintError::Refused`], with the keyword at fault and the place of its schema.
pub(crate) fn schema(text: &str) -> Result<Value, ConstraintError> {
    let (mut root, formats) = checked(text)?;
    for pointer in formats {
        if let Some(Value::Object(fields)) = root.pointer_mut(&pointer) {
            formats::write_out(fields);
        }
    }
    Ok(root)
}

/// Parses and checks a schema as [`schema`] does, and returns it in the form of an object.
///
/// # Errors
/// [`ConstraintError::Refused`], with the keyword at fault and the place of its schema.
pub(crate) fn given_schema(text: &str) -> Result<Value, ConstraintError> {
    checked(text).map(|(root, _)| root)
}

/// Returns a checked schema, and the places in it whose format is to be written out.
fn checked(text: &str) -> Result<(Value, BTreeSet<String>), ConstraintError> {
    let root = serde_json::from_str(text)
        .map_err(|error| ConstraintError::refused(format!("it is no JSON: {error}")))?;
    let root = as_object(root).ok_or_else(|| {
        ConstraintError::refused("a schema must be an object, and 'false' has no instance")
    })?;
    let mut check = Check {
        root: &root,
        followed: BTreeSet::new(),
        schemas: 0,
        values: 0,
        names: 0,
        multiples: BTreeSet::new(),
        formats: BTreeSet::new(),
        literals: BTreeSet::new(),
    };
    check.schema(&root, &Place::default())?;
    values(check.values)?;
    check.no_format_in_values()?;
    words::has_instance(&root)?;
    let formats = check.formats;
    Ok((root, formats))
}

/// The place of a schema.
#[derive(Debug, Clone, Default)]
struct Place {
    pointer: String,
    depth: usize,
}

impl Place {
    fn below(&self, keys: &[&str]) -> Self {
        let mut pointer = self.pointer.clone();
        for key in keys {
            pointer.push('/');
            pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
        }
        Self {
            pointer,
            depth: self.depth + 1,
        }
    }

    fn refuse(&self, keyword: &str, message: String) -> ConstraintError {
        ConstraintError::Refused {
            keyword: Some(keyword.to_owned()),
            pointer: Some(format!("#{}", self.pointer)),
            message,
        }
    }
}

struct Check<'a> {
    root: &'a Value,
    /// References that are checked already.
    followed: BTreeSet<String>,
    schemas: usize,
    values: usize,
    names: usize,
    multiples: BTreeSet<u64>,
    /// Places of schemas whose format is to be written out.
    formats: BTreeSet<String>,
    /// Places of values, which are no schemas.
    literals: BTreeSet<String>,
}

impl Check<'_> {
    fn schema(&mut self, schema: &Value, place: &Place) -> Result<(), ConstraintError> {
        self.schemas += 1;
        if self.schemas > MOST_SCHEMAS || place.depth > MOST_NESTING {
            return Err(ConstraintError::refused(format!(
                "it has more than {MOST_SCHEMAS} schemas, or nests them deeper than {MOST_NESTING}"
            )));
        }
        let Value::Object(fields) = schema else {
            return match schema {
                Value::Bool(_) => Ok(()),
                _ => Err(ConstraintError::Refused {
                    keyword: None,
                    pointer: Some(format!("#{}", place.pointer)),
                    message: "a schema must be an object, 'true' or 'false'".to_owned(),
                }),
            };
        };
        if let Some(keyword) = MISSING
            .iter()
            .find(|keyword| fields.contains_key(**keyword))
        {
            return Err(place.refuse(
                keyword,
                format!("the keyword '{keyword}' is not supported; leave it out"),
            ));
        }
        if let Some((keyword, wanted)) = types::wrong(fields) {
            return Err(place.refuse(keyword, format!("'{keyword}' must be {wanted}")));
        }
        let literals = ["const", "enum"].into_iter();
        let literals = literals.filter(|keyword| fields.contains_key(*keyword));
        self.literals
            .extend(literals.map(|keyword| place.below(&[keyword]).pointer));
        self.numbers(fields, place)?;
        self.texts(fields, place)?;
        self.parts(fields, place)?;
        self.reference(fields, place)
    }

    fn numbers(
        &mut self,
        fields: &Map<String, Value>,
        place: &Place,
    ) -> Result<(), ConstraintError> {
        if let Some(count) = fields.get("enum").and_then(Value::as_array).map(Vec::len) {
            self.values += count;
        }
        let Some(Value::Number(multiple)) = fields.get("multipleOf") else {
            return Ok(());
        };
        let text = multiple.to_string();
        let digits: String = text.chars().filter(char::is_ascii_digit).collect();
        let digits = digits.trim_start_matches('0');
        let scaled: u64 = digits.parse().unwrap_or(0);
        if text.contains(['e', 'E', '-']) || scaled == 0 || scaled > MOST_MULTIPLE {
            return Err(place.refuse(
                "multipleOf",
                format!("a 'multipleOf' must be positive, with digits of at most {MOST_MULTIPLE}"),
            ));
        }
        self.multiples.insert(scaled);
        let all = self
            .multiples
            .iter()
            .fold(1, |all: u64, one| all.saturating_mul(*one));
        if all > MOST_MULTIPLES {
            return Err(place.refuse(
                "multipleOf",
                format!("all different 'multipleOf' together, multiplied, exceed {MOST_MULTIPLES}"),
            ));
        }
        Ok(())
    }

    fn texts(&mut self, fields: &Map<String, Value>, place: &Place) -> Result<(), ConstraintError> {
        if let Some(Value::String(format)) = fields.get("format")
            && could_be(fields, "string")
        {
            if !formats::is_known(format) {
                let known = formats::names();
                let message = format!("the format '{format}' is not one of {known}");
                return Err(place.refuse("format", message));
            }
            if formats::is_own(format) {
                self.formats.insert(place.pointer.clone());
            }
        }
        let patterns = fields.get("patternProperties").and_then(Value::as_object);
        let patterns = patterns.into_iter().flat_map(Map::keys);
        let patterns = patterns.map(|pattern| ("patternProperties", pattern.as_str()));
        let own = fields.get("pattern").and_then(Value::as_str);
        for (keyword, pattern) in own.map(|own| ("pattern", own)).into_iter().chain(patterns) {
            regex(pattern).map_err(|message| place.refuse(keyword, message))?;
        }
        Ok(())
    }

    /// Refuses a reference to a schema inside a value, if its format is to be written out: the
    /// value would change with it.
    fn no_format_in_values(&self) -> Result<(), ConstraintError> {
        let is_inside = |pointer: &String, literal: &String| {
            let rest = pointer.strip_prefix(literal.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let mut literals = self.literals.iter();
        let around = literals.find(|literal| {
            let mut formats = self.formats.iter();
            formats.any(|pointer| is_inside(pointer, literal))
        });
        around.map_or(Ok(()), |literal| {
            Err(ConstraintError::Refused {
                keyword: Some("$ref".to_owned()),
                pointer: Some(format!("#{literal}")),
                message: "a reference leads into a value; put the schema into '$defs'".to_owned(),
            })
        })
    }

    /// Checks the schemas inside.
    fn parts(&mut self, fields: &Map<String, Value>, place: &Place) -> Result<(), ConstraintError> {
        let required = fields.get("required").and_then(Value::as_array);
        self.names += required.map_or(0, Vec::len);
        for (keyword, most) in [
            ("properties", MOST_PROPERTIES),
            ("patternProperties", MOST_PATTERNS),
        ] {
            let Some(Value::Object(properties)) = fields.get(keyword) else {
                continue;
            };
            self.names += properties.len();
            if properties.len() > most || self.names > MOST_NAMES {
                return Err(place.refuse(
                    keyword,
                    format!(
                        "the object has {} of them, and all objects have {} names so far; the \
                         limits are {most} and {MOST_NAMES}",
                        properties.len(),
                        self.names
                    ),
                ));
            }
            for (name, schema) in properties {
                self.schema(schema, &place.below(&[keyword, name]))?;
            }
        }
        for keyword in ["allOf", "anyOf", "oneOf", "prefixItems"] {
            let schemas = fields.get(keyword).and_then(Value::as_array);
            for (at, schema) in schemas.into_iter().flatten().enumerate() {
                self.schema(schema, &place.below(&[keyword, &at.to_string()]))?;
            }
        }
        for keyword in ["items", "additionalItems", "additionalProperties"] {
            match fields.get(keyword) {
                Some(Value::Array(schemas)) => {
                    for (at, schema) in schemas.iter().enumerate() {
                        self.schema(schema, &place.below(&[keyword, &at.to_string()]))?;
                    }
                }
                Some(schema) => self.schema(schema, &place.below(&[keyword]))?,
                None => {}
            }
        }
        Ok(())
    }

    fn reference(
        &mut self,
        fields: &Map<String, Value>,
        place: &Place,
    ) -> Result<(), ConstraintError> {
        let Some(Value::String(reference)) = fields.get("$ref") else {
            return Ok(());
        };
        let target = words::target(self.root, reference).ok_or_else(|| {
            place.refuse(
                "$ref",
                format!("there is no '{reference}'; only references into the schema itself, such as \"#/$defs/name\", are supported"),
            )
        })?;
        if self.followed.insert(reference.clone()) {
            let pointer = reference.trim_start_matches('#').to_owned();
            let depth = place.depth + 1;
            self.schema(target, &Place { pointer, depth })?;
        }
        Ok(())
    }
}

/// Returns a schema in the form of an object: `true` allows all.
fn as_object(schema: Value) -> Option<Value> {
    match schema {
        Value::Bool(true) => Some(Value::Object(serde_json::Map::new())),
        Value::Object(_) => Some(schema),
        _ => None,
    }
}
