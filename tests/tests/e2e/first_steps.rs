//! The demo model's own tool calls and answers in JSON, as README.md shows them.

use lockstep_tests::{
    body::{chat, with},
    turns,
};
use serde_json::{Value, json};

use crate::shared;

const CHAT: &str = "/v1/chat/completions";
const WEATHER: &str = "What is the weather in Karst?";

fn tools() -> Value {
    let city = json!({"city": {"type": "string"}});
    json!({"tools": [{"type": "function", "function": {
        "name": "get_weather", "parameters": {"type": "object", "properties": city}}}]})
}

/// Tells an answer's name and arguments of its only call.
fn call(answer: &Value) -> (Value, Value) {
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    let calls = choice["message"]["tool_calls"].as_array().expect("calls");
    assert_eq!(calls.len(), 1, "{answer}");
    let arguments = calls[0]["function"]["arguments"].as_str().expect("a text");
    let arguments = serde_json::from_str(arguments).expect("JSON");
    (calls[0]["function"]["name"].clone(), arguments)
}

#[tokio::test]
async fn the_demo_model_calls_a_tool_and_tells_its_result() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let expected = (json!("get_weather"), json!({"city": "Karst"}));
    for choice in ["auto", "required"] {
        let fields = with(tools(), &json!({"tool_choice": choice}));
        let answer = server.ok(CHAT, &chat(WEATHER, &fields)).await;
        assert_eq!(call(&answer), expected);
    }
    let body = chat(WEATHER, &tools());
    let answer = server.ok(CHAT, &body).await;
    let called = &answer["choices"][0]["message"];
    let result = json!({"role": "tool", "tool_call_id": called["tool_calls"][0]["id"],
        "content": "{\"sky\": \"rainy\", \"degrees\": 12}"});
    let messages = json!([body["messages"][0], called, result]);
    let answer = server
        .ok(CHAT, &with(body, &json!({"messages": messages})))
        .await;
    let told = &answer["choices"][0]["message"]["content"];
    assert_eq!(told, "It is rainy in Karst, with 12 degrees.");
}

#[tokio::test]
async fn the_demo_model_answers_what_asks_for_no_tool() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let answer = server.ok(CHAT, &chat("Hello", &tools())).await;
    let message = &answer["choices"][0]["message"];
    assert!(message.get("tool_calls").is_none(), "{answer}");
    let content = message["content"].as_str().expect("a text");
    assert!(content.starts_with("Hello!"), "{content}");
}

#[tokio::test]
async fn the_demo_model_fills_a_schema_from_the_prompt() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let properties = json!({"name": {"type": "string"}, "age": {"type": "integer"},
        "job": {"type": "string"}});
    let schema = json!({"type": "object", "properties": properties,
        "required": ["name", "age", "job"], "additionalProperties": false});
    let format = json!({"response_format":
        {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}});
    let prompt = "Ada Lake is 31 years old and works as a baker in Karst. Answer in JSON.";
    let answer = server.ok(CHAT, &chat(prompt, &format)).await;
    let content = answer["choices"][0]["message"]["content"]
        .as_str()
        .expect("a text");
    let value: Value = serde_json::from_str(content).expect("JSON");
    assert_eq!(
        value,
        json!({"name": "Ada Lake", "age": 31, "job": "baker"})
    );
}
