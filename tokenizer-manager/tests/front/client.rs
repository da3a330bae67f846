//! Requests in the form that clients send.

use serde_json::{Value, json};

use super::harness::{Front, MODEL};

/// Returns the events of a stream, without `data: `.
pub fn events(body: &str) -> Vec<String> {
    body.split_terminator("\n\n")
        .map(|event| {
            event
                .strip_prefix("data: ")
                .unwrap_or_else(|| panic!("no event: {event:?}"))
                .to_owned()
        })
        .collect()
}

/// Returns the events as JSON. The last event must be `[DONE]` and is left out.
pub fn chunks(body: &str) -> Vec<Value> {
    let mut events = events(body);
    assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{body}");
    events
        .iter()
        .map(|event| serde_json::from_str(event).expect("json"))
        .collect()
}

/// Returns the events of a stream whose events have names. The data repeats the name.
pub fn named_events(body: &str) -> Vec<Value> {
    let event = |event: &str| {
        let (name, data) = event.split_once("\ndata: ").expect("a name and data");
        let data: Value = serde_json::from_str(data).expect("json");
        let name = name.strip_prefix("event: ").expect("a name");
        assert_eq!(data["type"], name, "{data}");
        data
    };
    body.split_terminator("\n\n").map(event).collect()
}

/// Returns the names of events.
pub fn names(events: &[Value]) -> Vec<&str> {
    let names = events.iter().map(|event| event["type"].as_str());
    names.map(|name| name.expect("a name")).collect()
}

/// Returns a chat request of one short message, with `fields` added.
pub fn chat(fields: &Value) -> Value {
    with(
        json!({"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}),
        fields,
    )
}

/// Returns a completions request of a short prompt, with `fields` added.
pub fn completion(fields: &Value) -> Value {
    with(json!({"model": MODEL, "prompt": "ab"}), fields)
}

/// Returns `base` with the fields of `fields`; null removes a field.
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

impl Front {
    /// Sends a POST, and returns status and body of the answer.
    pub async fn post(&self, path: &str, body: &Value) -> (u16, String) {
        let request = self.client.post(format!("{}{path}", self.url)).json(body);
        let response = request.send().await.expect("answered");
        let status = response.status().as_u16();
        (status, response.text().await.expect("body"))
    }

    /// Sends a GET, and returns status and body of the answer.
    pub async fn get(&self, path: &str) -> (u16, String) {
        let request = self.client.get(format!("{}{path}", self.url));
        let response = request.send().await.expect("answered");
        let status = response.status().as_u16();
        (status, response.text().await.expect("body"))
    }

    /// Sends a POST that must succeed, and returns the answer as JSON.
    pub async fn ok(&self, path: &str, body: &Value) -> Value {
        let (status, text) = self.post(path, body).await;
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).expect("json")
    }
}
