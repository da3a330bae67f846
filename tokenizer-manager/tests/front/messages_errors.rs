//! `/v1/messages`: refusals, and errors in the API's own form.

use lockstep_proto::pb::lockstep::{ErrorKind, FinishReason, RequestError};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use super::{
    answers::start as start_tools,
    client::{named_events, names},
    harness::{Front, start, start_with},
    messages::message,
    mock::ids,
};

const MESSAGES: &str = "/v1/messages";

#[tokio::test]
async fn bad_fields_are_refused_by_name() {
    let tools = start_tools("auto").await;
    let content = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let answer = |content: Value| json!({"messages": [{"role": "assistant", "content": content}]});
    let tool = |tool: Value| json!({"tools": [tool]});
    let choice = |choice: Value| json!({"tools": [{"name": "a"}], "tool_choice": choice});
    let thinking = |thinking: Value| json!({"thinking": thinking});
    for (fields, word) in [
        (json!({"messages": null}), "'messages'"),
        (json!({"messages": []}), "'messages'"),
        (json!({"max_tokens": null}), "'max_tokens'"),
        (json!({"max_tokens": 0}), "'max_tokens'"),
        (json!({"stop_sequences": [""]}), "'stop_sequences'"),
        (json!({"stop": ["a"]}), "'stop_sequences'"),
        (json!({"n": 2}), "'n'"),
        (json!({"temperature": 3}), "'temperature'"),
        (json!({"system": 5}), "'system'"),
        (json!({"system": [{"type": "image"}]}), "'system[0]'"),
        (json!({"messages": [5]}), "'messages[0]'"),
        (
            json!({"messages": [{"role": "tool", "content": ""}]}),
            "'messages[0].role'",
        ),
        (
            json!({"messages": [{"role": "user"}]}),
            "'messages[0].content'",
        ),
        (content(json!([5])), "'messages[0].content[0]'"),
        (
            content(json!([{"type": "text"}])),
            "'messages[0].content[0].text'",
        ),
        (content(json!([{"type": "image", "source": {}}])), "'image'"),
        (
            content(json!([{"type": "document", "source": {}}])),
            "'document'",
        ),
        (content(json!([{"type": "tool_use"}])), "'tool_use'"),
        (
            content(
                json!([{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}]),
            ),
            "'messages[0].content[0].content[0]'",
        ),
        (content(json!([{"type": "tool_result"}])), "tool_use_id"),
        (
            content(json!([{"type": "tool_result", "tool_use_id": "a", "is_error": 5}])),
            "is_error",
        ),
        (
            answer(json!([{"type": "tool_use", "id": "a", "name": "b", "input": "c"}])),
            "'messages[0].content[0].input'",
        ),
        (
            answer(json!([{"type": "tool_use", "id": "a", "name": "b", "input": {}}])),
            "tool_result",
        ),
        (tool(json!(5)), "'tools[0]'"),
        (
            tool(json!({"type": "web_search_20250305", "name": "web_search"})),
            "web_search_20250305",
        ),
        (tool(json!({"name": "a b"})), "'tools[0].name'"),
        (
            tool(json!({"name": "a", "input_schema": []})),
            "'tools[0].input_schema'",
        ),
        (tool(json!({"name": "a", "strict": 1})), "'tools[0].strict'"),
        (choice(json!({"type": "tool", "name": "b"})), "'b'"),
        (choice(json!("auto")), "'tool_choice'"),
        (
            choice(json!({"type": "auto", "disable_parallel_tool_use": 1})),
            "disable_parallel_tool_use",
        ),
        (
            json!({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}),
            "'output_config.format': at",
        ),
        (
            json!({"output_config": {"effort": "ultra"}}),
            "'output_config.effort'",
        ),
        (
            thinking(json!({"type": "enabled"})),
            "'thinking.budget_tokens'",
        ),
        (
            thinking(json!({"type": "enabled", "budget_tokens": 100})),
            "'thinking.budget_tokens'",
        ),
        (
            thinking(json!({"type": "enabled", "budget_tokens": 2000})),
            "'max_tokens'",
        ),
        (thinking(json!({"type": "deep"})), "'thinking.type'"),
        (
            thinking(json!({"type": "adaptive", "display": "all"})),
            "'thinking.display'",
        ),
        (json!({"mcp_servers": [{"type": "url"}]}), "'mcp_servers'"),
    ] {
        let (status, text) = tools.front.post(MESSAGES, &message(&fields)).await;
        let error: Value = serde_json::from_str(&text).expect("json");
        assert_eq!(
            (status, &error["error"]["type"]),
            (400, &json!("invalid_request_error")),
            "{fields} {text}"
        );
        let said = error["error"]["message"].as_str().expect("a text");
        assert!(said.contains(word), "{word} {text}");
    }
}

/// Sends a request, and checks that its error has this API's form.
async fn error(request: RequestBuilder, status: u16, kind: &str) -> Value {
    let response = request.send().await.expect("answered");
    assert_eq!(response.status(), status, "{kind}");
    let id = response.headers()["request-id"].clone();
    assert_eq!(id, response.headers()["x-request-id"]);
    let length = response.headers().get("content-length").cloned();
    let text = response.text().await.expect("a body");
    if let Some(length) = length {
        assert_eq!(length, text.len().to_string().as_str());
    }
    let error: Value = serde_json::from_str(&text).expect("json");
    assert_eq!(error["type"], "error", "{text}");
    assert_eq!(error["error"]["type"], kind, "{text}");
    assert!(error["error"]["message"].is_string(), "{text}");
    assert_eq!(error["request_id"], id.to_str().expect("a text"), "{text}");
    error
}

fn post(front: &Front, body: &Value) -> RequestBuilder {
    front
        .client
        .post(format!("{}{MESSAGES}", front.url))
        .json(body)
}

#[tokio::test]
async fn errors_of_every_layer_have_the_apis_form() {
    let front = start().await;
    let body = message(&json!({}));
    let text = |text: String| {
        front
            .client
            .post(format!("{}{MESSAGES}", front.url))
            .body(text)
    };
    let model = message(&json!({"model": "claude"}));
    let unknown = front
        .client
        .post(format!("{}{MESSAGES}/batches", front.url));
    let get = front
        .client
        .request(Method::GET, format!("{}{MESSAGES}", front.url));
    for (request, status, kind) in [
        (post(&front, &model), 404, "not_found_error"),
        (unknown, 404, "not_found_error"),
        (get, 405, "invalid_request_error"),
        (text("{".to_owned()), 400, "invalid_request_error"),
        (text(" ".repeat(65 << 10)), 413, "request_too_large"),
        (
            text(body.to_string()).header("content-type", "text/html"),
            415,
            "invalid_request_error",
        ),
        (
            post(&front, &body).header("origin", "https://stranger.example"),
            403,
            "permission_error",
        ),
        (
            post(&front, &body).header("x", "y".repeat(9000)),
            431,
            "invalid_request_error",
        ),
    ] {
        error(request, status, kind).await;
    }
    // Another path has OpenAI's form, though it begins alike.
    let (_, text) = front.get("/v1/messages_of_others").await;
    assert!(text.starts_with("{\"error\""), "{text}");
}

#[tokio::test]
async fn errors_of_the_scheduler_have_the_apis_form() {
    let front = start().await;
    for (kind, status, name) in [
        (ErrorKind::Overloaded, 429, "rate_limit_error"),
        (ErrorKind::Unavailable, 503, "overloaded_error"),
        (ErrorKind::Internal, 500, "api_error"),
        (ErrorKind::Timeout, 408, "timeout_error"),
    ] {
        let fault = || RequestError {
            kind: kind.into(),
            message: "so it is".to_owned(),
            ..RequestError::default()
        };
        for stream in [false, true] {
            let request = post(&front, &message(&json!({"stream": stream})));
            let (error, ()) = tokio::join!(error(request, status, name), async {
                front.mock.job().await.fail(fault());
            });
            assert_eq!(error["error"]["message"], "so it is");
        }
        // After the message has begun, the error is an event.
        let body = message(&json!({"stream": true}));
        let ((status, text), ()) = tokio::join!(front.post(MESSAGES, &body), async {
            let job = front.mock.job().await;
            job.tokens(&ids("Hi"));
            job.fail(fault());
        });
        assert_eq!(status, 200);
        let events = named_events(&text);
        assert_eq!(names(&events).last(), Some(&"error"), "{text}");
        let last = events.last().expect("events");
        assert_eq!(last["error"], json!({"type": name, "message": "so it is"}));
        assert!(last["request_id"].is_string());
    }
}

#[tokio::test]
async fn keys_come_in_either_header() {
    let front = start_with(|_, node| node.api_key = Some("secret".to_owned())).await;
    let body = message(&json!({}));
    let ask = || post(&front, &body).header("anthropic-version", "2023-06-01");
    for request in [
        ask(),
        ask().header("x-api-key", "secreT"),
        ask().bearer_auth("x"),
        ask().bearer_auth("x").header("x-api-key", ""),
    ] {
        error(request, 401, "authentication_error").await;
    }
    for request in [
        ask().header("x-api-key", "secret"),
        ask().bearer_auth("secret"),
        ask().bearer_auth("x").header("x-api-key", "secret"),
        ask().bearer_auth("secret").header("x-api-key", "x"),
    ] {
        let (response, ()) = tokio::join!(request.send(), async {
            let job = front.mock.job().await;
            job.finish(FinishReason::Stop, 0);
        });
        let response = response.expect("answered");
        assert_eq!(response.status(), 200);
        assert!(response.headers().contains_key("request-id"));
    }
}

#[tokio::test]
async fn an_answers_id_aborts_its_request() {
    let front = start().await;
    let body = message(&json!({"stream": true}));
    let request = post(&front, &body).header("x-request-id", "mine").send();
    let (response, job) = tokio::join!(request, async {
        let job = front.mock.job().await;
        job.tokens(&ids("Hi"));
        job
    });
    assert_eq!(job.submit.trace_id, "msg_mine");
    for rid in ["msg_mine", "mine"] {
        let asked = json!({"rid": rid});
        let (answer, ()) = tokio::join!(front.ok("/abort_request", &asked), async {
            let abort = front.mock.abort_trace().await;
            assert!(
                abort.trace_ids.contains(&"msg_mine".to_owned()),
                "{abort:?}"
            );
            front.mock.aborted(&abort, 1);
        });
        assert_eq!(answer, json!({"aborted": 1}));
    }
    job.finish(FinishReason::Abort, 2);
    let text = response.expect("answered").text().await.expect("a body");
    let events = named_events(&text);
    let last = events.last().expect("events");
    assert_eq!(last["error"]["type"], "invalid_request_error", "{text}");
}
