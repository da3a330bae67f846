//! Tests of the memory for log-probabilities of calls of SGLang's gateway.

use std::fs;

use lockstep_proto::pb::sglang::grpc::scheduler::generate_response::Response;
use tempfile::TempDir;
use tonic::{Code, Status};

use crate::sglang::{collect, generate, serving, serving_with};

#[tokio::test]
async fn log_probabilities_have_their_room_before_a_call_runs() {
    let (_scheduler, mut client) = serving_with(|args| {
        args.limits.max_body_bytes = Some(16 << 10);
        // One address may have half of it.
        args.limits.max_request_memory = Some(128 << 10);
    })
    .await;
    let asking = |prompt: &[u32], tokens, top| {
        let mut request = generate(prompt, tokens);
        request.return_logprob = true;
        request.top_logprobs_num = top;
        request
    };
    // 80 bytes for each of 21 log-probabilities of 40 tokens: more than an address may have.
    let refused = client.generate(asking(&[1; 20], 40, 20)).await;
    let refused = refused.expect_err("too many");
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    // Takes most of an address's memory, as long as the call runs.
    let running = client.generate(asking(&[1; 21], 700, 0)).await;
    let mut running = running.expect("runs").into_inner();
    let first = running.message().await.expect("a message");
    let first = first.and_then(|message| message.response);
    assert!(matches!(first, Some(Response::Chunk(_))), "{first:?}");
    let refused = client.generate(asking(&[1; 20], 10, 20)).await;
    let refused = refused.expect_err("no room now");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    while running.message().await.expect("a message").is_some() {}
    drop(running);
    for _ in 0..4 {
        collect(&mut client, asking(&[1; 20], 10, 20)).await;
    }
}

/// Makes a demo model whose context has more tokens than are expected of an answer.
fn long_context() -> TempDir {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/lockstep-demo-7m");
    let folder = tempfile::tempdir().expect("a folder");
    for entry in fs::read_dir(demo).expect("the model") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), folder.path().join(entry.file_name())).expect("copied");
    }
    let path = folder.path().join("config.json");
    let config = fs::read(&path).expect("its configuration");
    let mut config: serde_json::Value = serde_json::from_slice(&config).expect("JSON");
    config["max_position_embeddings"] = 8192.into();
    fs::write(&path, config.to_string()).expect("written");
    folder
}

#[tokio::test]
async fn log_probabilities_beyond_what_is_expected_need_room_as_they_come() {
    let model = long_context();
    // An address may have half, and large requests three quarters of that half. That is room
    // for 80 bytes of each of 4096 tokens, and of 819 more.
    let (_scheduler, mut client) = serving_with(|args| {
        args.model.model_path = Some(model.path().into());
        args.memory.max_total_tokens = Some(16_384);
        args.limits.max_body_bytes = Some(16 << 10);
        args.limits.max_request_memory = Some(1 << 20);
    })
    .await;
    let mut request = generate(&[1; 20], 0);
    request.return_logprob = true;
    if let Some(params) = &mut request.sampling_params {
        params.max_new_tokens = None;
        params.stream_interval = Some(100);
    }
    let stream = client.generate(request).await.expect("runs");
    let (mut stream, mut tokens) = (stream.into_inner(), 0);
    let end = loop {
        match stream.message().await {
            Ok(message) => match message.expect("no end yet").response {
                Some(Response::Chunk(chunk)) => tokens += chunk.token_ids.len(),
                other => panic!("{tokens} tokens have come to an end: {other:?}"),
            },
            Err(status) => break status,
        }
    };
    assert_eq!(end.code(), Code::ResourceExhausted, "{end}");
    assert!((4096..4096 + 819).contains(&tokens), "{tokens}");
}

#[tokio::test]
async fn more_log_probabilities_than_any_call_may_have_are_refused() {
    let (_scheduler, mut client) = serving().await;
    // 80 bytes for each of 21 log-probabilities of 1000 tokens, in each of `choices` choices.
    for (choices, refused) in [(39, false), (40, true)] {
        let mut request = generate(&[1; 20], 1000);
        request.return_logprob = true;
        request.top_logprobs_num = 20;
        request
            .sampling_params
            .iter_mut()
            .for_each(|params| params.n = choices);
        let answer = client.generate(request).await.map(|_| ());
        let code = answer.as_ref().err().map(Status::code);
        assert_eq!(code, refused.then_some(Code::InvalidArgument), "{choices}");
        if let Err(status) = answer {
            let message = status.message();
            assert!(message.contains("top_logprobs_num") && message.contains("64 MiB"));
        }
    }
}
