//! A short request for more log-probabilities than a server can keep.

use lockstep_proto::pb::{
    lockstep::{GenerateRequest, LogprobParams, generate_request::Input},
    sglang::grpc::scheduler as sglang,
};
use lockstep_tests::{
    body::{chat, completion},
    row::Row,
    server::Server,
    turns,
    wait::{LIMIT, until},
};
use serde_json::{Value, json};
use tonic::Code;

use crate::options;

const CHAT: &str = "/v1/chat/completions";
const CHOICES: usize = 16;
const TOKENS: usize = 100;

/// A chat that asks for the most alternatives of every token.
fn described(fields: &Value) -> Value {
    let mut body = chat("Hello.", fields);
    let all = json!({"logprobs": true, "top_logprobs": 20, "ignore_eos": true, "n": CHOICES});
    body = lockstep_tests::body::with(body, &all);
    lockstep_tests::body::with(body, fields)
}

#[tokio::test]
async fn log_probabilities_are_refused_where_there_is_no_room() {
    let _turn = turns::shared().await;
    // One address may hold half of the memory, and log-probabilities three quarters of
    // that half. This is enough for one such request, at 80 bytes a log-probability,
    // but not for two.
    let options = options()
        .set("--max-request-memory", "7340032")
        .set("--max-body-bytes", "1048576");
    let server = Server::start(options).await;
    let fields = json!({"max_tokens": TOKENS});
    let whole = |answer: &Value| {
        let choices = answer["choices"].as_array().expect("choices");
        assert_eq!(choices.len(), CHOICES);
        for choice in choices {
            let tokens = choice["logprobs"]["content"].as_array().expect("tokens");
            assert_eq!(tokens.len(), TOKENS);
            let alternatives = |token: &Value| token["top_logprobs"].as_array().map(Vec::len);
            assert!(tokens.iter().all(|token| alternatives(token) == Some(20)));
        }
    };
    let streamed = described(&json!({"max_tokens": TOKENS, "stream": true}));
    let mut first = server.stream(CHAT, &streamed).await;
    first.next().await;
    let refused = server.post(CHAT, &described(&fields)).await;
    assert_eq!(refused.status, 429, "{}", refused.text);
    assert!(refused.headers.contains_key("retry-after"));
    // Other requests do not need this memory, and it is free again after the first
    // request.
    server
        .ok(CHAT, &chat("Hello.", &json!({"max_tokens": 2})))
        .await;
    first.chunks().await;
    let answer = until("room again", LIMIT, async || {
        let answer = server.post(CHAT, &described(&fields)).await;
        (answer.status != 429).then_some(answer)
    })
    .await;
    whole(&answer.ok());
    // No server keeps so many log-probabilities for one request, whatever memory it
    // has.
    let refused = server.post(CHAT, &described(&json!({"n": 64}))).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    assert_eq!(refused.error()["param"], "top_logprobs");
    never_fits(&server).await;
}

/// A request that exceeds the server's memory even without other requests must not be
/// repeated. The refusal says so on every port.
async fn never_fits(server: &Server) {
    const OPTION: &str = "--max-request-memory";
    let one_more = json!({"n": CHOICES + 1, "max_tokens": TOKENS});
    let refused = server.post(CHAT, &described(&one_more)).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    assert_eq!(refused.error()["param"], "top_logprobs");
    assert!(refused.text.contains(OPTION), "{}", refused.text);
    let logprobs = LogprobParams {
        output: Some(true),
        top: Some(20),
        ..LogprobParams::default()
    };
    let text = Input::Text("Hello.".to_owned());
    let request = GenerateRequest {
        input: Some(text),
        max_new_tokens: Some(TOKENS as u32),
        n: Some(CHOICES as u32 + 1),
        logprobs: Some(logprobs),
        ..GenerateRequest::default()
    };
    let refused = server.inference().await.generate(request).await;
    let over_grpc = refused.expect_err("it never fits");
    let call = sglang::GenerateRequest {
        request_id: "never".to_owned(),
        tokenized: Some(sglang::TokenizedInput {
            input_ids: vec![5, 6, 7],
            ..sglang::TokenizedInput::default()
        }),
        sampling_params: Some(sglang::SamplingParams {
            max_new_tokens: Some(TOKENS as u32),
            n: CHOICES as u32 + 1,
            ..sglang::SamplingParams::default()
        }),
        return_logprob: true,
        top_logprobs_num: 20,
        logprob_start_len: -1,
        ..sglang::GenerateRequest::default()
    };
    let refused = server.sglang().await.generate(call).await;
    for status in [over_grpc, refused.expect_err("it never fits")] {
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().contains(OPTION), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full size"]
async fn short_requests_for_very_many_log_probabilities() {
    let _turn = turns::alone().await;
    let server = Server::start(options()).await;
    let row = Row::begin("15", &server);
    let endless = described(&json!({"n": 64}));
    let asked = server.post(CHAT, &endless).await;
    assert_eq!(asked.status, 400, "{}", asked.text);
    let prompts = vec!["1, 2, 3, 4, 5, 6, 7, 8, ".repeat(10); 64];
    let fields = json!({"max_tokens": 1, "echo": true, "logprobs": 5});
    let scored = server
        .post("/v1/completions", &completion(prompts, &fields))
        .await;
    assert!(
        matches!(scored.status, 200 | 400 | 429),
        "{}: {}",
        scored.status,
        scored.text
    );
    let outcome = format!(
        "a chat of {} bytes: {}; 64 prompts: {}",
        endless.to_string().len(),
        asked.status,
        scored.status
    );
    row.end(&server, &outcome).await;
}
