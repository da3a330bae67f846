//! Slightly damaged requests.

use rand::{Rng, rngs::StdRng};
use serde_json::{Value, json};

use crate::body::{chat, completion};

/// Returns a random good request: method, path and body.
fn good(random: &mut StdRng) -> (&'static str, &'static str, Value) {
    let few = json!({"max_tokens": 4});
    let streamed = json!({
        "max_tokens": 4, "stream": true, "stream_options": {"include_usage": true},
        "stop": ["x"], "seed": 7, "temperature": 0.5, "top_p": 0.9, "n": 2,
    });
    let described = json!({
        "max_tokens": 4, "logprobs": true, "top_logprobs": 2, "logit_bias": {"17": 1.5},
        "frequency_penalty": 0.5, "presence_penalty": 0.5, "user": "me",
    });
    let echoed = json!({"max_tokens": 2, "echo": true, "logprobs": 2, "suffix": null});
    let native = json!({
        "text": "1, 2, 3,", "rid": "mine", "return_logprob": true,
        "sampling_params": {"temperature": 0, "max_new_tokens": 4, "stop": ["x"]},
    });
    let many =
        json!({"input_ids": [[17, 18], [19]], "sampling_params": [{"max_new_tokens": 2}, {}]});
    let messages = json!({"messages": [{"role": "user", "content": "Hello."}]});
    let response = json!({
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hello."}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "a"}]},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "b"},
        ],
        "max_output_tokens": 4, "instructions": "a", "reasoning": {"effort": "low"},
        "tools": [{"type": "function", "name": "f", "parameters": {}}], "tool_choice": "none",
    });
    let message = json!({
        "max_tokens": 4, "system": [{"type": "text", "text": "a"}], "stop_sequences": ["x"],
        "messages": [
            {"role": "user", "content": "Hello."},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "a", "signature": "b"},
                {"type": "tool_use", "id": "a", "name": "f", "input": {"c": 1}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "b", "is_error": true},
            ]},
        ],
        "tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "none"},
        "thinking": {"type": "adaptive"},
    });
    let all = [
        ("POST", "/v1/chat/completions", chat("Hello.", &few)),
        ("POST", "/v1/chat/completions", chat("Hello.", &streamed)),
        ("POST", "/v1/chat/completions", chat("Hello.", &described)),
        ("POST", "/v1/completions", completion("1, 2,", &few)),
        (
            "POST",
            "/v1/completions",
            completion(vec![17, 18, 19], &echoed),
        ),
        ("POST", "/generate", native),
        ("POST", "/generate", many),
        ("POST", "/tokenize", messages),
        ("POST", "/detokenize", json!({"tokens": [17, 18, 19]})),
        (
            "POST",
            "/v1/responses",
            json!({"input": "Hello.", "max_output_tokens": 4, "stream": true}),
        ),
        ("POST", "/v1/responses", response),
        ("POST", "/v1/messages", message),
        ("GET", "/v1/loads?include=core", Value::Null),
        ("GET", "/v1/models", Value::Null),
    ];
    let at = random.random_range(0..all.len());
    all.into_iter().nth(at).expect("one of them")
}

/// Returns a random value of an unexpected kind.
fn odd(random: &mut StdRng) -> Value {
    let all = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(0.5),
        json!(1e308),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(""),
        json!("\u{0}\u{ffff}é"),
        json!("a".repeat(2000)),
        json!([]),
        json!([[], [null]]),
        json!({}),
        json!({"": {"": []}}),
        json!({"type": "text", "text": "a"}),
    ];
    let at = random.random_range(0..all.len());
    all.into_iter().nth(at).expect("one of them")
}

/// Lists the pointers to all values of a tree (RFC 6901).
fn pointers(value: &Value, at: String, all: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                pointers(value, format!("{at}/{name}"), all);
            }
        }
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                pointers(value, format!("{at}/{index}"), all);
            }
        }
        _ => {}
    }
    all.push(at);
}

/// Removes a value, replaces it, or adds another to a list.
fn change(body: &mut Value, random: &mut StdRng) {
    let mut all = Vec::new();
    pointers(body, String::new(), &mut all);
    let at = &all[random.random_range(0..all.len())];
    let (parent, name) = at.rsplit_once('/').unwrap_or_default();
    let taken = random.random_bool(0.25);
    match body.pointer_mut(parent) {
        Some(Value::Object(fields)) if taken => drop(fields.remove(name)),
        Some(Value::Array(values)) => {
            let other = odd(random);
            values.push(other);
        }
        _ => {
            if let Some(value) = body.pointer_mut(at) {
                *value = odd(random);
            }
        }
    }
}

/// Damages bytes: flips, inserts, cuts or repeats some.
pub fn damage(bytes: &mut Vec<u8>, random: &mut StdRng) {
    if bytes.is_empty() {
        return;
    }
    let at = random.random_range(0..bytes.len());
    match random.random_range(0..4) {
        0 => bytes[at] ^= 1 << random.random_range(0..8),
        1 => bytes.insert(at, random.random()),
        2 => bytes.truncate(at),
        _ => {
            let end = (at + random.random_range(1..40)).min(bytes.len());
            let again = bytes[at..end].to_vec();
            bytes.splice(at..at, again);
        }
    }
}

/// Returns a damaged HTTP/1.1 request on a connection of its own. The second value is
/// true if it is still HTTP with a complete body.
pub fn request(random: &mut StdRng) -> (Vec<u8>, bool) {
    let (mut method, path, mut body) = good(random);
    let kind = random.random_range(0..8);
    if kind < 5 {
        for _ in 0..random.random_range(1..4) {
            change(&mut body, random);
        }
    }
    let mut bytes = match body {
        Value::Null => Vec::new(),
        body => body.to_string().into_bytes(),
    };
    let length = bytes.len();
    if kind >= 3 {
        damage(&mut bytes, random);
    }
    // The length announced is the good body's, or the length that is sent.
    let length = if random.random_bool(0.05) {
        length
    } else {
        bytes.len()
    };
    if kind == 6 {
        let methods = ["PUT", "GET", "DELETE", "OPTIONS", "HEAD", "PATCH", "x"];
        method = methods[random.random_range(0..methods.len())];
    }
    let types = ["application/json", "text/plain", "", "application/grpc"];
    let other = kind == 7 && random.random_bool(0.5);
    let content = types[if other {
        random.random_range(1..types.len())
    } else {
        0
    }];
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\
         content-type: {content}\r\ncontent-length: {length}\r\n\r\n"
    )
    .into_bytes();
    let whole = length == bytes.len() && kind != 7;
    if kind == 7 {
        damage(&mut head, random);
    }
    ([head, bytes].concat(), whole)
}
