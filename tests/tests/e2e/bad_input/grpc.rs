//! Bad messages to both gRPC services.

use std::collections::HashMap;

use lockstep_proto::pb::{
    lockstep::{
        Abort, AbortRequest, Chat, ChatMessage, Choices, DetokenizeRequest, GenerateRequest,
        GenerateResponse, LogprobParams, SamplingParams, TokenIds,
        generate_request::{Constraint as Language, Input},
    },
    sglang::grpc::scheduler::{
        EmbedRequest, GenerateRequest as SglangRequest, MultimodalInputs,
        sampling_params::Constraint,
    },
};
use lockstep_tests::{grpc::connect, server::Server};
use tonic::{Code, Status};

use super::beside_good_requests;
use crate::{grpc, sglang};

/// Name, damage to a good request, and the field that the error names.
type Row<T> = (&'static str, fn(&mut T), &'static str);

fn sampling(request: &mut GenerateRequest) -> &mut SamplingParams {
    request.sampling.get_or_insert_default()
}

fn messages(request: &mut GenerateRequest, role: &str, content: &str, count: usize) {
    let message = ChatMessage {
        role: role.to_owned(),
        content: content.to_owned(),
    };
    request.input = Some(Input::Chat(Chat {
        messages: vec![message; count],
    }));
}

fn input_rows() -> Vec<Row<GenerateRequest>> {
    vec![
        ("no input", |r| r.input = None, "input"),
        (
            "an empty text",
            |r| r.input = Some(Input::Text(String::new())),
            "text",
        ),
        (
            "no tokens",
            |r| r.input = Some(Input::Tokens(TokenIds::default())),
            "tokens",
        ),
        (
            "an unknown token",
            |r| r.input = Some(Input::Tokens(TokenIds { ids: vec![4096] })),
            "tokens",
        ),
        (
            "too many tokens",
            |r| r.input = Some(Input::Tokens(TokenIds { ids: vec![5; 2048] })),
            "tokens",
        ),
        ("no messages", |r| messages(r, "user", "a", 0), "messages"),
        (
            "too many messages",
            |r| messages(r, "user", "a", 5000),
            "chat.messages",
        ),
        (
            "an unknown role",
            |r| messages(r, "robot", "a", 1),
            "messages[0].role",
        ),
        (
            "a long chat",
            |r| messages(r, "user", &"word ".repeat(3000), 1),
            "chat",
        ),
        (
            "a bad id",
            |r| r.request_id = Some("a b".to_owned()),
            "request_id",
        ),
        (
            "an empty id",
            |r| r.request_id = Some(String::new()),
            "request_id",
        ),
        (
            "no output",
            |r| r.max_new_tokens = Some(0),
            "max_new_tokens",
        ),
        ("too much output", |r| r.max_new_tokens = Some(5000), "text"),
        ("no choices", |r| r.n = Some(0), "n"),
        ("too many choices", |r| r.n = Some(1_000_000), "n"),
        (
            "too many stops",
            |r| r.stop = vec!["a".to_owned(); 5],
            "stop",
        ),
        ("an empty stop", |r| r.stop = vec![String::new()], "stop"),
        ("a priority", |r| r.priority = Some(3), "priority"),
        (
            "a DP rank",
            |r| r.data_parallel_rank = Some(1),
            "data_parallel_rank",
        ),
        (
            "an adapter",
            |r| r.adapter = Some("x".to_owned()),
            "adapter",
        ),
        (
            "an empty salt",
            |r| r.cache_salt = Some(String::new()),
            "cache_salt",
        ),
    ]
}

fn constraint_rows() -> Vec<Row<GenerateRequest>> {
    vec![
        (
            "a schema that is no JSON",
            |r| r.constraint = Some(Language::JsonSchema("{".to_owned())),
            "json_schema",
        ),
        (
            "an expression that is none",
            |r| r.constraint = Some(Language::Regex("(a".to_owned())),
            "regex",
        ),
        (
            "a choice of nothing",
            |r| r.constraint = Some(Language::Choice(Choices::default())),
            "choice",
        ),
        (
            "a broken grammar of GBNF",
            |r| r.constraint = Some(Language::Grammar("root ::= x".to_owned())),
            "grammar",
        ),
        (
            "a broken grammar of Lark",
            |r| r.constraint = Some(Language::Grammar("start: x".to_owned())),
            "grammar",
        ),
        (
            "a grammar without a rule",
            |r| r.constraint = Some(Language::Grammar(String::new())),
            "grammar",
        ),
        (
            "a structural tag of two forms",
            |r| {
                let tag = "{\"format\": {\"type\": \"any_text\"}, \"triggers\": [\"x\"]}";
                r.constraint = Some(Language::StructuralTag(tag.to_owned()));
            },
            "structural_tag",
        ),
    ]
}

fn sampling_rows() -> Vec<Row<GenerateRequest>> {
    vec![
        (
            "a negative temperature",
            |r| sampling(r).temperature = Some(-1.0),
            "temperature",
        ),
        (
            "a temperature that is no number",
            |r| sampling(r).temperature = Some(f32::NAN),
            "temperature",
        ),
        (
            "an infinite temperature",
            |r| sampling(r).temperature = Some(f32::INFINITY),
            "temperature",
        ),
        ("no nucleus", |r| sampling(r).top_p = Some(0.0), "top_p"),
        (
            "a nucleus that is no number",
            |r| sampling(r).top_p = Some(f32::NAN),
            "top_p",
        ),
        (
            "a negative top-k",
            |r| sampling(r).top_k = Some(-5),
            "top_k",
        ),
        ("a large min-p", |r| sampling(r).min_p = Some(1.5), "min_p"),
        (
            "a large penalty",
            |r| sampling(r).presence_penalty = Some(3.0),
            "presence_penalty",
        ),
        (
            "no repetition penalty",
            |r| sampling(r).repetition_penalty = Some(0.0),
            "repetition_penalty",
        ),
        (
            "a bias on an unknown token",
            |r| sampling(r).logit_bias = HashMap::from([(99_999, 1.0)]),
            "logit_bias",
        ),
        (
            "a bias that is no number",
            |r| sampling(r).logit_bias = HashMap::from([(5, f32::NAN)]),
            "logit_bias",
        ),
        (
            "more minimum than output",
            |r| sampling(r).min_new_tokens = Some(50),
            "min_new_tokens",
        ),
        (
            "an unknown stop token",
            |r| sampling(r).stop_token_ids = vec![99_999],
            "stop_token_ids",
        ),
        (
            "too many alternatives",
            |r| {
                r.logprobs = Some(LogprobParams {
                    output: Some(true),
                    top: Some(100),
                    prompt_start: None,
                });
            },
            "logprobs.top",
        ),
    ]
}

fn params(
    request: &mut SglangRequest,
) -> &mut lockstep_proto::pb::sglang::grpc::scheduler::SamplingParams {
    request.sampling_params.get_or_insert_default()
}

fn tokens(request: &mut SglangRequest, ids: Vec<u32>) {
    request.tokenized.get_or_insert_default().input_ids = ids;
}

fn sglang_rows() -> Vec<Row<SglangRequest>> {
    vec![
        ("no input", |r| r.tokenized = None, "input_ids"),
        ("no tokens", |r| tokens(r, Vec::new()), "input_ids"),
        ("an unknown token", |r| tokens(r, vec![4096]), "input_ids"),
        (
            "too many tokens",
            |r| tokens(r, vec![5; 2048]),
            "context length",
        ),
        (
            "too much output",
            |r| params(r).max_new_tokens = Some(5000),
            "context length",
        ),
        (
            "no output",
            |r| params(r).max_new_tokens = Some(0),
            "max_new_tokens",
        ),
        (
            "a negative temperature",
            |r| params(r).temperature = -1.0,
            "temperature",
        ),
        (
            "a temperature that is no number",
            |r| params(r).temperature = f32::NAN,
            "temperature",
        ),
        ("a large nucleus", |r| params(r).top_p = 1.5, "top_p"),
        ("a negative top-k", |r| params(r).top_k = -7, "top_k"),
        (
            "a large penalty",
            |r| params(r).frequency_penalty = 3.0,
            "frequency_penalty",
        ),
        ("too many choices", |r| params(r).n = 100_000, "n"),
        (
            "a broken grammar",
            |r| params(r).constraint = Some(Constraint::EbnfGrammar("root ::= a".to_owned())),
            "ebnf_grammar",
        ),
        (
            "a structural tag that is none",
            |r| params(r).constraint = Some(Constraint::StructuralTag("[]".to_owned())),
            "structural_tag",
        ),
        (
            "a bias without a token",
            |r| params(r).logit_bias = HashMap::from([("x".to_owned(), 1.0)]),
            "logit_bias",
        ),
        (
            "images",
            |r| r.mm_inputs = Some(MultimodalInputs::default()),
            "mm_inputs",
        ),
        ("an adapter", |r| r.lora_id = "x".to_owned(), "lora_id"),
        (
            "hidden states",
            |r| r.return_hidden_states = true,
            "return_hidden_states",
        ),
        (
            "too many alternatives",
            |r| {
                r.return_logprob = true;
                r.top_logprobs_num = 1000;
            },
            "top_logprobs_num",
        ),
    ]
}

/// Returns the status that a call ends with.
async fn refusal<T>(
    called: Result<tonic::Response<tonic::Streaming<T>>, Status>,
) -> Option<Status> {
    match called {
        Err(status) => Some(status),
        Ok(stream) => stream.into_inner().message().await.err(),
    }
}

async fn inference(server: &Server, wrong: &mut Vec<String>) {
    let mut client = server.inference().await;
    let rows = [input_rows(), constraint_rows(), sampling_rows()];
    for (row, harm, field) in rows.into_iter().flatten() {
        let mut request = grpc::greedy(Input::Text("a".to_owned()), 5);
        harm(&mut request);
        let Some(status) = refusal(client.generate(request).await).await else {
            wrong.push(format!("{row}: accepted"));
            continue;
        };
        let param = status
            .metadata()
            .get("param")
            .and_then(|param| param.to_str().ok());
        if status.code() != Code::InvalidArgument || param != Some(field) {
            wrong.push(format!("{row}: {field:?} was expected: {status:?}"));
        }
    }
    let unknown = DetokenizeRequest {
        ids: vec![99_999],
        skip_special_tokens: None,
    };
    let status = client.detokenize(unknown).await.expect_err("refused");
    assert_eq!(status.code(), Code::InvalidArgument);
    let nobody = AbortRequest::default();
    let status = client.abort(nobody).await.expect_err("refused");
    assert_eq!(status.code(), Code::InvalidArgument);
    // Larger than a message may be.
    let large = grpc::greedy(Input::Text("x".repeat(17 << 20)), 5);
    let status = refusal(client.generate(large).await)
        .await
        .expect("refused");
    assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
}

async fn gateway(server: &Server, wrong: &mut Vec<String>) {
    let mut client = server.sglang().await;
    for (row, harm, named) in sglang_rows() {
        let mut request = sglang::greedy(row, vec![5, 6], 5);
        harm(&mut request);
        match refusal(client.generate(request).await).await {
            Some(status)
                if status.code() == Code::InvalidArgument && status.message().contains(named) => {}
            other => wrong.push(format!("{row}: {named:?} was expected: {other:?}")),
        }
    }
    let status = client
        .embed(EmbedRequest::default())
        .await
        .expect_err("refused");
    assert_eq!(status.code(), Code::Unimplemented);
}

/// Calls methods that do not exist, and sends messages of another type.
async fn wrong_calls(server: &Server, wrong: &mut Vec<String>) {
    let unknown = [
        (server.grpc_port, "/lockstep.v1.Inference/NoSuchMethod"),
        (server.grpc_port, "/vllm.grpc.engine.VllmEngine/HealthCheck"),
        // Internal services are on no public port.
        (server.grpc_port, "/lockstep.v1.Frontend/GetLoad"),
        (server.sglang_port, "/lockstep.v1.Frontend/GetLoad"),
        (server.sglang_port, "/lockstep.v1.WorkerGateway/Attach"),
        (
            server.sglang_port,
            "/sglang.grpc.scheduler.SglangScheduler/NoSuchMethod",
        ),
    ];
    for (port, path) in unknown {
        match call(port, path).await {
            Err(status) if status.code() == Code::Unimplemented => {}
            other => wrong.push(format!("{path}: {other:?}")),
        }
    }
    // Messages with a number where a string is expected.
    let garbled = [
        (server.grpc_port, "/lockstep.v1.Inference/Generate"),
        (
            server.sglang_port,
            "/sglang.grpc.scheduler.SglangScheduler/Generate",
        ),
    ];
    for (port, path) in garbled {
        match call(port, path).await {
            Err(status) if status.code() == Code::Internal => {}
            other => wrong.push(format!("{path}: {other:?}")),
        }
    }
}

/// Calls `path` with a message whose first field is a number.
async fn call(port: u16, path: &'static str) -> Result<(), Status> {
    let channel = connect(port).await.expect("connected");
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.expect("ready");
    let codec = tonic_prost::ProstCodec::<Abort, GenerateResponse>::default();
    let message = tonic::Request::new(Abort { request: 7 });
    let path = path.parse().expect("a path");
    client.unary(message, path, codec).await.map(|_| ())
}

#[tokio::test]
async fn bad_messages_are_refused_by_field() {
    beside_good_requests(async |server| {
        let mut wrong = Vec::new();
        inference(server, &mut wrong).await;
        gateway(server, &mut wrong).await;
        wrong_calls(server, &mut wrong).await;
        wrong
    })
    .await;
}
