//! Tests of `lockstep.v1.Inference` and of gRPC's health and reflection services.

use futures::StreamExt;
use lockstep_proto::pb::lockstep::{
    AbortRequest, Chat, ChatMessage, DetokenizeRequest, FinishReason, GenerateRequest,
    GenerateResponse, GetModelInfoRequest, GetServerInfoRequest, LogprobParams, SamplingParams,
    TokenIds, TokenizeRequest, generate_request::Input, generate_response::Matched,
};
use lockstep_tests::{
    MODEL,
    body::{COUNTED, completion},
    grpc::connect,
    turns,
};
use serde_json::json;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use crate::shared;

const PROMPT: &str = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,";

/// A request with greedy sampling.
pub fn greedy(input: Input, tokens: u32) -> GenerateRequest {
    GenerateRequest {
        input: Some(input),
        max_new_tokens: Some(tokens),
        sampling: Some(SamplingParams {
            temperature: Some(0.0),
            ..SamplingParams::default()
        }),
        ..GenerateRequest::default()
    }
}

fn counting() -> Input {
    let message = ChatMessage {
        role: "user".to_owned(),
        content: "Count from 3 to 12.".to_owned(),
    };
    Input::Chat(Chat {
        messages: vec![message],
    })
}

async fn collect(
    server: &lockstep_tests::server::Server,
    request: GenerateRequest,
) -> Vec<GenerateResponse> {
    let mut client = server.inference().await;
    let stream = client
        .generate(request)
        .await
        .expect("accepted")
        .into_inner();
    stream
        .map(|message| message.expect("a message"))
        .collect()
        .await
}

fn text(messages: &[GenerateResponse]) -> String {
    messages
        .iter()
        .map(|message| message.text.as_str())
        .collect()
}

#[tokio::test]
async fn text_tokens_and_chats_are_generated_from() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let expected = server
        .ok(
            "/v1/completions",
            &completion(PROMPT, &json!({"max_tokens": 12})),
        )
        .await;
    let expected = expected["choices"][0]["text"].as_str().expect("a text");
    let mut client = server.inference().await;
    let tokenize = TokenizeRequest {
        text: PROMPT.to_owned(),
        add_special_tokens: None,
    };
    let ids = client
        .tokenize(tokenize)
        .await
        .expect("tokens")
        .into_inner()
        .ids;
    for input in [
        Input::Text(PROMPT.to_owned()),
        Input::Tokens(TokenIds { ids }),
    ] {
        for stream in [None, Some(true), Some(false)] {
            let request = GenerateRequest {
                stream,
                ..greedy(input.clone(), 12)
            };
            let messages = collect(&server, request).await;
            assert_eq!(text(&messages), expected);
            let ids: usize = messages.iter().map(|message| message.token_ids.len()).sum();
            assert_eq!(ids, 12);
            assert_eq!(messages.len() == 1, stream == Some(false));
            let last = messages.last().expect("a last message");
            assert_eq!(last.finish_reason(), FinishReason::Length);
            assert_eq!(last.usage.expect("counts").completion_tokens, 12);
        }
    }
    let mut request = greedy(counting(), 100);
    request.stop = vec!["7, 8".to_owned()];
    let messages = collect(&server, request).await;
    assert_eq!(text(&messages), "3, 4, 5, 6, ");
    let last = messages.last().expect("a last message");
    assert_eq!(last.finish_reason(), FinishReason::Stop);
    assert_eq!(last.matched, Some(Matched::MatchedStop("7, 8".to_owned())));
}

#[tokio::test]
async fn absent_fields_are_defaults_and_zero_is_a_choice() {
    let (_turn, server) = (turns::shared().await, shared().await);
    // Absent fields mean temperature 1 and as many tokens as the context allows.
    let mut request = greedy(counting(), 0);
    request.max_new_tokens = None;
    assert_eq!(text(&collect(&server, request).await), COUNTED);
    let mut client = server.inference().await;
    let mut zero = greedy(counting(), 10);
    zero.sampling.as_mut().expect("set").top_p = Some(0.0);
    let refused = client.generate(zero).await.expect_err("refused");
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert_eq!(
        refused
            .metadata()
            .get("param")
            .and_then(|param| param.to_str().ok()),
        Some("top_p")
    );
}

#[tokio::test]
async fn logprobs_and_choices_arrive_by_index() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let mut request = greedy(counting(), 8);
    request.n = Some(2);
    request.logprobs = Some(LogprobParams {
        output: Some(true),
        top: Some(2),
        prompt_start: Some(0),
    });
    let messages = collect(&server, request).await;
    for index in 0..2 {
        let own: Vec<_> = messages
            .iter()
            .filter(|message| message.index == index)
            .collect();
        let tokens: Vec<_> = own
            .iter()
            .flat_map(|message| message.token_ids.clone())
            .collect();
        let logprobs: Vec<_> = own
            .iter()
            .flat_map(|message| message.logprobs.clone())
            .collect();
        let ids: Vec<_> = logprobs.iter().map(|logprob| logprob.token_id).collect();
        assert_eq!(tokens, ids);
        assert!(logprobs.iter().all(|logprob| logprob.top_ids.len() == 2));
        let prompt: Vec<_> = own
            .iter()
            .flat_map(|message| message.prompt_logprobs.clone())
            .collect();
        let usage = own.last().and_then(|last| last.usage).expect("counts");
        assert_eq!(prompt.len(), usage.prompt_tokens as usize);
        assert_eq!(prompt[0].logprob, None);
    }
}

#[tokio::test]
async fn a_call_can_be_aborted_and_a_caller_may_leave() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let mut client = server.inference().await;
    let mut request = greedy(counting(), 1900);
    request.request_id = Some("to-be-aborted".to_owned());
    request.sampling.as_mut().expect("set").ignore_eos = Some(true);
    let mut stream = client
        .generate(request.clone())
        .await
        .expect("accepted")
        .into_inner();
    stream.message().await.expect("a message");
    let abort = |request_id: &str| AbortRequest {
        request_id: request_id.to_owned(),
    };
    let unknown = client.abort(abort("nobody")).await.expect("an answer");
    assert!(!unknown.into_inner().found);
    let known = client
        .abort(abort("to-be-aborted"))
        .await
        .expect("an answer");
    assert!(known.into_inner().found);
    let end = loop {
        match stream.message().await {
            Ok(Some(message)) if message.finish_reason.is_none() => {}
            end => break end,
        }
    };
    match end {
        Err(status) => assert_eq!(status.code(), tonic::Code::Aborted),
        Ok(Some(last)) => assert_eq!(last.finish_reason(), FinishReason::Abort),
        Ok(None) => panic!("no end"),
    }
    let mut left = client
        .generate(request)
        .await
        .expect("accepted")
        .into_inner();
    left.message().await.expect("a message");
    drop(left);
}

#[tokio::test]
async fn the_server_describes_itself() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let mut client = server.inference().await;
    let model = client
        .get_model_info(GetModelInfoRequest {})
        .await
        .expect("an answer")
        .into_inner();
    assert_eq!(
        (model.served_model_name.as_str(), model.max_model_len),
        (MODEL, 2048)
    );
    assert_eq!(model.vocab_size, 4096);
    let info = client
        .get_server_info(GetServerInfoRequest {})
        .await
        .expect("an answer")
        .into_inner();
    let http = server.get("/server_info").await.ok();
    assert_eq!(json!(info.config_hash), http["config_hash"]);
    let config: serde_json::Value = serde_json::from_str(&info.config_json).expect("JSON");
    assert_eq!(config["server"], http["config"]["server"]);
    let ids = client
        .tokenize(TokenizeRequest {
            text: PROMPT.to_owned(),
            add_special_tokens: Some(false),
        })
        .await
        .expect("tokens")
        .into_inner()
        .ids;
    let back = client
        .detokenize(DetokenizeRequest {
            ids,
            skip_special_tokens: None,
        })
        .await
        .expect("text");
    assert_eq!(back.into_inner().text, PROMPT);
}

#[tokio::test]
async fn health_and_reflection_are_on_every_grpc_port() {
    let (_turn, server) = (turns::shared().await, shared().await);
    for (port, service) in [
        (server.grpc_port, "lockstep.v1.Inference"),
        (server.sglang_port, "sglang.grpc.scheduler.SglangScheduler"),
    ] {
        let channel = connect(port).await.expect("connected");
        let mut health = HealthClient::new(channel.clone());
        for name in ["", service] {
            let check = HealthCheckRequest {
                service: name.to_owned(),
            };
            // The health service follows the engine's own health, perhaps a moment
            // later.
            lockstep_tests::wait::until(
                "the port to serve",
                lockstep_tests::wait::LIMIT,
                async || {
                    let answer = health.check(check.clone()).await.expect("an answer");
                    (answer.into_inner().status().as_str_name() == "SERVING").then_some(())
                },
            )
            .await;
        }
        let unknown = HealthCheckRequest {
            service: "no.such.Service".to_owned(),
        };
        let unknown = health.check(unknown).await.expect_err("unknown");
        assert_eq!(unknown.code(), tonic::Code::NotFound);

        let ask = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let mut reflection = ServerReflectionClient::new(channel);
        let mut answers = reflection
            .server_reflection_info(futures::stream::iter([ask]))
            .await
            .expect("an answer")
            .into_inner();
        let answer = answers.message().await.expect("a message").expect("one");
        let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
            panic!("{answer:?}")
        };
        assert!(
            list.service.iter().any(|found| found.name == service),
            "{list:?}"
        );
    }
}
