//! Outputs that are held to a schema, an expression or a list, by every API.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use futures::StreamExt as _;
use lockstep_proto::pb::lockstep::{
    Choices,
    generate_request::{Constraint, Input},
};
use lockstep_tests::{
    body::{COUNTED, chat, completion, counting},
    metrics::Metrics,
    server::Server,
    sse::{self, Event},
    turns,
    wait::{LIMIT, until},
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
    let tagged = |text: &Value| {
        let text = text.as_str().unwrap_or_default();
        assert!(
            text == "<f=a>true</f>" || text == "<f=a>false</f>",
            "{text}"
        );
    };
    let flags = json!({"at_least_one": true, "stop_after_first": true});
    let mut tag = json!({"type": "triggered_tags", "triggers": ["<f="], "tags": [{"begin": "<f=a>",
        "content": {"type": "json_schema", "json_schema": {"type": "boolean"}}, "end": "</f>"}]});
    for (flag, value) in flags.as_object().expect("flags") {
        tag[flag] = value.clone();
    }
    let tag = json!({"type": "structural_tag", "format": tag});
    let cases: [Case<'_>; 10] = [
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
        (json!({"response_format": tag}), &tagged),
        (json!({"structural_tag": tag.to_string()}), &tagged),
        (
            json!({"structured_outputs": {"structural_tag": tag}}),
            &tagged,
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
        {"json_schema": whole.to_string(), "temperature": 0, "max_new_tokens": 300},
        {"structural_tag": tag.to_string(), "temperature": 2, "max_new_tokens": 300}]);
    let body = json!({"text": vec!["It is"; 3], "sampling_params": params});
    let answer = server.ok("/generate", &body).await;
    digits(&answer[0]["text"]);
    object(&answer[1]["text"]);
    tagged(&answer[2]["text"]);
    let object = json!({"response_format": {"type": "json_object"}, "max_tokens": 300});
    let answer = server.ok(CHAT, &chat("Say something.", &object)).await;
    let choice = &answer["choices"][0];
    let text = choice["message"]["content"].as_str().expect("a text");
    let ended = choice["finish_reason"] == "stop";
    assert!(text.starts_with('{'), "{text}");
    assert_eq!(serde_json::from_str::<Value>(text).is_ok(), ended, "{text}");
}

/// Text is free in a structural tag of the older form, but for what its triggers begin.
#[tokio::test]
async fn free_text_has_no_trigger_but_those_of_tags() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let tag = json!({"type": "structural_tag", "triggers": ["1", "a"], "structures": [
        {"begin": "1-", "schema": {"type": "boolean"}, "end": "."},
        {"begin": "a-", "schema": {"enum": ["x"]}, "end": "."}]});
    let calls = ["1-true.", "1-false.", "a-\"x\"."];
    for temperature in [0.0, 1.0] {
        let fields = json!({"response_format": tag, "max_tokens": 60, "temperature": temperature,
            "seed": 7});
        let answer = server.ok(CHAT, &chat("Count.", &fields)).await;
        let text = answer["choices"][0]["message"]["content"]
            .as_str()
            .expect("a text");
        let mut rest = text;
        while let Some(at) = rest.find(['1', 'a']) {
            let call = &rest[at..];
            let begun = calls
                .iter()
                .find(|one| call.starts_with(**one) || one.starts_with(call));
            let begun = begun.unwrap_or_else(|| panic!("{text}"));
            rest = call.get(begun.len()..).unwrap_or_default();
        }
    }
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
        (
            Constraint::Grammar("root ::= \"c\" | \"d\"".to_owned()),
            ["c", "d"],
        ),
        (
            Constraint::Grammar("start: \"e\" | \"f\"".to_owned()),
            ["e", "f"],
        ),
        (
            Constraint::StructuralTag(
                r#"{"format": {"type": "tag", "begin": "<", "content": {"type": "regex",
                    "pattern": "[gh]"}, "end": ">"}}"#
                    .to_owned(),
            ),
            ["<g>", "<h>"],
        ),
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

/// The cost of constraints is told, and the number of refused ones.
#[tokio::test]
async fn constraints_are_counted() {
    let (_turn, server) = (turns::alone().await, shared().await);
    // On a busy machine the depth may fall to none, and then no draft is cut.
    server.ok("/speculation", &json!({"depth": 3})).await;
    let before = server.metrics().await;
    let fields = json!({"max_tokens": 90, "n": 2, "temperature": 1, "seed": 4,
        "guided_regex": "[0-9]{2}, [0-9]{2}, [0-9]{2}, (one|two|three)"});
    let body = completion("1, 2, 3, 4, 5, 6, 7,", &fields);
    let path = "/v1/completions";
    for _ in 0..2 {
        server.ok(path, &body).await;
    }
    let mut refused = body;
    refused["guided_regex"] = json!("(?=a)");
    assert_eq!(server.post(path, &refused).await.status, 400);
    let after = server.metrics().await;
    server.ok("/speculation", &json!({})).await;
    let grown = |name: &str, labels: &[(&str, &str)]| {
        let name = format!("lockstep_{name}");
        let value = |metrics: &Metrics| match labels {
            [] => metrics.sum(&name),
            labels => metrics.sum_with(&name, labels),
        };
        value(&after) - value(&before)
    };
    let compiles = "front_constraint_compile_seconds_count";
    assert_eq!(grown(compiles, &[("kind", "regex")]), 2.0, "one is refused");
    assert_eq!(grown("front_constraint_cache_hits_total", &[]), 1.0);
    let reasons = [("reason", "text")];
    assert_eq!(grown("front_constraints_refused_total", &reasons), 1.0);
    assert_eq!(grown("constraint_compiles_total", &[]), 1.0);
    assert_eq!(grown("constraint_cache_hits_total", &[]), 3.0);
    let tokens = grown("generated_tokens_total", &[]);
    let masks = grown("constraint_masks_total", &[]);
    // One for each token, and those of walks along drafts: in a step up to two walks, each with a
    // mask for each of the demo's 3 drafts and one behind them.
    assert!(
        masks > 4.0 && masks <= 9.0 * tokens,
        "{masks} for {tokens} tokens"
    );
    assert!(grown("constraint_mask_seconds_total", &[]) > 0.0);
    // The model counts on.
    assert!(grown("constraint_cut_drafts_total", &[]) > 0.0);
    assert_eq!(grown("constraint_failures_total", &[]), 0.0);
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

/// A constraint that costs much, and the status that its request gets.
fn hostile() -> Vec<(&'static str, Value, u16)> {
    let nested = |levels| (0..levels).fold(json!({}), |inner, _| json!({"items": inner}));
    let doubled = (0..14).fold(
        json!({"type": "integer"}),
        |inner, _| json!({"anyOf": [inner, {"type": "array", "items": inner}]}),
    );
    let optional = |count: usize| -> Value {
        let each = (0..count).map(|at| (format!("p{at}"), json!({"type": "integer"})));
        json!({"type": "object", "properties": each.collect::<serde_json::Map<_, _>>()})
    };
    let values: Vec<_> = (0..5000).map(|at| format!("v{at}")).collect();
    let crossed: Vec<_> = ["a", "b", "c"]
        .map(|letter| json!({"pattern": format!(".*{letter}.*")}))
        .into();
    vec![
        ("regex", json!("(a|aa)+b"), 200),
        ("regex", json!("(a*)*b"), 200),
        ("regex", json!("(x+x+)+y"), 200),
        ("regex", json!("(.|\\n)*a(.|\\n){20}"), 200),
        ("regex", json!("(.|\\n)*a(.|\\n){200}"), 200),
        ("regex", json!("((a{0,100}){0,100}){0,100}"), 400),
        ("regex", json!("\\w{50,1000}"), 200),
        ("json_schema", json!({"enum": values}), 400),
        ("json_schema", optional(200), 200),
        ("json_schema", optional(1000), 400),
        ("json_schema", json!({"multipleOf": 7919}), 400),
        ("json_schema", json!({"multipleOf": 999_983}), 400),
        (
            "structured_outputs",
            json!({"grammar": "s: s s | \"a\""}),
            400,
        ),
        (
            "json_schema",
            json!({"type": "string", "minLength": 9, "allOf": crossed}),
            400,
        ),
        ("json_schema", nested(400), 400),
        (
            "json_schema",
            json!({"type": "array", "minItems": 100_000}),
            200,
        ),
        (
            "json_schema",
            json!({"type": "string", "minLength": 1_000_000}),
            200,
        ),
        ("json_schema", doubled, 400),
        ("json_schema", json!({"$ref": "#"}), 400),
    ]
}

/// Streams the same chat again and again, until `stop`. Each has the same text, and `chunks`
/// counts what came.
async fn neighbour(server: Arc<Server>, chunks: Arc<AtomicUsize>, stop: Arc<AtomicBool>) {
    let body = counting(&json!({"stream": true, "max_tokens": 60}));
    while !stop.load(Ordering::SeqCst) {
        let mut events = server.stream(CHAT, &body).await;
        let mut came = Vec::new();
        while let Event::Json(chunk) = events.next().await {
            came.push(chunk);
            chunks.fetch_add(1, Ordering::SeqCst);
        }
        assert_eq!(sse::text(&came, 0), COUNTED);
    }
}

/// Whatever a constraint costs, its request is answered, and a stream beside it goes on, with its
/// text unchanged.
#[tokio::test]
async fn hostile_constraints_disturb_no_neighbour() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let (chunks, stop) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let beside = neighbour(server.clone(), chunks.clone(), stop.clone());
    let beside = tokio::spawn(beside);
    for (field, constraint, status) in hostile() {
        let mut fields = json!({"max_tokens": 24, "temperature": 1, "seed": 1});
        fields[field] = constraint.clone();
        let before = chunks.load(Ordering::SeqCst);
        let body = completion("It is", &fields);
        let answer = server.post("/v1/completions", &body).await;
        let shown: String = constraint.to_string().chars().take(90).collect();
        assert_eq!(answer.status, status, "{shown}: {}", answer.text);
        until("the neighbour's next token", LIMIT, async || {
            (chunks.load(Ordering::SeqCst) > before).then_some(())
        })
        .await;
    }
    stop.store(true, Ordering::SeqCst);
    beside.await.expect("the neighbour's texts are its own");
}
