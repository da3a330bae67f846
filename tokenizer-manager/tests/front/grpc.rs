//! `lockstep.v1.Inference` and reflection.

use std::time::Duration;

use lockstep_proto::pb::lockstep::{
    AbortRequest, Chat, ChatMessage, DetokenizeRequest, ErrorKind, FinishReason, GenerateRequest,
    GenerateResponse, GetModelInfoRequest, GetServerInfoRequest, LogprobParams, RequestError,
    SamplingParams, TokenIds, TokenizeRequest, generate_request::Input, generate_response::Matched,
    inference_client::InferenceClient,
};
use tonic::{Code, Request, transport::Channel};

use super::{
    harness::{Front, MODEL, start, start_with},
    mock::{id, ids, logprob, tokens},
};

pub async fn client(front: &Front) -> InferenceClient<Channel> {
    InferenceClient::new(channel(front).await)
}

pub async fn channel(front: &Front) -> Channel {
    let endpoint = Channel::from_shared(front.grpc.clone()).expect("an address");
    // A call whose answer never begins fails instead of hanging.
    let endpoint = endpoint.timeout(Duration::from_secs(30));
    endpoint.connect().await.expect("connected")
}

pub fn text(text: &str) -> GenerateRequest {
    GenerateRequest {
        input: Some(Input::Text(text.to_owned())),
        max_new_tokens: Some(8),
        ..GenerateRequest::default()
    }
}

async fn collect(
    client: &mut InferenceClient<Channel>,
    request: GenerateRequest,
) -> Result<Vec<GenerateResponse>, tonic::Status> {
    let mut stream = client.generate(request).await?.into_inner();
    let mut answers = Vec::new();
    while let Some(answer) = stream.message().await? {
        answers.push(answer);
    }
    Ok(answers)
}

#[tokio::test]
async fn zero_is_a_choice_and_absent_a_default() {
    let front = start().await;
    let mut client = client(&front).await;
    for (sampling, temperature) in [
        (None, 1.0),
        (
            Some(SamplingParams {
                temperature: Some(0.0),
                ..SamplingParams::default()
            }),
            0.0,
        ),
    ] {
        let request = GenerateRequest {
            sampling,
            ..text("ab")
        };
        let scheduler = async {
            let job = front.mock.job().await;
            let sampling = job.submit.sampling.clone().expect("sampling");
            assert_eq!(sampling.temperature, Some(temperature));
            job.tokens(&ids("x"));
            job.finish(FinishReason::Length, 1);
        };
        let (answers, ()) = tokio::join!(collect(&mut client, request), scheduler);
        let answers = answers.expect("served");
        let text: String = answers.iter().map(|answer| answer.text.as_str()).collect();
        assert_eq!(text, "x");
        let last = answers.last().expect("answers");
        assert_eq!(last.finish_reason(), FinishReason::Length);
        assert_eq!(last.usage.map(|usage| usage.cached_tokens), Some(2));
    }
}

#[tokio::test]
async fn messages_of_many_parts_are_refused() {
    let front = start_with(|engine, _| engine.server.limits.memory_bytes = 16 << 20).await;
    let mut client = client(&front).await;
    let request = GenerateRequest {
        input: Some(Input::Chat(Chat {
            messages: vec![ChatMessage::default(); 100_000],
        })),
        ..GenerateRequest::default()
    };
    let refused = collect(&mut client, request).await.expect_err("too many");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("65536"), "{refused:?}");
}

#[tokio::test]
async fn a_chat_with_a_stop_string_in_one_message() {
    let front = start().await;
    let mut client = client(&front).await;
    let request = GenerateRequest {
        input: Some(Input::Chat(Chat {
            messages: vec![ChatMessage {
                role: "user".to_owned(),
                content: "Hello".to_owned(),
            }],
        })),
        stop: vec!["ST".to_owned()],
        stream: Some(false),
        logprobs: Some(LogprobParams {
            output: Some(true),
            ..LogprobParams::default()
        }),
        ..text("")
    };
    let scheduler = async {
        let job = front.mock.job().await;
        // The rendered prompt begins with <|im_start|>.
        assert_eq!(job.submit.input_ids.first(), Some(&1));
        for character in "abST".chars() {
            let mut output = tokens(&[id(character)]);
            output.logprobs = vec![logprob(id(character), Some(-1.0), &[])];
            job.send(output);
        }
        front.mock.stop().await;
        job.finish(FinishReason::Stop, 4);
    };
    let (answers, ()) = tokio::join!(collect(&mut client, request), scheduler);
    let answers = answers.expect("served");
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].text, "ab");
    assert_eq!(answers[0].logprobs.len(), 2);
    assert_eq!(
        answers[0].matched,
        Some(Matched::MatchedStop("ST".to_owned()))
    );
    assert_eq!(
        answers[0].usage.map(|usage| usage.completion_tokens),
        Some(4)
    );
}

#[tokio::test]
async fn dropping_the_call_aborts_it_and_so_does_its_id() {
    let front = start().await;
    let mut client = client(&front).await;
    let stream = client.generate(text("ab"));
    let (stream, job) = tokio::join!(stream, async {
        let job = front.mock.job().await;
        job.tokens(&ids("x"));
        job
    });
    drop(stream.expect("served"));
    assert_eq!(front.mock.abort().await, job.submit.request);

    let request = GenerateRequest {
        request_id: Some("mine".to_owned()),
        ..text("ab")
    };
    let mut other = client.clone();
    let (answers, ()) = tokio::join!(collect(&mut client, request), async {
        let job = front.mock.job().await;
        let abort = AbortRequest {
            request_id: "mine".to_owned(),
        };
        let (found, ()) = tokio::join!(other.abort(abort), async {
            let abort = front.mock.abort_trace().await;
            assert_eq!(
                abort.trace_ids,
                [
                    "mine",
                    "chatcmpl-mine",
                    "cmpl-mine",
                    "msg_mine",
                    "resp_mine"
                ]
            );
            job.finish(FinishReason::Abort, 0);
            front.mock.aborted(&abort, 1);
        });
        assert!(found.expect("served").into_inner().found);
    });
    let last = answers.expect("served").pop().expect("answers");
    assert_eq!(last.finish_reason(), FinishReason::Abort);
}

#[tokio::test]
async fn operators_alone_abort_where_they_have_a_key() {
    let front = start_with(|_, node| node.admin_api_key = Some("operator".to_owned())).await;
    let mut client = client(&front).await;
    let mut abort = async |key: Option<&str>| {
        let mut request = Request::new(AbortRequest {
            request_id: "a".to_owned(),
        });
        if let Some(key) = key {
            let shown = format!("Bearer {key}").parse().expect("ascii");
            request.metadata_mut().insert("authorization", shown);
        }
        client.abort(request).await
    };
    for key in [None, Some("client")] {
        let refused = abort(key).await.expect_err("no operator");
        assert_eq!(refused.code(), Code::Unauthenticated, "{key:?}");
    }
    let (found, ()) = tokio::join!(abort(Some("operator")), async {
        let abort = front.mock.abort_trace().await;
        front.mock.aborted(&abort, 0);
    });
    assert!(!found.expect("served").into_inner().found);
}

#[tokio::test]
async fn choices_are_numbered() {
    let front = start().await;
    let mut client = client(&front).await;
    for stream in [true, false] {
        let request = GenerateRequest {
            n: Some(2),
            stream: Some(stream),
            ..text("ab")
        };
        let scheduler = async {
            for text in ["A", "B"] {
                let job = front.mock.job().await;
                job.tokens(&ids(text));
                job.finish(FinishReason::Length, 1);
            }
        };
        let (answers, ()) = tokio::join!(collect(&mut client, request), scheduler);
        let mut texts = [String::new(), String::new()];
        for answer in answers.expect("served") {
            texts[answer.index as usize].push_str(&answer.text);
        }
        assert_eq!(texts, ["A", "B"], "{stream}");
    }
}

#[tokio::test]
async fn who_finds_a_full_queue_hears_when_to_come_again() {
    let front = start().await;
    let mut client = client(&front).await;
    let (refused, ()) = tokio::join!(client.generate(text("ab")), async {
        front.mock.job().await.fail(RequestError {
            kind: ErrorKind::Overloaded.into(),
            retry_after_s: Some(3),
            ..RequestError::default()
        });
    });
    let refused = refused.expect_err("refused");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.metadata().get("retry-after").expect("a time"), "3");
}

#[tokio::test]
async fn bad_input_is_an_invalid_argument() {
    let front = start().await;
    let mut client = client(&front).await;
    let sampling = |sampling: SamplingParams| GenerateRequest {
        sampling: Some(sampling),
        ..text("ab")
    };
    let message = ChatMessage {
        role: "user".to_owned(),
        content: "x".to_owned(),
    };
    let cases = [
        (GenerateRequest::default(), "input"),
        (text(""), "text"),
        (
            GenerateRequest {
                input: Some(Input::Tokens(TokenIds { ids: vec![4096] })),
                ..text("")
            },
            "tokens",
        ),
        (
            GenerateRequest {
                max_new_tokens: Some(0),
                ..text("ab")
            },
            "max_new_tokens",
        ),
        (
            GenerateRequest {
                max_new_tokens: Some(1000),
                ..text("ab")
            },
            "text",
        ),
        (
            GenerateRequest {
                n: Some(0),
                ..text("ab")
            },
            "n",
        ),
        (
            GenerateRequest {
                stop: vec![String::new()],
                ..text("ab")
            },
            "stop",
        ),
        (
            GenerateRequest {
                request_id: Some("bad id".to_owned()),
                ..text("ab")
            },
            "request_id",
        ),
        (
            GenerateRequest {
                input: Some(Input::Chat(Chat::default())),
                ..text("")
            },
            "messages",
        ),
        (
            GenerateRequest {
                input: Some(Input::Chat(Chat {
                    messages: vec![message; 17],
                })),
                ..text("")
            },
            "chat.messages",
        ),
        (
            sampling(SamplingParams {
                temperature: Some(f32::NAN),
                ..SamplingParams::default()
            }),
            "temperature",
        ),
        (
            sampling(SamplingParams {
                top_p: Some(0.0),
                ..SamplingParams::default()
            }),
            "top_p",
        ),
        (
            sampling(SamplingParams {
                logit_bias: [(5000, 1.0)].into(),
                ..SamplingParams::default()
            }),
            "logit_bias",
        ),
    ];
    for (request, param) in cases {
        let status = client.generate(request.clone()).await.expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument, "{request:?}");
        let found = status.metadata().get("param").and_then(|p| p.to_str().ok());
        assert_eq!(found, Some(param), "{status:?}");
    }
}

#[tokio::test]
async fn information_and_tokens() {
    let front = start().await;
    let mut client = client(&front).await;
    let model = client.get_model_info(GetModelInfoRequest {}).await;
    let model = model.expect("served").into_inner();
    assert_eq!(model.served_model_name, MODEL);
    assert_eq!(
        (model.architecture.as_str(), model.dtype.as_str()),
        ("llama", "float32")
    );
    let server = client.get_server_info(GetServerInfoRequest {}).await;
    let server = server.expect("served").into_inner();
    assert_eq!(server.running_requests, 3);
    assert!(server.config_json.contains("\"context_length\""));
    let request = TokenizeRequest {
        text: "Hello wörld".to_owned(),
        add_special_tokens: None,
    };
    let ids = client.tokenize(request).await.expect("served").into_inner();
    let request = DetokenizeRequest {
        ids: ids.ids,
        skip_special_tokens: None,
    };
    let text = client.detokenize(request).await.expect("served");
    assert_eq!(text.into_inner().text, "Hello wörld");
}

#[tokio::test]
async fn the_service_describes_itself() {
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let front = start().await;
    let mut client = ServerReflectionClient::new(channel(&front).await);
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answers = client
        .server_reflection_info(tokio_stream::once(request))
        .await
        .expect("served");
    let answer = answers.into_inner().message().await.expect("open");
    let Some(MessageResponse::ListServicesResponse(list)) =
        answer.and_then(|answer| answer.message_response)
    else {
        panic!("not a list of services");
    };
    let mut names: Vec<&str> = list.service.iter().map(|s| s.name.as_str()).collect();
    names.sort_unstable();
    // The services of this port, and no internal ones.
    assert_eq!(names, ["grpc.health.v1.Health", "lockstep.v1.Inference"]);
}
