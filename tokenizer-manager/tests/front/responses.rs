//! `/v1/responses`: answers.

use lockstep_proto::pb::lockstep::FinishReason;
use serde_json::{Value, json};

use super::{
    answers::{Tools, start},
    client::{named_events, names, with},
    harness::MODEL,
    messages::message,
    mock::tokens,
};

const RESPONSES: &str = "/v1/responses";

/// Returns a request of one short message, with `fields` added.
pub fn response(fields: &Value) -> Value {
    with(json!({"model": MODEL, "input": "Hello"}), fields)
}

fn tool(name: &str) -> Value {
    let place = json!({"place": {"type": "string"}});
    json!({
        "type": "function", "name": name, "strict": false,
        "parameters": {"type": "object", "properties": place}
    })
}

/// Returns a request with two tools, and `fields` added.
fn asking(fields: &Value) -> Value {
    with(
        response(&json!({"tools": [tool("look"), tool("ping")]})),
        fields,
    )
}

const LOOK: &str = "{\"place\": \"Köln <b>\"}";
const OUTPUT: &str = "Hm, well.\n</think>\n\nLet me see.\n<tool_call>\n{\"name\": \"look\", \"arguments\": \
                      {\"place\": \"Köln <b>\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"ping\"}\n\
                      </tool_call>";

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
    let ((status, text), ()) = tokio::join!(tools.front.post(RESPONSES, body), scheduler);
    assert_eq!(status, 200, "{text}");
    text
}

/// Returns the prompt of a request, which is answered with "Ok".
async fn prompt(tools: &Tools, body: &Value) -> String {
    let scheduler = async {
        let job = tools.front.mock.job().await;
        tools.say(&job, "Ok", FinishReason::Stop);
        tools.prompt(&job)
    };
    tokio::join!(tools.front.ok(RESPONSES, body), scheduler).1
}

/// Returns the output without ids, which must be unique.
fn without_ids(output: &Value) -> Vec<Value> {
    let mut items = output.as_array().expect("items").clone();
    let mut ids = Vec::new();
    for item in &mut items {
        let item = item.as_object_mut().expect("an item");
        for field in ["id", "call_id"] {
            ids.extend(item.remove(field));
        }
    }
    for (at, id) in ids.iter().enumerate() {
        assert!(!ids[..at].contains(id), "{output}");
    }
    items
}

/// Returns the items that [`OUTPUT`] has.
fn items() -> Vec<Value> {
    let text = json!([
        {"type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": []}
    ]);
    vec![
        json!({"type": "reasoning", "summary": [], "status": "completed",
               "content": [{"type": "reasoning_text", "text": "Hm, well."}]}),
        json!({"type": "message", "role": "assistant", "status": "completed", "content": text}),
        json!({"type": "function_call", "name": "look", "arguments": LOOK, "status": "completed"}),
        json!({"type": "function_call", "name": "ping", "arguments": "{}", "status": "completed"}),
    ]
}

#[tokio::test]
async fn a_whole_response_has_an_item_per_part_and_the_settings() {
    let tools = start("auto").await;
    let settings = json!({
        "instructions": "Be brief.", "max_output_tokens": 200, "temperature": 0.5, "top_p": 0.25,
        "metadata": {"a": "b"}, "user": "somebody", "safety_identifier": "x", "tool_choice": "auto",
        "prompt_cache_key": "y", "parallel_tool_calls": true, "max_tool_calls": 3
    });
    let more = json!({
        "reasoning": {"effort": "low", "summary": "auto"}, "store": true, "text": {"format": {"type": "text"}},
        "include": ["reasoning.encrypted_content"], "truncation": "disabled", "background": false,
        "service_tier": "auto", "unknown": {"a": 1}
    });
    let body = with(asking(&settings), &more);
    let scheduler = async {
        let job = tools.front.mock.job().await;
        assert!(job.submit.trace_id.starts_with("resp_"));
        assert_eq!(job.submit.max_new_tokens, 200);
        let sampling = job.submit.sampling.clone().expect("sampling");
        assert_eq!(
            (sampling.temperature, sampling.top_p),
            (Some(0.5), Some(0.25))
        );
        tools.say(&job, OUTPUT, FinishReason::Stop);
        job
    };
    let (answer, job) = tokio::join!(tools.front.ok(RESPONSES, &body), scheduler);
    assert_eq!(answer["id"], job.submit.trace_id);
    assert_eq!(without_ids(&answer["output"]), items());
    let prefixes = ["rs_", "msg_", "fc_", "fc_"];
    for (item, prefix) in answer["output"]
        .as_array()
        .expect("items")
        .iter()
        .zip(prefixes)
    {
        assert!(
            item["id"].as_str().expect("an id").starts_with(prefix),
            "{item}"
        );
    }
    let call = &answer["output"][2]["call_id"];
    assert!(call.as_str().expect("an id").starts_with("call_"));
    for (field, value) in settings.as_object().expect("settings") {
        assert_eq!(answer[field], *value, "{field}");
    }
    for (field, value) in [
        ("object", json!("response")),
        ("status", json!("completed")),
        ("error", Value::Null),
        ("incomplete_details", Value::Null),
        ("model", json!(MODEL)),
        ("tools", body["tools"].clone()),
        ("reasoning", json!({"effort": "low", "summary": "auto"})),
        // Nothing is stored, whatever was asked.
        ("store", json!(false)),
        ("background", json!(false)),
        ("truncation", json!("disabled")),
        ("previous_response_id", Value::Null),
        (
            "text",
            json!({"format": {"type": "text"}, "verbosity": "medium"}),
        ),
    ] {
        assert_eq!(answer[field], value, "{field}");
    }
    assert!(answer["created_at"].as_u64() <= answer["completed_at"].as_u64());
    let usage = &answer["usage"];
    let (input, output) = (job.submit.input_ids.len(), tools.ids(OUTPUT).len());
    assert_eq!(usage["input_tokens"], input);
    assert_eq!(usage["output_tokens"], output);
    assert_eq!(usage["total_tokens"], input + output);
    assert_eq!(usage["input_tokens_details"]["cached_tokens"], 2);
    let thought = usage["output_tokens_details"]["reasoning_tokens"].as_u64();
    assert!(
        (1..output as u64).contains(&thought.expect("counted")),
        "{usage}"
    );
}

/// Events of the stream of [`OUTPUT`], with deltas of one kind as one.
fn expected() -> Vec<&'static str> {
    let text = |delta: &'static str, done: &'static str| {
        [
            "response.output_item.added",
            "response.content_part.added",
            delta,
            done,
            "response.content_part.done",
            "response.output_item.done",
        ]
    };
    let call = [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ];
    let mut all = vec!["response.created", "response.in_progress"];
    all.extend(text(
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
    ));
    all.extend(text(
        "response.output_text.delta",
        "response.output_text.done",
    ));
    all.extend([call, call].concat());
    all.push("response.completed");
    all
}

#[tokio::test]
async fn a_stream_has_its_events_in_order_however_it_is_cut() {
    let tools = start("auto").await;
    let body = asking(&json!({"stream": true, "reasoning": {"effort": "high"}}));
    let length = tools.ids(OUTPUT).len();
    for step in (1..=7).chain([length]) {
        let text = stepped(&tools, &body, OUTPUT, step).await;
        assert!(!text.contains("[DONE]"), "{text}");
        let events = named_events(&text);
        for (at, event) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], at, "{event}");
        }
        let mut kinds = names(&events);
        // Only deltas repeat.
        kinds.dedup_by(|next, before| next == before && next.ends_with("delta"));
        assert_eq!(kinds, expected(), "{text}");
        let last = events.last().expect("events");
        assert_eq!(without_ids(&last["response"]["output"]), items(), "{step}");
        agree(&events);
    }
}

/// Checks that the events make the items of the response at the end, ids included.
fn agree(events: &[Value]) {
    let done = &events.last().expect("events")["response"];
    for begun in &events[..2] {
        assert_eq!(begun["response"]["id"], done["id"]);
        assert_eq!(begun["response"]["status"], "in_progress");
        assert_eq!(begun["response"]["output"], json!([]));
        assert_eq!(begun["response"]["usage"], Value::Null);
    }
    let mut at = 0;
    let mut text = String::new();
    for event in events {
        let item = &done["output"][at];
        let kind = event["type"].as_str().expect("a name");
        if event.get("output_index").is_some() {
            assert_eq!(event["output_index"], at, "{event}");
        }
        if event.get("item_id").is_some() {
            assert_eq!(event["item_id"], item["id"], "{event}");
        }
        if event.get("content_index").is_some() {
            assert_eq!(event["content_index"], 0, "{event}");
        }
        if kind.contains("output_text") {
            assert_eq!(event["logprobs"], json!([]), "{event}");
        }
        let part = &item["content"][0];
        let all = part["text"].as_str().or(item["arguments"].as_str());
        match kind.rsplit_once('.').expect("two words") {
            (name, "added") if name.ends_with("item") => {
                assert_eq!(event["item"]["id"], item["id"]);
                assert_eq!(event["item"]["call_id"], item["call_id"]);
                assert_eq!(event["item"]["status"], "in_progress");
                text.clear();
            }
            (name, "added") => {
                assert!(
                    name.ends_with("part") && event["part"]["text"] == "",
                    "{event}"
                );
                assert_eq!(event["part"]["type"], part["type"]);
            }
            (_, "delta") => {
                assert_ne!(event["delta"], "", "{event}");
                text.push_str(event["delta"].as_str().expect("a text"));
            }
            (name, "done") if name.ends_with("item") => {
                assert_eq!(event["item"], *item);
                at += 1;
            }
            (name, "done") if name.ends_with("part") => assert_eq!(event["part"], *part),
            (_, "done") => {
                let whole = event["text"].as_str().or(event["arguments"].as_str());
                assert_eq!((whole, all), (Some(&*text), Some(&*text)), "{event}");
            }
            _ => {}
        }
    }
    assert_eq!(done["output"].as_array().map(Vec::len), Some(at));
}

#[tokio::test]
async fn a_cut_answer_is_incomplete() {
    let tools = start("auto").await;
    let cut = "Let me see.<tool_call>{\"name\": \"look\", \"arguments\": {\"place\": \"K";
    for stream in [false, true] {
        let body = asking(&json!({"stream": stream}));
        let scheduler = async {
            let job = tools.front.mock.job().await;
            tools.say(&job, cut, FinishReason::Length);
        };
        let ((_, text), ()) = tokio::join!(tools.front.post(RESPONSES, &body), scheduler);
        let answer = match stream {
            true => {
                let events = named_events(&text);
                let last = events.last().expect("events");
                assert_eq!(last["type"], "response.incomplete");
                agree(&events);
                last["response"].clone()
            }
            false => serde_json::from_str(&text).expect("json"),
        };
        assert_eq!(answer["status"], "incomplete");
        assert_eq!(
            answer["incomplete_details"],
            json!({"reason": "max_output_tokens"})
        );
        let output = &answer["output"];
        assert_eq!(output[0]["status"], "completed");
        assert_eq!(output[1]["status"], "incomplete");
        assert_eq!(output[1]["arguments"], "{\"place\": \"K");
    }
}

#[tokio::test]
async fn an_answer_may_have_no_text() {
    let tools = start("auto").await;
    let text = stepped(&tools, &response(&json!({"stream": true})), "", 1).await;
    let events = named_events(&text);
    assert_eq!(
        names(&events),
        [
            "response.created",
            "response.in_progress",
            "response.completed"
        ]
    );
    let answer = stepped(&tools, &response(&json!({})), "", 1).await;
    let answer: Value = serde_json::from_str(&answer).expect("json");
    assert_eq!(answer["output"], json!([]));
}

#[tokio::test]
async fn earlier_turns_reach_the_prompt() {
    let tools = start("auto").await;
    let call = |id: &str, place: &str| {
        let arguments = format!("{{\"place\": \"{place}\"}}");
        json!({"type": "function_call", "id": "fc_1", "call_id": id, "name": "look",
               "arguments": arguments, "status": "completed"})
    };
    let result = |id: &str, output: Value| json!({"type": "function_call_output", "call_id": id, "output": output});
    let text = |text: &str| json!([{"type": "output_text", "text": text, "annotations": []}]);
    let body = asking(&json!({
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Where?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": null,
             "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "message", "id": "msg_1", "role": "assistant", "content": text("There:")},
            call("call_1", "Köln"),
            call("call_2", "Bonn"),
            result("call_1", json!("Here.")),
            result("call_2", json!([{"type": "input_text", "text": "Not here."}])),
            {"role": "assistant", "content": "So."},
            {"role": "assistant", "content": "And?"},
            {"role": "user", "content": "Ok"},
        ]
    }));
    let prompt = prompt(&tools, &body).await;
    let (_, turns) = prompt.split_once("<|im_start|>").expect("turns");
    assert_eq!(
        turns,
        "system\nBe brief.<|im_end|>\n<|im_start|>user\nWhere?<|im_end|>\n<|im_start|>assistant\n\
         (Hm.)There:<tool_call>{\"place\": \"Köln\"}</tool_call><tool_call>{\"place\": \"Bonn\"}</tool_call>\
         <|im_end|>\n<|im_start|>tool\nHere.<|im_end|>\n<|im_start|>tool\nNot here.<|im_end|>\n\
         <|im_start|>assistant\nSo.<|im_end|>\n<|im_start|>assistant\nAnd?<|im_end|>\n\
         <|im_start|>user\nOk<|im_end|>\n<|im_start|>assistant\n"
    );
    assert!(prompt.contains("\"name\": \"ping\""), "{prompt}");
}

/// The format of the text constrains the output, and is repeated.
#[tokio::test]
async fn a_format_constrains_the_text() {
    let tools = start("auto").await;
    let schema = json!({"type": "array", "items": {"type": "integer"}});
    let format = json!({"type": "json_schema", "name": "a", "schema": schema});
    for (path, body) in [
        (
            RESPONSES,
            response(&json!({"text": {"format": format}, "reasoning": {"effort": "none"}})),
        ),
        (
            "/v1/messages",
            message(&json!({
                "output_config": {"format": format}, "thinking": {"type": "disabled"}
            })),
        ),
    ] {
        let scheduler = async {
            let job = tools.front.mock.job().await;
            tools.say(&job, "[5]", FinishReason::Stop);
            let generation = job.submit.clone();
            generation.constraint.expect("a constraint").text
        };
        let (answer, text) = tokio::join!(tools.front.ok(path, &body), scheduler);
        assert_eq!(text, schema.to_string());
        if path == RESPONSES {
            assert_eq!(answer["text"]["format"], format);
        }
    }
}

/// Text may come behind calls of the same turn. Calls with one id get others.
#[tokio::test]
async fn a_turn_may_end_with_text() {
    let tools = start("auto").await;
    let body = asking(&json!({"input": [
        {"role": "user", "content": "a"},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"role": "assistant", "content": "Done."},
        {"type": "function_call_output", "call_id": "c", "output": "b"},
    ]}));
    let prompt = prompt(&tools, &body).await;
    let expected = "assistant\nDone.<tool_call>{}</tool_call><|im_end|>\n<|im_start|>tool\nb";
    assert!(prompt.contains(expected), "{prompt}");
    let tools = start("kimi_k2").await;
    let call = "<|tool_call_begin|>functions.ping:0<|tool_call_argument_begin|>{}<|tool_call_end|>";
    let output = format!("<|tool_calls_section_begin|>{call}{call}<|tool_calls_section_end|>");
    let answer: Value =
        serde_json::from_str(&stepped(&tools, &asking(&json!({})), &output, 1).await)
            .expect("json");
    let ids: Vec<_> = answer["output"]
        .as_array()
        .expect("items")
        .iter()
        .map(|item| &item["call_id"])
        .collect();
    assert_eq!(ids[0], "functions.ping:0");
    assert!(ids.len() == 2 && ids[1] != ids[0], "{answer}");
}

#[tokio::test]
async fn what_a_response_has_may_be_sent_back() {
    let tools = start("auto").await;
    let body = asking(&json!({"reasoning": {"effort": "high"}}));
    let answer: Value =
        serde_json::from_str(&stepped(&tools, &body, OUTPUT, 1).await).expect("json");
    let mut input = vec![json!({"role": "user", "content": "Hello"})];
    input.extend(answer["output"].as_array().expect("items").clone());
    for item in &answer["output"].as_array().expect("items")[2..] {
        let id = &item["call_id"];
        input.push(json!({"type": "function_call_output", "call_id": id, "output": "There."}));
    }
    let prompt = prompt(&tools, &asking(&json!({"input": input}))).await;
    assert!(
        prompt.contains("assistant\n(Hm, well.)Let me see.<tool_call>{\"place\""),
        "{prompt}"
    );
    assert_eq!(
        prompt.matches("<|im_start|>tool\nThere.<|im_end|>").count(),
        2,
        "{prompt}"
    );
}

#[tokio::test]
async fn efforts_turn_reasoning_on_and_off() {
    let tools = start("auto").await;
    let on = "assistant\n<think>\n";
    let off = "assistant\n<think>\n</think>\n\n";
    for (fields, end) in [
        (json!({}), "assistant\n"),
        (json!({"reasoning": {"effort": null}}), "assistant\n"),
        (json!({"reasoning": {"effort": "none"}}), off),
        (json!({"reasoning": {"effort": "max"}}), on),
        (
            json!({"reasoning": {"effort": "high"}, "chat_template_kwargs": {"enable_thinking": false}}),
            off,
        ),
    ] {
        let prompt = prompt(&tools, &response(&fields)).await;
        assert!(prompt.ends_with(end), "{fields} {prompt:?}");
    }
}
