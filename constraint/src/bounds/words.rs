//! Refusal of schemas without instances: an object that requires itself never ends.

use serde_json::{Map, Value};

use crate::ConstraintError;

/// Most schemas that are looked at, each as often as it is referred to.
const MOST_LOOKS: usize = 20_000;

/// Types of instances without parts.
const PLAIN: [&str; 5] = ["string", "number", "integer", "boolean", "null"];

/// Refuses a schema whose instances would all be infinite.
pub(super) fn has_instance(root: &Value) -> Result<(), ConstraintError> {
    let mut search = Search {
        root,
        open: Vec::new(),
        looks: 0,
    };
    let ends = search.ends(root);
    if search.looks > MOST_LOOKS {
        return Err(ConstraintError::refused(
            "its references are too many to follow; simplify it",
        ));
    }
    if !ends {
        return Err(ConstraintError::Refused {
            keyword: Some("$ref".to_owned()),
            pointer: None,
            message: "it has no instance that ends: a '$ref' leads back to its own schema, with \
                      no way around; let a property on the way be absent, or an array be empty"
                .to_owned(),
        });
    }
    Ok(())
}

/// Returns the schema that a reference points to.
pub(super) fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let pointer = reference.strip_prefix('#')?;
    // What has to be escaped is read in several ways.
    let parts = pointer.strip_prefix('/').unwrap_or_default().split('/');
    let plain = |part: &str| !part.is_empty() && !part.contains(['~', '%', '#']);
    if !pointer.is_empty() && !parts.into_iter().all(plain) {
        return None;
    }
    root.pointer(pointer)
        .filter(|target| target.is_object() || target.is_boolean())
}

struct Search<'a> {
    root: &'a Value,
    /// References that are followed now. An instance that ends needs none of them twice.
    open: Vec<&'a str>,
    looks: usize,
}

impl<'a> Search<'a> {
    /// Returns true if some instance of `schema` is finite, as far as references decide it.
    fn ends(&mut self, schema: &'a Value) -> bool {
        self.looks += 1;
        let Value::Object(fields) = schema else {
            return *schema != Value::Bool(false);
        };
        if self.looks > MOST_LOOKS {
            return true;
        }
        if let Some(Value::String(reference)) = fields.get("$ref") {
            if self.open.contains(&reference.as_str()) {
                return false;
            }
            let Some(target) = target(self.root, reference) else {
                return true;
            };
            self.open.push(reference);
            let ends = self.ends(target);
            self.open.pop();
            if !ends {
                return false;
            }
        }
        let list = |keyword| fields.get(keyword).and_then(Value::as_array);
        let all = list("allOf")
            .into_iter()
            .flatten()
            .all(|schema| self.ends(schema));
        let any = |schemas: Option<&'a Vec<Value>>, search: &mut Self| match schemas {
            Some(schemas) => schemas.iter().any(|schema| search.ends(schema)),
            None => true,
        };
        all && any(list("anyOf"), self) && any(list("oneOf"), self) && self.parts_end(fields)
    }

    /// Returns true if instances that are no containers are possible, or the parts that a
    /// container must have end.
    fn parts_end(&mut self, fields: &'a Map<String, Value>) -> bool {
        let given = fields.contains_key("const") || fields.contains_key("enum");
        if given || PLAIN.iter().any(|kind| could_be(fields, kind)) {
            return true;
        }
        could_be(fields, "object") && self.object_ends(fields)
            || could_be(fields, "array") && self.array_ends(fields)
    }

    fn object_ends(&mut self, fields: &'a Map<String, Value>) -> bool {
        let required = fields.get("required").and_then(Value::as_array);
        let mut names = required.into_iter().flatten().filter_map(Value::as_str);
        names.all(|name| {
            let own = fields.get("properties").and_then(|own| own.get(name));
            let other = fields.get("additionalProperties");
            own.or(other).is_none_or(|schema| self.ends(schema))
        })
    }

    fn array_ends(&mut self, fields: &'a Map<String, Value>) -> bool {
        let least = fields.get("minItems").and_then(Value::as_u64).unwrap_or(0);
        let (first, rest) = match fields.get("items") {
            Some(Value::Array(first)) => (Some(first), fields.get("additionalItems")),
            rest => (fields.get("prefixItems").and_then(Value::as_array), rest),
        };
        let mut first = first.into_iter().flatten();
        let mut left = least;
        while left > 0
            && let Some(schema) = first.next()
        {
            if !self.ends(schema) {
                return false;
            }
            left -= 1;
        }
        left == 0 || rest.is_none_or(|schema| self.ends(schema))
    }
}

/// Returns true if instances of this type fulfil the schema's `type`.
pub(super) fn could_be(fields: &Map<String, Value>, kind: &str) -> bool {
    match fields.get("type") {
        Some(Value::String(only)) => only == kind,
        Some(Value::Array(kinds)) => kinds.iter().any(|other| other == kind),
        _ => true,
    }
}
