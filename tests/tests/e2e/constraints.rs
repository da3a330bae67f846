//! Outputs that are held to a schema, an expression or a list, by every API.

use futures::StreamExt as _;
use lockstep_proto::pb::lockstep::{
    Choices,
    generate_request::{Constraint, Input},
};
use lockstep_tests::{
    body::{chat, completion},
    turns,
};
use serde_json::{Value, json};

use crate::{grpc::greedy, shared};

const CHAT: &str = "/v1/chat/completions";

/// Fields of a request, and a check of its text.
type Case<'a> = (Value, &'a dyn Fn(&Value));

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": false,
    })
}

fn check(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(
        value.as_object().map(serde_json::Map::len),
        Some(3),
        "{text}"
    );
    assert!(
        value["name"]
            .as_str()
            .is_some_and(|name| name.chars().count() <= 12)
    );
    assert!(
        value["age"].as_u64().is_some_and(|age| age <= 130),
        "{text}"
    );
    assert!(
        value["tags"].as_array().is_some_and(|tags| tags.len() <= 2),
        "{text}"
    );
}

fn format() -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "person", "strict": true,
        "schema": schema()}})
}

/// At every temperature, streamed or not, with one choice or several.
#[tokio::test]
async fn chats_answer_in_the_schema_that_they_are_given() {
    let (_turn, server) = (turns::shared().await, shared().await);
    for temperature in [0.0, 1.0, 2.0] {
        let fields = json!({"temperature": temperature, "seed": 3, "max_tokens": 400,
            "response_format": format(), "n": 2, "logprobs": true});
        let body = chat("Who are you?", &fields);
        let answer = server.ok(CHAT, &body).await;
        let mut texts = Vec::new();
        for choice in answer["choices"].as_array().expect("choices") {
            assert_eq!(choice["finish_reason"], "stop", "{choice}");
            let text = choice["message"]["content"].as_str().expect("a text");
            check(text);
            texts.push(text.to_owned());
            // Probabilities are the model's own.
            let logprobs = choice["logprobs"]["content"].as_array().expect("some");
            assert!(
                logprobs
                    .iter()
                    .all(|one| one["logprob"].as_f64() <= Some(0.0))
            );
        }
        let mut body = body;
        body["stream"] = json!(true);
        let mut streamed = vec![String::new(); 2];
        for chunk in server.stream(CHAT, &body).await.chunks().await {
            for choice in chunk["choices"].as_array().expect("choices") {
                let at = choice["index"].as_u64().expect("an index") as usize;
                streamed[at] += choice["delta"]["content"].as_str().unwrap_or_default();
            }
        }
        assert_eq!(streamed, texts);
    }
}

#[tokio::test]
async fn every_spelling_is_obeyed() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let yes_or_no = |text: &Value| assert!(["yes", "no"].contains(&text.as_str().unwrap_or("")));
    let digits = |text: &Value| {
        let text = text.as_str().unwrap_or_default();
        assert!(
            text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_digit()),
            "{text}"
        );
    };
    let object = |text: &Value| check(text.as_str().unwrap_or_default());
    let whole = schema();
    let cases: [Case<'_>; 7] = [
        (json!({"guided_choice": ["yes", "no"]}), &yes_or_no),
        (
            json!({"structured_outputs": {"choice": ["yes", "no"]}}),
            &yes_or_no,
        ),
        (json!({"guided_regex": "[0-9]{4}"}), &digits),
        (json!({"regex": r"^\d{4}$"}), &digits),
        (json!({"guided_json": whole}), &object),
        (json!({"json_schema": whole.to_string()}), &object),
        (
            json!({"structured_outputs": {"json": whole, "disable_any_whitespace": true}}),
            &object,
        ),
    ];
    for (mut fields, check) in cases {
        fields["max_tokens"] = json!(300);
        let answer = server
            .ok("/v1/completions", &completion("It is", &fields))
            .await;
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{fields}");
        check(&answer["choices"][0]["text"]);
        let answer = server.ok(CHAT, &chat("What is it?", &fields)).await;
        check(&answer["choices"][0]["message"]["content"]);
    }
    let params = json!([{"regex": "[0-9]{4}", "temperature": 1, "max_new_tokens": 300},
        {"json_schema": whole.to_string(), "temperature": 0, "max_new_tokens": 300}]);
    let body = json!({"text": ["It is", "It is"], "sampling_params": params});
    let answer = server.ok("/generate", &body).await;
    digits(&answer[0]["text"]);
    object(&answer[1]["text"]);
    let object = json!({"response_format": {"type": "json_object"}, "max_tokens": 300});
    let answer = server.ok(CHAT, &chat("Say something.", &object)).await;
    let choice = &answer["choices"][0];
    let text = choice["message"]["content"].as_str().expect("a text");
    let ended = choice["finish_reason"] == "stop";
    assert!(text.starts_with('{'), "{text}");
    assert_eq!(serde_json::from_str::<Value>(text).is_ok(), ended, "{text}");
}

#[tokio::test]
async fn grpc_has_constraints_too() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let texts = ["yes", "no"].map(str::to_owned).to_vec();
    for (constraint, good) in [
        (
            Constraint::JsonSchema(r#"{"type": "boolean"}"#.to_owned()),
            ["true", "false"],
        ),
        (Constraint::Regex("a|b".to_owned()), ["a", "b"]),
        (Constraint::Choice(Choices { texts }), ["yes", "no"]),
    ] {
        let mut request = greedy(Input::Text("It is".to_owned()), 20);
        request.constraint = Some(constraint);
        let mut client = server.inference().await;
        let stream = client.generate(request).await.expect("accepted");
        let messages = stream
            .into_inner()
            .map(|message| message.expect("a message").text);
        let text = messages.collect::<Vec<_>>().await.concat();
        assert!(good.contains(&text.as_str()), "{text}");
    }
}

/// The error names the field, the keyword and its place.
#[tokio::test]
async fn a_schema_that_is_not_obeyed_is_refused_before_it_queues() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let own = json!({"type": "object", "properties": {"a": {"uniqueItems": true}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": own}});
    let body = chat("Hello", &json!({"response_format": format}));
    let answer = server.post(CHAT, &body).await;
    assert_eq!(answer.status, 400);
    let error = answer.error();
    assert_eq!(error["param"], "response_format");
    assert_eq!(
        error["message"],
        "Invalid JSON schema for 'response_format': at \"#/properties/a\": the keyword \
         'uniqueItems' is not supported; leave it out."
    );
}
