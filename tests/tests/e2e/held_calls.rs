//! Tool calls that a grammar holds a model to, of tools that it does not know: with ranks and
//! drafts, and without, streamed or not.

use std::{fs, path::Path};

use lockstep_tests::{
    MODEL,
    body::{chat, with},
    server::Server,
    turns,
};
use serde_json::{Value, json};

use crate::{options, weights::copy_demo};

const CHAT: &str = "/v1/chat/completions";

/// Template that shows tools, and Hermes's marks.
const TEMPLATE: &str = "{%- for tool in tools or [] -%}{{ tool | tojson }}{%- endfor -%}
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>{{ call }}</tool_call>{% endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}";

/// Starts a server of this template, with these options.
async fn start(folder: &Path, drafts: &str) -> Server {
    let model = folder.join(format!("tools-{drafts}"));
    copy_demo(&model);
    fs::write(model.join("chat_template.jinja"), TEMPLATE).expect("written");
    let options = options()
        .set("--model-path", model.to_str().expect("UTF-8"))
        .set("--served-model-name", MODEL)
        .set("--tp-size", "2")
        .set("--speculative-algorithm", drafts);
    Server::start(options).await
}

fn asked(fields: &Value) -> Value {
    let look = json!({"type": "function", "function": {"name": "look", "strict": true,
        "parameters": {"type": "object", "properties": {
            "place": {"type": "string", "maxLength": 8}, "days": {"enum": [1, 2]}},
            "required": ["place", "days"], "additionalProperties": false}}});
    let ping = json!({"type": "function", "function": {"name": "ping",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": false}}});
    let common = json!({"tools": [look, ping], "max_tokens": 400, "seed": 5});
    chat("Where is it?", &with(common, fields))
}

/// Checks the calls of an answer that was not cut, and returns them.
fn calls(message: &Value) -> Vec<(String, String)> {
    let calls = message["tool_calls"].as_array().expect("calls").iter();
    let calls = calls.map(|call| {
        let text = |field: &str| call["function"][field].as_str().expect("a text").to_owned();
        (text("name"), text("arguments"))
    });
    let calls: Vec<_> = calls.collect();
    for (name, arguments) in &calls {
        let value: Value = serde_json::from_str(arguments).expect("JSON");
        match name.as_str() {
            "look" => {
                assert!(
                    value["place"]
                        .as_str()
                        .is_some_and(|place| place.chars().count() <= 8)
                );
                assert!([json!(1), json!(2)].contains(&value["days"]), "{value}");
            }
            "ping" => assert_eq!(value, json!({})),
            other => panic!("there is no tool {other}"),
        }
    }
    calls
}

/// Joins the deltas of a streamed answer to a message.
async fn streamed(server: &Server, body: &Value) -> Value {
    let body = with(body.clone(), &json!({"stream": true}));
    let mut calls: Vec<Value> = Vec::new();
    for chunk in server.stream(CHAT, &body).await.chunks().await {
        for part in chunk["choices"][0]["delta"]["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let at = part["index"].as_u64().expect("an index") as usize;
            if at == calls.len() {
                calls
                    .push(json!({"function": {"name": part["function"]["name"], "arguments": ""}}));
            }
            let arguments = calls[at]["function"]["arguments"]
                .as_str()
                .unwrap_or_default();
            let more = part["function"]["arguments"].as_str().unwrap_or_default();
            calls[at]["function"]["arguments"] = json!(format!("{arguments}{more}"));
        }
    }
    json!({"tool_calls": calls})
}

#[tokio::test]
async fn a_model_calls_the_tools_that_it_must_with_ranks_and_drafts() {
    let _turn = turns::shared().await;
    let folder = tempfile::tempdir().expect("a folder");
    let (plain, drafting) =
        tokio::join!(start(folder.path(), "none"), start(folder.path(), "NGRAM"),);
    let named = json!({"type": "function", "function": {"name": "look"}});
    let single = json!({"tool_choice": "required", "parallel_tool_calls": false});
    let allowed = json!({"tool_choice": {"type": "allowed_tools", "allowed_tools":
        {"mode": "required", "tools": [named]}}, "parallel_tool_calls": false});
    for fields in [
        json!({"tool_choice": named}),
        single.clone(),
        with(single, &json!({"temperature": 1.5})),
        allowed,
    ] {
        let body = asked(&fields);
        let answer = plain.ok(CHAT, &body).await;
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        assert_eq!(choice["message"]["content"], Value::Null, "{answer}");
        let expected = calls(&choice["message"]);
        assert_eq!(expected.len(), 1, "{answer}");
        for server in [&plain, &drafting] {
            assert_eq!(calls(&streamed(server, &body).await), expected, "{fields}");
        }
        let answer = drafting.ok(CHAT, &body).await;
        assert_eq!(
            calls(&answer["choices"][0]["message"]),
            expected,
            "{fields}"
        );
    }
    // Text may stand around strict calls, and to this the model answers with text alone.
    let hello = json!([{"role": "user", "content": "Hello"}]);
    let body = asked(&json!({"temperature": 0, "messages": hello}));
    let texts = [plain.ok(CHAT, &body).await, drafting.ok(CHAT, &body).await];
    let [one, two] = texts.map(|answer| answer["choices"][0]["message"].clone());
    assert_eq!(one["content"], two["content"]);
    assert!(
        one["content"].as_str().is_some_and(|text| !text.is_empty()),
        "{one}"
    );
}

/// A call that the model chooses to make names a tool of the request, though this model has
/// learned to call another. Where the server leaves all to the model, it calls that one.
#[tokio::test]
async fn a_chosen_call_names_a_tool_of_the_request() {
    let _turn = turns::shared().await;
    let forecast = json!({"type": "function", "function": {"name": "forecast",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}});
    let fields = json!({"tools": [forecast], "temperature": 0});
    let body = chat("What is the weather in Karst?", &fields);
    for (level, name) in [("off", "get_weather"), ("function", "forecast")] {
        let options = options()
            .set("--tool-strict-level", level)
            .set("--speculative-algorithm", "NGRAM");
        let server = Server::start(options).await;
        let answer = server.ok(CHAT, &body).await;
        let message = &answer["choices"][0]["message"];
        let call = &message["tool_calls"][0]["function"];
        assert_eq!(call["name"], name, "{message}");
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().expect("a text"))
            .expect("a JSON object");
        assert!(arguments.is_object(), "{arguments}");
    }
}
