//! Tests of `sglang.grpc.scheduler.SglangScheduler`, with calls like those of SGLang's
//! gateway.

use futures::StreamExt;
use lockstep_proto::pb::{
    sglang::grpc::scheduler::{
        GenerateRequest, GetLoadsRequest, GetModelInfoRequest, GetServerInfoRequest,
        HealthCheckRequest, SamplingParams, TokenizedInput, generate_response::Response,
        sampling_params::Constraint,
    },
    smg::grpc::common::GetTokenizerRequest,
};
use lockstep_tests::{MODEL, server::Server, turns};
use serde_json::json;

use crate::shared;

/// A streamed request with greedy sampling.
pub fn greedy(request_id: &str, input_ids: Vec<u32>, tokens: u32) -> GenerateRequest {
    GenerateRequest {
        request_id: request_id.to_owned(),
        tokenized: Some(TokenizedInput {
            input_ids,
            ..TokenizedInput::default()
        }),
        sampling_params: Some(SamplingParams {
            max_new_tokens: Some(tokens),
            top_p: 1.0,
            top_k: -1,
            repetition_penalty: 1.0,
            n: 1,
            ..SamplingParams::default()
        }),
        logprob_start_len: -1,
        stream: true,
        ..GenerateRequest::default()
    }
}

/// Returns the text of a call's whole output.
async fn text(server: &Server, request: GenerateRequest) -> String {
    let stream = server.sglang().await.generate(request).await;
    let mut messages = stream.expect("accepted").into_inner();
    let mut tokens = None;
    while let Some(message) = messages.next().await {
        if let Some(Response::Complete(complete)) = message.expect("a message").response {
            assert_eq!(complete.finish_reason, "stop");
            tokens = Some(complete.output_ids);
        }
    }
    let body = json!({"tokens": tokens.expect("an end"), "skip_special_tokens": true});
    let answer = server.ok("/detokenize", &body).await;
    answer["prompt"].as_str().expect("a text").to_owned()
}

/// Calls follow the grammars that requests over HTTP follow, compiled before the call queues.
#[tokio::test]
async fn its_calls_can_be_held_to_a_language() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let body = json!({"prompt": "It is"});
    let prompt = server.ok("/tokenize", &body).await["tokens"].clone();
    let prompt: Vec<u32> = serde_json::from_value(prompt).expect("tokens");
    let call = |id: &str, constraint, temperature| {
        let mut request = greedy(id, prompt.clone(), 200);
        if let Some(params) = &mut request.sampling_params {
            params.constraint = Some(constraint);
            params.temperature = temperature;
        }
        request
    };
    let digits = |text: &str| text.len() == 7 && text.bytes().all(|byte| byte.is_ascii_digit());
    let schema = r#"{"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}"#;
    for (number, temperature) in [0.0, 1.0, 2.0].into_iter().enumerate() {
        let regex = Constraint::Regex("[0-9]{7}".to_owned());
        let said = text(&server, call(&format!("r{number}"), regex, temperature)).await;
        assert!(digits(&said), "{said}");
        let schema = Constraint::JsonSchema(schema.to_owned());
        let said = text(&server, call(&format!("s{number}"), schema, temperature)).await;
        let value: serde_json::Result<[bool; 2]> = serde_json::from_str(&said);
        assert!(value.is_ok(), "{said}");
        let grammar = Constraint::EbnfGrammar("root ::= \"(\" root \")\" | [0-9]{7}".to_owned());
        let said = text(&server, call(&format!("e{number}"), grammar, temperature)).await;
        let inner = said.trim_start_matches('(').trim_end_matches(')');
        assert!(digits(inner), "{said}");
        let tag = json!({"type": "structural_tag", "format": {"type": "tag", "begin": "<f>",
            "content": {"type": "any_text", "max_chars": 9}, "end": "</f>"}});
        let tag = Constraint::StructuralTag(tag.to_string());
        let said = text(&server, call(&format!("t{number}"), tag, temperature)).await;
        let inner = said
            .strip_prefix("<f>")
            .and_then(|said| said.strip_suffix("</f>"));
        assert!(
            inner.is_some_and(|inner| inner.chars().count() < 10),
            "{said}"
        );
    }
    let refused = Constraint::JsonSchema(r#"{"items": {"uniqueItems": true}}"#.to_owned());
    let refused = call("refused", refused, 0.0);
    let status = server.sglang().await.generate(refused).await;
    let status = status.expect_err("a keyword");
    assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status}");
    let named = "sampling_params.json_schema: at \"#/items\": the keyword 'uniqueItems'";
    assert!(status.message().starts_with(named), "{status}");
}

#[tokio::test]
async fn its_tokens_are_those_of_the_http_answer() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let messages = json!([{"role": "user", "content": "Count from 3 to 12."}]);
    let prompt = server.ok("/tokenize", &json!({"messages": messages})).await["tokens"].clone();
    let native =
        json!({"input_ids": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 100}});
    let expected = server.ok("/generate", &native).await;
    let ids = |value: &serde_json::Value| -> Vec<u32> {
        serde_json::from_value(value.clone()).expect("tokens")
    };
    let mut client = server.sglang().await;
    let request = greedy("chatcmpl-1", ids(&prompt), 100);
    let stream = client
        .generate(request)
        .await
        .expect("accepted")
        .into_inner();
    let messages: Vec<_> = stream
        .map(|message| message.expect("a message"))
        .collect()
        .await;
    let (mut streamed, mut end) = (Vec::new(), None);
    for message in messages {
        match message.response.expect("a response") {
            Response::Chunk(chunk) => streamed.extend(chunk.token_ids),
            Response::Complete(complete) => end = Some(complete),
        }
    }
    let end = end.expect("an end");
    assert_eq!(end.output_ids, ids(&expected["output_ids"]));
    assert_eq!(end.output_ids[..streamed.len()], streamed);
    assert_eq!(end.finish_reason, "stop");
    assert_eq!(
        json!([end.prompt_tokens, end.completion_tokens]),
        json!([
            expected["meta_info"]["prompt_tokens"],
            expected["meta_info"]["completion_tokens"]
        ])
    );
}

#[tokio::test]
async fn a_gateway_can_register_it() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let mut client = server.sglang().await;
    let health = client
        .health_check(HealthCheckRequest {})
        .await
        .expect("an answer")
        .into_inner();
    assert!(health.healthy, "{}", health.message);
    let model = client
        .get_model_info(GetModelInfoRequest {})
        .await
        .expect("an answer")
        .into_inner();
    assert_eq!(
        (model.served_model_name.as_str(), model.is_generation),
        (MODEL, true)
    );
    assert_eq!(model.max_context_length, 2048);
    let info = client
        .get_server_info(GetServerInfoRequest {})
        .await
        .expect("an answer")
        .into_inner();
    let args = info.server_args.expect("arguments");
    assert!(args.fields.contains_key("tp_size"));
    // A request like the gateway's.
    let request = GetLoadsRequest {
        include: ["core", "disagg", "queues", "memory"]
            .map(str::to_owned)
            .into(),
        ..GetLoadsRequest::default()
    };
    let loads = client.get_loads(request).await.expect("an answer");
    let loads = loads.into_inner().loads;
    assert_eq!(loads.len(), 1);
    let memory = loads[0].memory.as_ref().expect("asked for");
    // The model has 7 million parameters, the cache 32,768 tokens.
    assert!(
        memory.weight_gb > 0.005 && memory.kv_cache_gb > 0.005,
        "{memory:?}"
    );
    assert!(
        memory.weight_gb < 1.0 && memory.kv_cache_gb < 1.0,
        "{memory:?}"
    );
    let chunks = client
        .get_tokenizer(GetTokenizerRequest::default())
        .await
        .expect("an answer");
    let chunks: Vec<_> = chunks
        .into_inner()
        .map(|chunk| chunk.expect("a chunk"))
        .collect()
        .await;
    let last = chunks.last().expect("a chunk");
    assert_eq!(last.sha256.len(), 64);
    assert!(chunks[0].data.starts_with(b"PK"), "a zip archive");
}
