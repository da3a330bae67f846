//! `/v1/responses`: refusals, and errors within a stream.

use lockstep_proto::pb::lockstep::{ErrorKind, FinishReason, RequestError};
use serde_json::{Value, json};

use super::{
    answers::start as start_tools,
    client::{named_events, names},
    harness::{MODEL, start},
    mock::ids,
    responses::response,
};

const RESPONSES: &str = "/v1/responses";

/// Sends requests with these fields, which must be refused for the field beside them.
async fn refused(rows: &[(Value, &str)]) {
    let tools = start_tools("auto").await;
    for (fields, param) in rows {
        let (status, text) = tools.front.post(RESPONSES, &response(fields)).await;
        let error: Value = serde_json::from_str(&text).expect("json");
        assert_eq!(
            (status, &error["error"]["param"]),
            (400, &json!(param)),
            "{fields} {text}"
        );
    }
}

#[tokio::test]
async fn bad_items_are_refused_by_place() {
    let input = |item: Value| json!({"input": [item]});
    let user = |part: Value| json!({"input": [{"role": "user", "content": [part]}]});
    refused(&[
        (json!({"input": null}), "input"),
        (json!({"input": 5}), "input"),
        (json!({"input": []}), "input"),
        (input(json!(5)), "input[0]"),
        (input(json!({"type": 5})), "input[0].type"),
        (
            input(json!({"type": "item_reference", "id": "msg_1"})),
            "input[0]",
        ),
        (
            input(json!({"type": "web_search_call", "id": "ws_1"})),
            "input[0]",
        ),
        (
            input(json!({"role": "tool", "content": "a"})),
            "input[0].role",
        ),
        (input(json!({"role": "user"})), "input[0].content"),
        (user(json!(5)), "input[0].content[0]"),
        (
            user(json!({"type": "input_text"})),
            "input[0].content[0].text",
        ),
        (
            user(json!({"type": "input_image", "image_url": "x"})),
            "input[0].content[0]",
        ),
        (
            user(json!({"type": "input_file", "file_id": "x"})),
            "input[0].content[0]",
        ),
        (
            input(json!({"type": "function_call", "name": "a", "arguments": "{}"})),
            "input[0].call_id",
        ),
        (
            input(json!({"type": "function_call", "call_id": "a", "name": "a", "arguments": {}})),
            "input[0].arguments",
        ),
        (
            input(json!({"type": "function_call_output", "call_id": "a"})),
            "input[0].output",
        ),
    ])
    .await;
}

#[tokio::test]
async fn bad_fields_are_refused_by_name() {
    refused(&[
        (
            json!({"previous_response_id": "resp_1"}),
            "previous_response_id",
        ),
        (json!({"conversation": "conv_1"}), "conversation"),
        (json!({"background": true}), "background"),
        (json!({"prompt": {"id": "pmpt_1"}}), "prompt"),
        (
            json!({"context_management": [{"type": "compaction"}]}),
            "context_management",
        ),
        (json!({"truncation": "auto"}), "truncation"),
        (
            json!({"include": ["message.output_text.logprobs"]}),
            "include",
        ),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"max_tokens": 5}), "max_tokens"),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"max_output_tokens": 5000}), "input"),
        (json!({"temperature": 3}), "temperature"),
        (
            json!({"text": {"format": {"type": "json_schema"}}}),
            "text.format",
        ),
        (
            json!({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"not": {}}}}}),
            "text.format",
        ),
        (json!({"text": {"format": {}}}), "text.format"),
        (json!({"text": {"verbosity": "low"}}), "text.verbosity"),
        (
            json!({"reasoning": {"effort": "ultra"}}),
            "reasoning.effort",
        ),
        (json!({"reasoning": {"effort": 5}}), "reasoning.effort"),
    ])
    .await;
}

#[tokio::test]
async fn bad_tools_are_refused_by_name() {
    let tool = |tool: Value| json!({"tools": [tool]});
    let function = |fields: Value| {
        let tool = super::client::with(json!({"type": "function", "name": "a"}), &fields);
        json!({"tools": [tool]})
    };
    let choice = |choice: Value| json!({"tools": [{"type": "function", "name": "a"}], "tool_choice": choice});
    refused(&[
        (tool(json!(5)), "tools[0]"),
        (tool(json!({"name": "a"})), "tools[0].type"),
        (tool(json!({"type": "web_search"})), "tools[0].type"),
        (
            tool(json!({"type": "mcp", "server_label": "a"})),
            "tools[0].type",
        ),
        (
            tool(json!({"type": "custom", "name": "a"})),
            "tools[0].type",
        ),
        (function(json!({"name": "a b"})), "tools[0].name"),
        (function(json!({"parameters": []})), "tools[0].parameters"),
        (function(json!({"strict": 1})), "tools[0].strict"),
        (choice(json!("any")), "tool_choice"),
        (choice(json!(5)), "tool_choice"),
        (
            choice(json!({"type": "function", "name": "b"})),
            "tool_choice",
        ),
        (
            choice(json!({"type": "allowed_tools", "mode": "auto", "tools": []})),
            "tool_choice",
        ),
        (choice(json!({"type": "web_search"})), "tool_choice"),
    ])
    .await;
}

/// Settings that an answer repeats are bounded.
#[tokio::test]
async fn long_settings_are_refused_by_name() {
    let tools = start_tools("auto").await;
    for (fields, param) in [
        (json!({"metadata": {"a": "x".repeat(513)}}), "metadata"),
        (json!({"metadata": {"x".repeat(65): "a"}}), "metadata"),
        (json!({"metadata": {"a": 5}}), "metadata"),
        (json!({"user": "x".repeat(513)}), "user"),
        (
            json!({"reasoning": {"summary": "long"}}),
            "reasoning.summary",
        ),
        (json!({"max_completion_tokens": 5}), "max_completion_tokens"),
    ] {
        let (status, text) = tools.front.post(RESPONSES, &response(&fields)).await;
        let error: Value = serde_json::from_str(&text).expect("json");
        assert_eq!(
            (status, &error["error"]["param"]),
            (400, &json!(param)),
            "{text}"
        );
    }
}

#[tokio::test]
async fn nothing_is_stored() {
    let front = start().await;
    for path in ["/v1/responses/resp_1", "/v1/responses/resp_1/cancel"] {
        let (status, text) = front.post(path, &json!({"model": MODEL})).await;
        assert!(
            status == 404 && text.contains("Nothing is stored"),
            "{text}"
        );
    }
    assert_eq!(front.get("/v1/responses").await.0, 405);
}

fn full() -> RequestError {
    RequestError {
        kind: ErrorKind::Overloaded.into(),
        message: "the queue is full".to_owned(),
        ..RequestError::default()
    }
}

#[tokio::test]
async fn an_early_error_is_a_status_and_a_late_one_an_event() {
    let front = start().await;
    for stream in [false, true] {
        let body = response(&json!({"stream": stream}));
        let ((status, text), ()) = tokio::join!(front.post(RESPONSES, &body), async {
            front.mock.job().await.fail(full());
        });
        assert!(
            status == 429 && text.contains("\"rate_limit_exceeded\""),
            "{text}"
        );
    }
    let body = response(&json!({"stream": true}));
    let ((status, text), ()) = tokio::join!(front.post(RESPONSES, &body), async {
        let job = front.mock.job().await;
        job.tokens(&ids("Hi"));
        job.fail(full());
    });
    assert_eq!(status, 200);
    let events = named_events(&text);
    let kinds = names(&events);
    let end = &kinds[kinds.len() - 3..];
    assert_eq!(
        end,
        ["response.output_text.delta", "error", "response.failed"],
        "{text}"
    );
    let [.., error, failed] = &events[..] else {
        panic!("two events");
    };
    assert_eq!(
        *error,
        json!({"type": "error", "sequence_number": events.len() - 2, "param": null,
               "code": "rate_limit_exceeded", "message": "the queue is full"})
    );
    assert_eq!(failed["sequence_number"], events.len() - 1);
    let failed = &failed["response"];
    assert_eq!(failed["status"], "failed");
    let told = json!({"code": "rate_limit_exceeded", "message": "the queue is full"});
    assert_eq!(failed["error"], told);
    assert_eq!(failed["output"][0]["status"], "incomplete");
    assert_eq!(failed["output"][0]["content"][0]["text"], "Hi");
}

#[tokio::test]
async fn an_abort_is_an_error() {
    let front = start().await;
    let body = response(&json!({"stream": true}));
    let url = format!("{}{RESPONSES}", front.url);
    let request = front
        .client
        .post(url)
        .header("x-request-id", "mine")
        .json(&body);
    let (answer, ()) = tokio::join!(request.send(), async {
        let job = front.mock.job().await;
        assert_eq!(job.submit.trace_id, "resp_mine");
        job.tokens(&ids("Hi"));
        job.finish(FinishReason::Abort, 2);
    });
    let text = answer.expect("answered").text().await.expect("a body");
    let events = named_events(&text);
    let error = &events[events.len() - 2];
    assert_eq!(error["code"], "request_aborted", "{text}");
}
