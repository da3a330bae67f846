//! Bad input: each request gets its status and an error object, and other requests are
//! served.

use lockstep_proto::pb::lockstep::{
    FinishReason, GenerateRequest, Output, generate_request::Input,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{
    client::{chat, completion},
    harness::{Front, start, start_with},
    mock::{id, ids, logprob, tokens},
};

/// Checks that the answer is OpenAI's error object, with all four keys and the field at
/// fault.
fn check_error(case: &str, status: u16, param: &str, (got, text): &(u16, String)) {
    assert_eq!(*got, status, "{case}: {text}");
    let body: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("{case}: {text}"));
    let error = body["error"].as_object().expect("an error object");
    for key in ["message", "type", "param", "code"] {
        assert!(error.contains_key(key), "{case}: {text}");
    }
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|message| !message.is_empty()),
        "{case}"
    );
    assert_eq!(
        error["param"].as_str().unwrap_or(""),
        param,
        "{case}: {text}"
    );
}

/// Checks that the server still answers.
async fn serves(front: &Front) {
    let body = completion(&json!({}));
    let (answer, ()) = tokio::join!(front.ok("/v1/completions", &body), async {
        let job = front.mock.job().await;
        job.tokens(&ids("ok"));
        job.finish(FinishReason::Stop, 2);
    });
    assert_eq!(answer["choices"][0]["text"], "ok");
}

/// Cases: (fields, status, param).
fn common() -> Vec<(Value, u16, &'static str)> {
    vec![
        (json!({"model": "other"}), 404, "model"),
        (json!({"model": 5}), 400, "model"),
        (json!({"temperature": -0.1}), 400, "temperature"),
        (json!({"temperature": 2.1}), 400, "temperature"),
        (json!({"temperature": "hot"}), 400, "temperature"),
        (json!({"top_p": -0.1}), 400, "top_p"),
        (json!({"top_p": 1.5}), 400, "top_p"),
        (json!({"top_k": -2}), 400, "top_k"),
        (json!({"top_k": 1.5}), 400, "top_k"),
        (json!({"min_p": -1}), 400, "min_p"),
        (json!({"presence_penalty": 2.5}), 400, "presence_penalty"),
        (json!({"frequency_penalty": -3}), 400, "frequency_penalty"),
        (json!({"repetition_penalty": 0}), 400, "repetition_penalty"),
        (json!({"n": 0}), 400, "n"),
        (json!({"n": -1}), 400, "n"),
        (json!({"n": 9}), 400, "n"),
        (json!({"n": 1e30}), 400, "n"),
        (json!({"n": 1.5}), 400, "n"),
        (json!({"best_of": 3}), 400, "best_of"),
        (json!({"stop": ""}), 400, "stop"),
        (json!({"stop": ["a", ""]}), 400, "stop"),
        (json!({"stop": ["a", "b", "c", "d", "e"]}), 400, "stop"),
        (json!({"stop": "x".repeat(65)}), 400, "stop"),
        (json!({"stop": 5}), 400, "stop"),
        (json!({"stop": [5]}), 400, "stop[0]"),
        (json!({"stop_token_ids": [4096]}), 400, "stop_token_ids"),
        (json!({"stop_token_ids": [-1]}), 400, "stop_token_ids[0]"),
        (
            json!({"stop_token_ids": [1, 2, 3, 4, 5, 6, 7, 8, 9]}),
            400,
            "stop_token_ids",
        ),
        (json!({"logit_bias": {"4096": 1}}), 400, "logit_bias"),
        (json!({"logit_bias": {"5": 101}}), 400, "logit_bias"),
        (json!({"logit_bias": {"five": 1}}), 400, "logit_bias"),
        (json!({"logit_bias": [1]}), 400, "logit_bias"),
        (
            json!({"logit_bias": {"1": 1, "2": 1, "3": 1, "4": 1, "5": 1, "6": 1, "7": 1,
                                  "8": 1, "9": 1}}),
            400,
            "logit_bias",
        ),
        (json!({"seed": 1.5}), 400, "seed"),
        (json!({"seed": "x"}), 400, "seed"),
        (json!({"max_tokens": -1}), 400, "max_tokens"),
        (json!({"max_tokens": 0}), 400, "max_tokens"),
        (json!({"max_tokens": 1.5}), 400, "max_tokens"),
        (json!({"max_tokens": "many"}), 400, "max_tokens"),
        (
            json!({"min_tokens": 20, "max_tokens": 10}),
            400,
            "min_tokens",
        ),
        (json!({"min_tokens": -1}), 400, "min_tokens"),
        (json!({"stream": "yes"}), 400, "stream"),
        (
            json!({"stream_options": {"include_usage": true}}),
            400,
            "stream_options",
        ),
        (
            json!({"stream": true, "stream_options": {"include_usage": 1}}),
            400,
            "stream_options.include_usage",
        ),
        (json!({"priority": 1}), 400, "priority"),
        (json!({"priority": -1}), 400, "priority"),
    ]
}

/// Returns a text as long as a request may be. Each of its bytes takes seven bytes once
/// the text is escaped by Rust and again by JSON.
fn long() -> String {
    "\u{7f}".repeat(1 << 20)
}

#[tokio::test]
async fn errors_repeat_little_of_what_was_sent() {
    let front = start_with(|engine, _| {
        engine.server.limits.body_bytes = 4 << 20;
        engine.server.limits.memory_bytes = 64 << 20;
    })
    .await;
    for (path, body) in [
        (
            "/v1/completions",
            completion(&json!({"logit_bias": {long(): 1}})),
        ),
        ("/v1/completions", completion(&json!({"model": long()}))),
        ("/v1/completions", completion(&json!({"stop": {long(): 1}}))),
        ("/v1/chat/completions", chat(&json!({"stream": long()}))),
        (
            "/v1/chat/completions",
            chat(&json!({"messages": [{"role": long(), "content": "x"}]})),
        ),
        (
            "/v1/chat/completions",
            chat(&json!({"speculative": {long(): 1}})),
        ),
        (
            "/v1/completions",
            completion(&json!({"stream_options": {long(): 1}})),
        ),
        ("/generate", json!({"text": "a", "rid": long()})),
        ("/ngram/corpus", json!({"name": long(), "texts": ["a"]})),
    ] {
        let (status, text) = front.post(path, &body).await;
        assert!((400..500).contains(&status), "{path}: {status}");
        assert!(text.len() < 4096, "{path}: {} bytes", text.len());
    }
    let (status, text) = front.get(&format!("/{}", "x".repeat(4096))).await;
    assert_eq!(status, 404);
    assert!(text.len() < 2048 && text.contains("GET / and"), "{text}");
    let mut client = super::grpc::client(&front).await;
    let request = GenerateRequest {
        request_id: Some(long()),
        input: Some(Input::Text("a".to_owned())),
        ..GenerateRequest::default()
    };
    let refused = client.generate(request).await.expect_err("too long an id");
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    let message = refused.message();
    assert!(message.len() < 2048, "{} bytes", message.len());
    assert!(message.contains("expected 1 to 128"), "{message}");
}

#[tokio::test]
async fn log_probabilities_that_nobody_could_hold_are_refused() {
    let front = start_with(|engine, _| {
        engine.server.context_length = 200_000;
        engine.server.limits.memory_bytes = 5 << 18;
    })
    .await;
    // 8 choices of 200 tokens with 21 log-probabilities each take 2.7 MB, and an
    // address may hold half a MB.
    for tokens in [200, 10_000] {
        let fields = json!({"n": 8, "logprobs": true, "top_logprobs": 20, "max_tokens": tokens});
        let answer = front.post("/v1/chat/completions", &chat(&fields)).await;
        check_error("more than an address has", 400, "top_logprobs", &answer);
        for named in ["--max-request-memory", "max_tokens"] {
            assert!(answer.1.contains(named), "{}", answer.1);
        }
    }
    // One such request takes most of an address's memory until it has ended.
    let half = chat(&json!({"n": 1, "logprobs": true, "top_logprobs": 20, "max_tokens": 250}));
    for _ in 0..2 {
        let answer = async { front.ok("/v1/chat/completions", &half).await };
        let scheduler = async {
            let job = front.mock.job().await;
            let (status, text) = front.post("/v1/chat/completions", &half).await;
            assert_eq!(status, 429, "{text}");
            job.finish(FinishReason::Stop, 0);
        };
        tokio::join!(answer, scheduler);
    }
    serves(&front).await;
}

/// A request that is admitted is answered. A request that could not be answered is
/// refused before any work.
#[tokio::test]
async fn room_for_log_probabilities_is_that_of_the_answer() {
    const TOKENS: usize = 250;
    let fields = json!({"logprobs": true, "top_logprobs": 20, "max_tokens": TOKENS});
    let (path, asked) = ("/v1/chat/completions", chat(&fields));
    // 21 log-probabilities of 80 bytes for each token exceed an address's share of the
    // smaller budget, and fit its share of the larger one.
    let start = async |bytes| {
        let front = start_with(|engine, _| {
            engine.server.context_length = 1000;
            engine.server.limits.memory_bytes = bytes;
        });
        front.await
    };
    let small = start(1 << 20).await;
    let answer = small.post(path, &asked).await;
    check_error("more than an address has", 400, "top_logprobs", &answer);
    serves(&small).await;
    let large = start(5 << 18).await;
    let scheduler = async {
        let job = large.mock.job().await;
        let top = [(id('a'), -0.123_456); 20];
        for _ in 0..TOKENS {
            job.send(Output {
                logprobs: vec![logprob(id('b'), Some(-0.123_456), &top)],
                ..tokens(&[id('b')])
            });
        }
        job.finish(FinishReason::Length, 250);
    };
    let (answer, ()) = tokio::join!(large.post(path, &asked), scheduler);
    let (status, text) = answer;
    assert_eq!(status, 200, "{text}");
    assert!(text.len() > 200_000, "{} bytes", text.len());
}

#[tokio::test]
async fn both_openai_routes_refuse_bad_parameters() {
    let front = start().await;
    for (fields, status, param) in common() {
        let answer = front.post("/v1/chat/completions", &chat(&fields)).await;
        check_error(&format!("chat {fields}"), status, param, &answer);
        let answer = front.post("/v1/completions", &completion(&fields)).await;
        check_error(&format!("completions {fields}"), status, param, &answer);
    }
    serves(&front).await;
}

#[tokio::test]
async fn chat_refuses_what_is_its_own() {
    let front = start().await;
    let message = |message: Value| json!({"messages": [message]});
    let user = json!({"role": "user", "content": "x"});
    let cases = [
        (json!({"messages": null}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": "hi"}), "messages"),
        (json!({"messages": vec![user.clone(); 17]}), "messages"),
        (message(json!("hi")), "messages[0]"),
        (message(json!({"content": "x"})), "messages[0].role"),
        (
            message(json!({"role": "robot", "content": "x"})),
            "messages[0].role",
        ),
        (
            message(json!({"role": 5, "content": "x"})),
            "messages[0].role",
        ),
        (message(json!({"role": "user"})), "messages[0].content"),
        (
            message(json!({"role": "user", "content": 5})),
            "messages[0].content",
        ),
        (
            message(json!({"role": "user", "content": ["x"]})),
            "messages[0].content[0]",
        ),
        (
            message(
                json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b"}}]}),
            ),
            "messages[0].content[0]",
        ),
        (
            message(json!({"role": "user", "content": [
                {"type": "text", "text": "x"}, {"type": "input_audio", "input_audio": {}}
            ]})),
            "messages[0].content[1]",
        ),
        (
            message(json!({"role": "user", "content": [{"type": "text", "text": 5}]})),
            "messages",
        ),
        (
            message(json!({"role": "user", "content": "word ".repeat(400)})),
            "messages",
        ),
        (
            json!({"max_tokens": 5, "max_completion_tokens": 6}),
            "max_tokens",
        ),
        (json!({"max_completion_tokens": 250}), "messages"),
        (json!({"top_logprobs": 5}), "top_logprobs"),
        (
            json!({"logprobs": true, "top_logprobs": 21}),
            "top_logprobs",
        ),
        (json!({"logprobs": 1}), "logprobs"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"functions": []}), "functions"),
        (json!({"guided_json": {"not": {}}}), "guided_json"),
        (json!({"guided_grammar": "start: x"}), "guided_grammar"),
        (json!({"regex": "(a"}), "regex"),
        (
            json!({"regex": "a", "response_format": {"type": "json_object"}}),
            "regex",
        ),
        (
            json!({"response_format": {"type": "json_object"}, "ignore_eos": true}),
            "ignore_eos",
        ),
        (json!({"lora_path": "a"}), "lora_path"),
        (json!({"echo": true}), "echo"),
        (json!({"audio": {"voice": "x"}}), "audio"),
        (
            json!({"response_format": {"type": "structural_tag"}}),
            "response_format",
        ),
        (
            json!({"response_format": {"type": "structural_tag", "triggers": ["<f"],
                "structures": [{"begin": "<f>", "schema": {"not": {}}, "end": "</f>"}]}}),
            "response_format.structures[0].schema",
        ),
        (
            json!({"response_format": {"type": "structural_tag", "format": {"type": "token"}}}),
            "response_format",
        ),
        (
            json!({"structured_outputs": {"structural_tag": "{\"format\": {\"type\": \"or\",
                \"elements\": [{\"type\": \"json_schema\", \"json_schema\": {\"oneOf\":
                [{}, {}]}}]}}"}}),
            "structured_outputs.structural_tag.format.elements[0].json_schema",
        ),
        (json!({"structural_tag": [5]}), "structural_tag"),
        (json!({"response_format": {}}), "response_format"),
        (json!({"modalities": ["audio"]}), "modalities"),
        (json!({"chat_template": "{{ x }}"}), "chat_template"),
        (
            json!({"chat_template_kwargs": {"messages": []}}),
            "messages",
        ),
    ];
    for (fields, param) in cases {
        let answer = front.post("/v1/chat/completions", &chat(&fields)).await;
        check_error(&format!("{fields}"), 400, param, &answer);
    }
    serves(&front).await;
}

#[tokio::test]
async fn completions_and_generate_refuse_what_is_their_own() {
    let front = start().await;
    let cases = [
        (json!({"prompt": null}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": ""}), "prompt"),
        (json!({"prompt": [[]]}), "prompt"),
        (json!({"prompt": [5, 4096]}), "prompt"),
        (json!({"prompt": [[5], [5, 4096]]}), "prompt"),
        (json!({"prompt": [1, "a"]}), "prompt"),
        (json!({"prompt": {"a": 1}}), "prompt"),
        (json!({"prompt": vec!["a"; 9]}), "prompt"),
        (json!({"prompt": ["a", "b", "c"], "n": 3}), "n"),
        (json!({"prompt": vec![5; 253]}), "prompt"),
        (json!({"max_tokens": 253}), "prompt"),
        (
            json!({"prompt": vec![5; 257], "max_tokens": 0, "echo": true, "logprobs": 1}),
            "prompt",
        ),
        (json!({"logprobs": 6}), "logprobs"),
        (json!({"logprobs": true}), "logprobs"),
        (json!({"suffix": "x"}), "suffix"),
        (json!({"guided_choice": ["a", ""]}), "guided_choice"),
        (json!({"prompt_logprobs": 0}), "prompt_logprobs"),
        (json!({"length_penalty": 0.5}), "length_penalty"),
        (json!({"tools": [{"type": "function"}]}), "tools"),
        (json!({"n_predict": 5}), "n_predict"),
        (json!({"echo": "yes"}), "echo"),
    ];
    for (fields, param) in cases {
        let answer = front.post("/v1/completions", &completion(&fields)).await;
        check_error(&format!("{fields}"), 400, param, &answer);
    }
    let native = [
        (json!({}), "text"),
        (json!({"text": []}), "text"),
        (json!({"text": "a", "input_ids": [5]}), "input_ids"),
        (json!({"input_ids": "a"}), "input_ids"),
        (json!({"input_ids": [-1]}), "input_ids[0]"),
        (json!({"text": 5}), "text"),
        (
            json!({"text": "a", "sampling_params": {"temperature": 3}}),
            "sampling_params.temperature",
        ),
        (
            json!({"text": "a", "sampling_params": {"regex": "a{9,1}"}}),
            "sampling_params.regex",
        ),
        (
            json!({"text": "a", "sampling_params": {"max_new_tokens": 0}}),
            "sampling_params.max_new_tokens",
        ),
        (
            json!({"text": ["a", "b"], "sampling_params": [{}]}),
            "sampling_params",
        ),
        // Five of each are fewer than there may be.
        (
            json!({"text": ["a", "b"], "sampling_params": {"n": 5}}),
            "n",
        ),
        (json!({"text": "a", "rid": "bad id"}), "rid"),
        (
            json!({"text": "a", "return_logprob": true, "logprob_start_len": -5}),
            "logprob_start_len",
        ),
        (json!({"text": "a", "image_data": "x"}), "image_data"),
        (json!({"text": "a", "lora_path": ["x"]}), "lora_path"),
    ];
    for (body, param) in native {
        let answer = front.post("/generate", &body).await;
        check_error(&format!("{body}"), 400, param, &answer);
    }
    for (path, body, param) in [
        ("/tokenize", json!({}), "prompt"),
        ("/tokenize", json!({"prompt": 5}), "prompt"),
        ("/detokenize", json!({"tokens": [99999]}), "tokens"),
        ("/detokenize", json!({"tokens": [[5], [99999]]}), "tokens"),
        ("/detokenize", json!({"tokens": "a"}), "tokens"),
        ("/detokenize", json!({}), "tokens"),
        ("/abort_request", json!({}), "rid"),
    ] {
        let answer = front.post(path, &body).await;
        check_error(&format!("{path} {body}"), 400, param, &answer);
    }
    serves(&front).await;
}

#[tokio::test]
async fn a_length_that_was_not_counted_is_a_bound() {
    let front = start().await;
    let message = async |prompt: String| {
        let body = completion(&json!({"prompt": prompt}));
        let (status, text) = front.post("/v1/completions", &body).await;
        assert_eq!(status, 400, "{text}");
        let body: Value = serde_json::from_str(&text).expect("json");
        body["error"]["message"].as_str().expect("text").to_owned()
    };
    let counted = message("a b ".repeat(300)).await;
    assert!(!counted.contains("at least"), "{counted}");
    let bound = message("a b ".repeat(15_000)).await;
    assert!(bound.contains("resulted in at least "), "{bound}");
}

/// Sends bytes unchanged; returns status and body of the answer.
async fn raw(front: &Front, request: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(front.address).await.expect("connected");
    stream.write_all(request).await.expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("answered");
    let answer = String::from_utf8(answer).expect("text");
    let status = answer
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3)?.parse().ok())
        .unwrap_or_else(|| panic!("{answer:?}"));
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, body.to_owned())
}

#[tokio::test]
async fn bodies_and_headers_are_limited_before_they_are_read() {
    let front = start().await;
    let post = |headers: &str, body: &[u8]| {
        let mut request = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        request
    };
    let json_type = "content-type: application/json\r\n";
    let deep = format!("{}1{}", "[".repeat(40), "]".repeat(40));
    let cases: Vec<(&str, u16, Vec<u8>)> = vec![
        ("empty", 400, post(json_type, b"")),
        ("no json", 400, post(json_type, b"{nope}")),
        ("cut", 400, post(json_type, b"{\"model\": \"demo\"")),
        ("a list", 400, post(json_type, b"[]")),
        ("two", 400, post(json_type, b"{\"model\": \"demo\", \"prompt\": \"a\"} {}")),
        ("no utf-8", 400, post(json_type, b"{\"prompt\": \"\xff\xfe\"}")),
        ("half a pair", 400, post(json_type, br#"{"prompt": "\ud800"}"#)),
        ("nan", 400, post(json_type, br#"{"temperature": NaN}"#)),
        ("huge number", 400, post(json_type, br#"{"temperature": 1e999}"#)),
        ("deep", 400, post(json_type, deep.as_bytes())),
        ("deeper", 400, post(json_type, "[".repeat(60_000).as_bytes())),
        ("form", 415, post("content-type: application/x-www-form-urlencoded\r\n", b"a=b")),
        ("large", 413, post(json_type, "x".repeat(70_000).as_bytes())),
        (
            "chunks without end",
            413,
            [
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n11170\r\n".to_vec(),
                "x".repeat(70_000).into_bytes(),
                b"\r\n0\r\n\r\n".to_vec(),
            ]
            .concat(),
        ),
        (
            "headers",
            431,
            post(&format!("x-a: {}\r\n", "y".repeat(9000)), b"{}"),
        ),
        (
            "target",
            431,
            format!("GET /v1/models?{} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", "y".repeat(9000)).into_bytes(),
        ),
        ("unknown path", 404, b"GET /v2/x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".to_vec()),
        (
            "wrong method",
            405,
            b"GET /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".to_vec(),
        ),
        (
            "bad escape",
            400,
            b"GET /v1/models/%ff HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".to_vec(),
        ),
    ];
    for (case, status, request) in cases {
        let answer = raw(&front, &request).await;
        assert_eq!(answer.0, status, "{case}: {answer:?}");
        let body: Value =
            serde_json::from_str(&answer.1).unwrap_or_else(|_| panic!("{case}: {answer:?}"));
        assert!(body["error"]["message"].is_string(), "{case}");
    }
    serves(&front).await;
}
