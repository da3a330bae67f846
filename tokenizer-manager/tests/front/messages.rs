//! `/v1/messages` and the count of its tokens: answers.

use lockstep_proto::pb::lockstep::FinishReason;
use serde_json::{Value, json};

use super::{
    answers::{Tools, start},
    client::{named_events, names, with},
    harness::MODEL,
    mock::{Job, tokens},
};

const MESSAGES: &str = "/v1/messages";

/// Returns a request of one short message, with `fields` added.
pub fn message(fields: &Value) -> Value {
    let messages = json!([{"role": "user", "content": "Hello"}]);
    with(
        json!({"model": MODEL, "max_tokens": 200, "messages": messages}),
        fields,
    )
}

fn tool(name: &str) -> Value {
    let place = json!({"place": {"type": "string"}});
    json!({"name": name, "input_schema": {"type": "object", "properties": place}})
}

/// Returns a request with two tools, and `fields` added.
fn asking(fields: &Value) -> Value {
    with(
        message(&json!({"tools": [tool("look"), tool("ping")]})),
        fields,
    )
}

const CALLS: &str = "Let me see.\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"place\": \"Köln \
                     <b>\", \"a\": [1]}}\n</tool_call>\n<tool_call>\n{\"name\": \"ping\"}\n</tool_call>";

/// Answers with these tokens in steps of `step`, and returns the body.
async fn stepped(tools: &Tools, body: &Value, output: &str, step: usize) -> String {
    let ids = tools.ids(output);
    let scheduler = async {
        let job = tools.front.mock.job().await;
        for ids in ids.chunks(step) {
            job.send(tokens(ids));
        }
        job.finish(FinishReason::Stop, 1);
    };
    let ((status, text), ()) = tokio::join!(tools.front.post(MESSAGES, body), scheduler);
    assert_eq!(status, 200, "{text}");
    text
}

async fn whole(tools: &Tools, body: &Value, output: &str) -> Value {
    serde_json::from_str(&stepped(tools, body, output, 1).await).expect("json")
}

/// Returns the prompt of a request, which is answered with "Ok".
async fn prompt(tools: &Tools, body: &Value) -> String {
    let scheduler = async {
        let job = tools.front.mock.job().await;
        tools.say(&job, "Ok", FinishReason::Stop);
        tools.prompt(&job)
    };
    tokio::join!(tools.front.ok(MESSAGES, body), scheduler).1
}

/// Joins the blocks of a stream, as clients do, and checks that they come one after the other.
fn joined(events: &[Value]) -> Vec<Value> {
    let mut blocks: Vec<Value> = Vec::new();
    let mut json = String::new();
    let mut open = false;
    for event in events {
        let index = event["index"].as_u64().map(|index| index as usize);
        let block = &event["content_block"];
        let delta = &event["delta"];
        match event["type"].as_str().expect("a name") {
            "content_block_start" => {
                assert!(!open && index == Some(blocks.len()), "{event}");
                open = true;
                blocks.push(block.clone());
                continue;
            }
            "content_block_delta" | "content_block_stop" => {
                assert!(open && index == Some(blocks.len() - 1), "{event}");
            }
            _ => continue,
        }
        let block = blocks.last_mut().expect("a block");
        let grow = |block: &mut Value, field: &str| {
            let so_far = block[field].as_str().expect("a text");
            block[field] = format!("{so_far}{}", delta[field].as_str().expect("a text")).into();
        };
        match (delta["type"].as_str(), block["type"].as_str()) {
            (Some("text_delta"), Some("text")) => grow(block, "text"),
            (Some("thinking_delta"), Some("thinking")) => grow(block, "thinking"),
            (Some("signature_delta"), Some("thinking")) => grow(block, "signature"),
            (Some("input_json_delta"), Some("tool_use")) => {
                json.push_str(delta["partial_json"].as_str().expect("a text"));
            }
            (None, Some(kind)) => {
                open = false;
                if kind == "tool_use" && !json.is_empty() {
                    assert_eq!(block["input"], json!({}));
                    block["input"] = serde_json::from_str(&json).expect("json");
                    json.clear();
                }
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(!open, "the last block is closed");
    blocks
}

/// Removes the ids of calls, which are random.
fn without_ids(mut content: Vec<Value>) -> Vec<Value> {
    for block in &mut content {
        if let Some(id) = block.as_object_mut().and_then(|block| block.remove("id")) {
            assert!(id.as_str().expect("an id").starts_with("toolu_"), "{id}");
        }
    }
    content
}

fn parts() -> Vec<Value> {
    vec![
        json!({"type": "thinking", "thinking": "Hm, well.", "signature": "lockstep"}),
        json!({"type": "text", "text": "Let me see."}),
        json!({"type": "tool_use", "name": "look", "input": {"place": "Köln <b>", "a": [1]}}),
        json!({"type": "tool_use", "name": "ping", "input": {}}),
    ]
}

#[tokio::test]
async fn a_whole_message_has_a_block_per_part() {
    let tools = start("auto").await;
    let body = asking(&json!({
        "thinking": {"type": "adaptive"}, "temperature": 0, "top_k": 5, "metadata": {"user_id": "a"},
        "service_tier": "auto", "unknown": {"a": 1}
    }));
    let scheduler = async {
        let job = tools.front.mock.job().await;
        assert!(job.submit.trace_id.starts_with("msg_"));
        assert_eq!(job.submit.max_new_tokens, 200);
        let sampling = job.submit.sampling.clone().expect("sampling");
        assert_eq!((sampling.temperature, sampling.top_k), (Some(0.0), Some(5)));
        tools.say(
            &job,
            &format!("Hm, well.\n</think>\n\n{CALLS}"),
            FinishReason::Stop,
        );
        job
    };
    let (answer, job) = tokio::join!(tools.front.ok(MESSAGES, &body), scheduler);
    assert_eq!(answer["id"], job.submit.trace_id);
    for (field, value) in [
        ("type", json!("message")),
        ("role", json!("assistant")),
        ("model", json!(MODEL)),
        ("stop_reason", json!("tool_use")),
        ("stop_sequence", Value::Null),
    ] {
        assert_eq!(answer[field], value, "{answer}");
    }
    let content = answer["content"].as_array().expect("blocks").clone();
    assert_ne!(content[2]["id"], content[3]["id"]);
    assert_eq!(without_ids(content), parts());
    let usage = &answer["usage"];
    // Two tokens of the prompt come from the cache; the others are counted apart.
    assert_eq!(usage["cache_read_input_tokens"], 2);
    assert_eq!(usage["input_tokens"], job.submit.input_ids.len() - 2);
    assert_eq!(usage["cache_creation_input_tokens"], 0);
    let thought = usage["output_tokens_details"]["thinking_tokens"].as_u64();
    let all = usage["output_tokens"].as_u64().expect("counted");
    assert!((1..all).contains(&thought.expect("counted")), "{usage}");
}

#[tokio::test]
async fn a_stream_has_its_events_in_order_however_it_is_cut() {
    let tools = start("auto").await;
    let body = asking(&json!({"stream": true, "thinking": {"type": "adaptive"}}));
    let output = format!("Hm, well.\n</think>\n\n{CALLS}");
    let length = tools.ids(&output).len();
    for step in (1..=7).chain([length]) {
        let text = stepped(&tools, &body, &output, step).await;
        let events = named_events(&text);
        let mut kinds = names(&events);
        // Only deltas repeat.
        kinds.dedup_by(|next, before| {
            next == before && next.ends_with("delta") && *next != "message_delta"
        });
        let block = [
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
        ];
        let mut expected = vec!["message_start"];
        expected.extend([block; 4].concat());
        expected.extend(["message_delta", "message_stop"]);
        assert_eq!(kinds, expected, "{text}");
        assert_eq!(without_ids(joined(&events)), parts(), "{step}");
    }
    let text = stepped(&tools, &body, &output, 1).await;
    let events = named_events(&text);
    let message = &events[0]["message"];
    assert!(message["id"].as_str().expect("an id").starts_with("msg_"));
    assert_eq!(
        (&message["content"], &message["stop_reason"]),
        (&json!([]), &Value::Null)
    );
    let begun = &message["usage"];
    assert_eq!(
        (&begun["output_tokens"], &begun["cache_read_input_tokens"]),
        (&json!(0), &json!(0))
    );
    let last = &events[events.len() - 2];
    assert_eq!(
        last["delta"],
        json!({"stop_reason": "tool_use", "stop_sequence": null})
    );
    let sum = last["usage"]["input_tokens"].as_u64().expect("counted") + 2;
    assert_eq!(
        begun["input_tokens"], sum,
        "the prompt's tokens, cached or not"
    );
    assert_eq!(last["usage"]["output_tokens"], length);
}

#[tokio::test]
async fn an_answer_may_have_no_text() {
    let tools = start("auto").await;
    for stream in [false, true] {
        let text = stepped(&tools, &message(&json!({"stream": stream})), "", 1).await;
        if stream {
            let events = named_events(&text);
            assert_eq!(
                names(&events),
                ["message_start", "message_delta", "message_stop"]
            );
        } else {
            let answer: Value = serde_json::from_str(&text).expect("json");
            assert_eq!(answer["content"], json!([]));
        }
    }
}

#[tokio::test]
async fn every_end_has_its_reason() {
    let tools = start("auto").await;
    let call = "<tool_call>{\"name\": \"ping\", \"arguments\": {}}</tool_call>";
    let most = json!({"max_tokens": 5000});
    let stops = json!({"stop_sequences": ["zz"]});
    for (fields, output, reason, expected) in [
        (json!({}), "Hi", FinishReason::Stop, "end_turn"),
        (json!({}), call, FinishReason::Stop, "tool_use"),
        (
            json!({"max_tokens": 1}),
            "x",
            FinishReason::Length,
            "max_tokens",
        ),
        (
            most,
            "x",
            FinishReason::Length,
            "model_context_window_exceeded",
        ),
        (stops, "azzb", FinishReason::Stop, "stop_sequence"),
    ] {
        for stream in [false, true] {
            let body = with(asking(&fields), &json!({"stream": stream}));
            let scheduler = async {
                let job = tools.front.mock.job().await;
                job.tokens(&tools.ids(output));
                if expected == "stop_sequence" {
                    assert_eq!(tools.front.mock.stop().await, job.submit.request);
                }
                job.finish(reason, 1);
            };
            let ((status, text), ()) = tokio::join!(tools.front.post(MESSAGES, &body), scheduler);
            assert_eq!(status, 200, "{text}");
            let end = match stream {
                true => {
                    let events = named_events(&text);
                    events[events.len() - 2]["delta"].clone()
                }
                false => serde_json::from_str(&text).expect("json"),
            };
            assert_eq!(end["stop_reason"], expected, "{text}");
            let stop = (expected == "stop_sequence").then_some("zz");
            assert_eq!(end["stop_sequence"].as_str(), stop, "{text}");
            assert!(!text.contains("azz"), "{text}");
        }
    }
}

#[tokio::test]
async fn arguments_that_are_no_object_are_not_lost() {
    let tools = start("auto").await;
    let cut = "<tool_call>{\"name\": \"look\", \"arguments\": {\"place\": \"K";
    let answer = whole(&tools, &asking(&json!({})), cut).await;
    let input = &answer["content"][0]["input"];
    assert_eq!(*input, json!({"INVALID_JSON": "{\"place\": \"K"}));
}

#[tokio::test]
async fn earlier_turns_reach_the_prompt() {
    let tools = start("auto").await;
    let text =
        |text: &str| json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
    let result = |fields: Value| {
        with(
            json!({"type": "tool_result", "tool_use_id": "toolu_1"}),
            &fields,
        )
    };
    let body = asking(&json!({
        "system": [text("x-anthropic-billing-header: cch=1"), text("Be brief.")],
        "messages": [
            {"role": "user", "content": [text("Where?")]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "any"},
                {"type": "redacted_thinking", "data": "any"},
                text("There:"),
                {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"place": "Köln"}},
            ]},
            {"role": "user", "content": [
                result(json!({"content": "Here."})),
                result(json!({"content": [text("no")], "is_error": true})),
                result(json!({})),
                text("So?"),
            ]},
        ]
    }));
    let prompt = prompt(&tools, &body).await;
    let (_, turns) = prompt.split_once("<|im_start|>").expect("turns");
    assert_eq!(
        turns,
        "system\nBe brief.<|im_end|>\n<|im_start|>user\nWhere?<|im_end|>\n<|im_start|>assistant\n\
         (Hm.)There:<tool_call>{\"place\": \"Köln\"}</tool_call><|im_end|>\n<|im_start|>tool\nHere.\
         <|im_end|>\n<|im_start|>tool\nError: no<|im_end|>\n<|im_start|>tool\n<|im_end|>\n\
         <|im_start|>user\nSo?<|im_end|>\n<|im_start|>assistant\n"
    );
    assert!(
        prompt.contains("\"parameters\": {\"type\": \"object\""),
        "{prompt}"
    );
    // Instructions may stand among the messages, and an empty prompt is none.
    let messages = json!([
        {"role": "user", "content": "a"}, {"role": "system", "content": "b"},
        {"role": "user", "content": []}
    ]);
    let body = message(&json!({"system": "", "messages": messages}));
    let prompt = self::prompt(&tools, &body).await;
    assert!(
        prompt.starts_with("<|im_start|>user\na<|im_end|>\n<|im_start|>system\nb"),
        "{prompt}"
    );
}

/// A line for the service's books is no instruction, and neighbours of one sender are one message.
#[tokio::test]
async fn what_clients_add_does_not_reach_the_prompt() {
    let tools = start("auto").await;
    let user = |text: &str| json!({"role": "user", "content": text});
    for (system, messages, expected) in [
        (
            json!("x-anthropic-billing-header: cch=1;\nYou are a pirate."),
            json!([user("a"), user("b")]),
            "system\nYou are a pirate.<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n",
        ),
        (
            json!("x-anthropic-billing-header: cch=1;"),
            json!([user("a"), {"role": "assistant", "content": ""}]),
            "user\na<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            json!(null),
            json!([user("a"), {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}]),
            "user\na<|im_end|>\n<|im_start|>assistant\n",
        ),
    ] {
        let body = message(&json!({"system": system, "messages": messages}));
        let prompt = prompt(&tools, &body).await;
        let expected = format!("<|im_start|>{expected}");
        assert!(prompt.starts_with(&expected), "{prompt:?}");
    }
}

#[tokio::test]
async fn a_last_message_of_the_assistant_is_continued() {
    let tools = start("auto").await;
    let messages = json!([
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "The answer is ("}
    ]);
    let body = message(&json!({"messages": messages}));
    let scheduler = async {
        let job = tools.front.mock.job().await;
        let prompt = tools.prompt(&job);
        assert!(prompt.ends_with("assistant\nThe answer is ("), "{prompt}");
        tools.say(&job, "B)", FinishReason::Stop);
    };
    let (answer, ()) = tokio::join!(tools.front.ok(MESSAGES, &body), scheduler);
    assert_eq!(answer["content"], json!([{"type": "text", "text": "B)"}]));
}

#[tokio::test]
async fn thinking_is_turned_on_and_off_and_left_out() {
    let tools = start("auto").await;
    let on = "assistant\n<think>\n";
    let off = "assistant\n<think>\n</think>\n\n";
    for (fields, end) in [
        (json!({}), "assistant\n"),
        (json!({"output_config": {"effort": "low"}}), "assistant\n"),
        (json!({"thinking": {"type": "disabled"}}), off),
        (
            json!({"thinking": {"type": "adaptive", "display": "summarized"}}),
            on,
        ),
        (
            json!({"max_tokens": 1500, "thinking": {"type": "enabled", "budget_tokens": 1024}}),
            on,
        ),
        (
            json!({"thinking": {"type": "adaptive"}, "chat_template_kwargs": {"enable_thinking": false}}),
            off,
        ),
    ] {
        let prompt = prompt(&tools, &message(&fields)).await;
        assert!(prompt.ends_with(end), "{fields} {prompt:?}");
    }
    let omitted = json!({"type": "adaptive", "display": "omitted"});
    let expected = json!([
        {"type": "thinking", "thinking": "", "signature": "lockstep"}, {"type": "text", "text": "Yes"}
    ]);
    for stream in [false, true] {
        let body = message(&json!({"thinking": omitted, "stream": stream}));
        let text = stepped(&tools, &body, "Hm.</think>Yes", 1).await;
        let content = match stream {
            true => json!(joined(&named_events(&text))),
            false => serde_json::from_str::<Value>(&text).expect("json")["content"].clone(),
        };
        assert_eq!(content, expected, "{text}");
    }
}

#[tokio::test]
async fn counted_tokens_are_those_of_the_prompt() {
    let tools = start("auto").await;
    let long = "word ".repeat(300);
    for fields in [
        json!({}),
        json!({"system": "Be brief.", "thinking": {"type": "disabled"}}),
        json!({"tools": [tool("look")], "tool_choice": {"type": "none"}}),
        json!({"messages": [{"role": "user", "content": long}]}),
        json!({"messages": [
            {"role": "user", "content": "a"}, {"role": "assistant", "content": "The answer"}
        ]}),
    ] {
        let body = message(&fields);
        let scheduler = async {
            let job: Job = tools.front.mock.job().await;
            tools.say(&job, "Ok", FinishReason::Stop);
            job.submit.input_ids.len()
        };
        let (answer, prompt) = tokio::join!(tools.front.ok(MESSAGES, &body), scheduler);
        let body = with(body, &json!({"max_tokens": null}));
        let counted = tools.front.ok("/v1/messages/count_tokens", &body).await;
        assert_eq!(counted, json!({"input_tokens": prompt}), "{fields}");
        let usage = &answer["usage"];
        let read = usage["cache_read_input_tokens"].as_u64().expect("counted");
        let rest = usage["input_tokens"].as_u64().expect("counted");
        assert_eq!(rest + read, prompt as u64);
    }
    // Clients ask how much they have to leave out.
    let long = "word ".repeat(3000);
    let body = message(&json!({"messages": [{"role": "user", "content": long}]}));
    let counted = tools.front.ok("/v1/messages/count_tokens", &body).await;
    assert!(counted["input_tokens"].as_u64() > Some(3000), "{counted}");
    let (status, text) = tools.front.post(MESSAGES, &body).await;
    assert!(
        status == 400 && text.contains("maximum context length"),
        "{text}"
    );
}
