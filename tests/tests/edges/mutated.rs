//! Thousands of slightly damaged requests beside good ones.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures::{StreamExt, stream};
use lockstep_proto::pb::{lockstep, sglang::grpc::scheduler as sglang};
use lockstep_tests::{
    body::{COUNTED, counting},
    grpc,
    mutated::{damage, request},
    row::Row,
    server::Server,
    turns,
    wait::{LIMIT, until},
};
use prost::Message;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic::{
    Code, Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

use crate::options;

/// Time limit for an answer. After that the server is waiting for the rest of a body,
/// or generates a long text.
const PATIENCE: Duration = Duration::from_secs(2);

/// Codec that passes messages on as raw bytes.
#[derive(Default)]
struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put_slice(into, &item);
        Ok(())
    }
}

impl Decoder for Bytes {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        bytes::Buf::advance(from, bytes::Buf::remaining(from));
        Ok(Some(()))
    }
}

/// Sends a damaged HTTP request. Returns the error in the answer, if there is one.
async fn http(server: &Server, random: &mut StdRng) -> Option<String> {
    let (request, whole) = request(random);
    let exchange = async {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).await.ok()?;
        // The answer may come before the request is sent whole.
        let _ = stream.write_all(&request).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        Some(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = tokio::time::timeout(PATIENCE, exchange).await.ok()??;
    let wrong = |status: &str| status.starts_with('5') && !status.starts_with("503");
    let status = answer
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.get(2..5));
    match status {
        Some(status) if !wrong(status) => None,
        // The server may close a connection with half a body without an answer.
        None if answer.is_empty() && !whole => None,
        _ => Some(format!(
            "{:?}:\n{answer}",
            String::from_utf8_lossy(&request)
        )),
    }
}

/// Makes a damaged gRPC message. Returns its port, its path and its bytes.
fn call(server: &Server, random: &mut StdRng) -> (u16, &'static str, Vec<u8>) {
    let ids = lockstep::TokenIds { ids: vec![17, 18] };
    let generate = lockstep::GenerateRequest {
        request_id: Some("mine".to_owned()),
        input: Some(lockstep::generate_request::Input::Tokens(ids)),
        max_new_tokens: Some(4),
        stop: vec!["x".to_owned()],
        n: Some(2),
        ..Default::default()
    };
    let tokenized = sglang::TokenizedInput {
        input_ids: vec![17, 18, 19],
        ..Default::default()
    };
    let gateway = sglang::GenerateRequest {
        // Two requests with one id at a time would be an error.
        request_id: format!("mutated-{}", random.random::<u64>()),
        tokenized: Some(tokenized),
        sampling_params: Some(sglang::SamplingParams {
            max_new_tokens: Some(4),
            top_p: 1.0,
            n: 1,
            ..Default::default()
        }),
        ..Default::default()
    };
    let (port, path, mut message) = if random.random_bool(0.5) {
        let path = "/lockstep.v1.Inference/Generate";
        (server.grpc_port, path, generate.encode_to_vec())
    } else {
        let path = "/sglang.grpc.scheduler.SglangScheduler/Generate";
        (server.sglang_port, path, gateway.encode_to_vec())
    };
    for _ in 0..random.random_range(1..4) {
        damage(&mut message, random);
    }
    (port, path, message)
}

/// Sends a damaged gRPC message. Returns the error in the answer, if there is one.
async fn message(server: &Server, random: &mut StdRng) -> Option<String> {
    let (port, path, message) = call(server, random);
    let shown = format!("{path} {message:?}");
    let exchange = async {
        let mut client = Grpc::new(grpc::connect(port).await.ok()?);
        client.ready().await.ok()?;
        let path = path.parse().expect("a path");
        let answer = client.server_streaming(Request::new(message), path, Bytes);
        let mut parts = match answer.await {
            Ok(answer) => answer.into_inner(),
            Err(status) => return Some(status),
        };
        loop {
            match parts.message().await {
                Ok(Some(())) => {}
                Ok(None) => return None,
                Err(status) => return Some(status),
            }
        }
    };
    let status = tokio::time::timeout(PATIENCE, exchange).await.ok()??;
    let wrong = match status.code() {
        // gRPC uses this code for bytes that do not decode.
        Code::Internal => !status.message().contains("decode"),
        code => matches!(code, Code::Unknown | Code::DataLoss),
    };
    wrong.then(|| format!("{shown}: {status}"))
}

/// Sends one damaged request. Returns the error in the answer, if there is one.
pub async fn one(server: &Server, seed: u64) -> Option<String> {
    let mut random = StdRng::seed_from_u64(seed);
    if random.random_bool(0.75) {
        http(server, &mut random).await
    } else {
        message(server, &mut random).await
    }
}

/// Sends `count` damaged requests, 16 at a time, beside good requests.
async fn send(server: &Server, count: u64) {
    let before = server.processes();
    let over = AtomicBool::new(false);
    let good = async {
        while !over.load(Ordering::Relaxed) {
            let answer = server
                .ok("/v1/chat/completions", &counting(&json!({})))
                .await;
            assert_eq!(answer["choices"][0]["message"]["content"], COUNTED);
        }
    };
    let bad = async {
        let all = stream::iter(0..count).map(|seed| one(server, seed));
        let wrong: Vec<_> = all
            .buffer_unordered(16)
            .filter_map(async |one| one)
            .collect()
            .await;
        over.store(true, Ordering::Relaxed);
        wrong
    };
    let ((), wrong) = tokio::join!(good, bad);
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert_eq!(server.processes(), before, "a process was lost");
    until("an idle engine", LIMIT, async || {
        let metrics = server.metrics().await;
        (metrics.value("lockstep_num_requests_running") == 0.0).then_some(())
    })
    .await;
    assert_eq!(
        server.metrics().await.value("lockstep_kv_leaked_pages"),
        0.0
    );
}

#[tokio::test]
async fn requests_that_are_nearly_good_harm_nobody() {
    let _turn = turns::shared().await;
    let server = Server::start(options()).await;
    send(&server, 2_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full size"]
async fn very_many_requests_that_are_nearly_good_harm_nobody() {
    let _turn = turns::alone().await;
    let server = Server::start(options()).await;
    let row = Row::begin("12", &server);
    send(&server, 92_000).await;
    row.end(&server, "92,000 answered, no 5xx but 503").await;
}
