//! Request bodies.

use serde_json::{Value, json};

use crate::MODEL;

/// The demo model's greedy answer to [`counting`].
pub const COUNTED: &str = "3, 4, 5, 6, 7, 8, 9, 10, 11, 12";

/// Returns a greedy chat that counts from 3 to 12, with `fields` added.
pub fn counting(fields: &Value) -> Value {
    chat("Count from 3 to 12.", fields)
}

/// Returns a greedy chat of one message, with `fields` added.
pub fn chat(content: &str, fields: &Value) -> Value {
    let message = json!({"role": "user", "content": content});
    let body = json!({"model": MODEL, "messages": [message], "temperature": 0});
    with(body, fields)
}

/// Returns a greedy completion, with `fields` added.
pub fn completion(prompt: impl Into<Value>, fields: &Value) -> Value {
    let body = json!({"model": MODEL, "prompt": prompt.into(), "temperature": 0});
    with(body, fields)
}

/// Returns `base` with the fields of `fields`; null removes a field.
///
/// # Panics
/// Panics if one of them is no object.
pub fn with(mut base: Value, fields: &Value) -> Value {
    let (Some(into), Some(fields)) = (base.as_object_mut(), fields.as_object()) else {
        panic!("not objects");
    };
    for (name, value) in fields {
        if value.is_null() {
            into.remove(name);
        } else {
            into.insert(name.clone(), value.clone());
        }
    }
    base
}
