//! Instances as texts.

use serde_json::{Map, Value};

/// Writes a value as Python's `json.dumps` does: with a blank behind commas and colons.
pub fn spaced(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(spaced).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(fields) => {
            let field = |(key, value)| format!("{}: {}", Value::from(key), spaced(value));
            let fields = fields
                .iter()
                .map(|(key, value)| field((key.as_str(), value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        plain => plain.to_string(),
    }
}

/// Returns the instance with the properties of each object in the order of the schema, others
/// behind them, as far as `properties`, `items`, `allOf` and references within `root` tell it.
pub fn in_order(root: &Value, schema: &Value, instance: &Value) -> Value {
    let schema = resolved(root, schema);
    match instance {
        Value::Object(fields) => {
            let mut names = Vec::new();
            listed(root, schema, &mut names, 0);
            let below = |name: &str, value| {
                let own = names.iter().find(|(known, _)| known == name);
                let own = own.map(|(_, own)| own).or_else(|| others(schema));
                own.map_or_else(|| Value::clone(value), |own| in_order(root, own, value))
            };
            let known = names
                .iter()
                .filter_map(|(name, _)| Some((name, fields.get(name)?)));
            let mut ordered: Map<_, _> = known
                .map(|(name, value)| (name.clone(), below(name, value)))
                .collect();
            for (name, value) in fields {
                ordered
                    .entry(name.clone())
                    .or_insert_with(|| below(name, value));
            }
            Value::Object(ordered)
        }
        Value::Array(items) => {
            let inner = |item| match &schema["items"] {
                own @ Value::Object(_) => in_order(root, own, item),
                _ => Value::clone(item),
            };
            items.iter().map(inner).collect()
        }
        plain => plain.clone(),
    }
}

/// Returns the schema of properties that have no name of their own, as far as there is one.
fn others(schema: &Value) -> Option<&Value> {
    let patterns = schema["patternProperties"].as_object();
    let first = patterns.and_then(|patterns| patterns.values().next());
    first.or_else(|| schema.get("additionalProperties"))
}

/// Follows a reference into the schema itself.
fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let reference = schema["$ref"]
        .as_str()
        .and_then(|text| text.strip_prefix('#'));
    reference
        .and_then(|path| root.pointer(path))
        .unwrap_or(schema)
}

/// Lists the properties that a schema describes, in its order.
fn listed(root: &Value, schema: &Value, names: &mut Vec<(String, Value)>, depth: usize) {
    let schema = resolved(root, schema);
    if depth > 8 {
        return;
    }
    let own = schema["properties"].as_object();
    for (name, own) in own.into_iter().flatten() {
        if !names.iter().any(|(known, _)| known == name) {
            names.push((name.clone(), own.clone()));
        }
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        let name = name.as_str().unwrap_or_default();
        if !names.iter().any(|(known, _)| known == name) {
            names.push((name.to_owned(), Value::Bool(true)));
        }
    }
    for part in ["allOf", "anyOf", "oneOf"] {
        for own in schema[part].as_array().into_iter().flatten() {
            listed(root, own, names, depth + 1);
        }
    }
}
