//! Clients that leave or are slow, schedulers that die, and the end of the process.

use std::time::Duration;

use lockstep_proto::pb::lockstep::{FinishReason, GenerateRequest};
use lockstep_tokenizer_manager::RunError;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic::Code;

use super::{
    client::{chat, completion, events},
    grpc,
    harness::{HASH, SERVED_IN, engine_config, launch, node_config, start, start_with},
    mock::{Mock, ids, tokens},
};

/// Sends a raw request on a connection of its own.
async fn raw(address: std::net::SocketAddr, path: &str, body: &Value) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: \
         {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    stream
}

#[tokio::test]
async fn a_client_that_leaves_aborts_its_request() {
    let front = start().await;
    for stream in [false, true] {
        // Leaves before the first token, and after it.
        for started in [false, true] {
            let body = chat(&json!({"stream": stream, "n": 2}));
            let mut client = raw(front.address, "/v1/chat/completions", &body).await;
            let jobs = [front.mock.job().await, front.mock.job().await];
            if started {
                jobs[0].tokens(&ids("x"));
                if stream {
                    let mut first = [0];
                    client.read_exact(&mut first).await.expect("a first byte");
                }
            }
            drop(client);
            let mut aborted = [front.mock.abort().await, front.mock.abort().await];
            aborted.sort_unstable();
            let mut numbers = jobs.map(|job| job.submit.request);
            numbers.sort_unstable();
            assert_eq!(aborted, numbers);
        }
    }
}

#[tokio::test]
async fn a_slow_client_holds_up_nobody() {
    // The memory has room for the output that a slow client does not take.
    let front = start_with(|engine, _| engine.server.limits.memory_bytes = 64 << 20).await;
    // These clients never read. Their output is far more than the sockets' buffers
    // hold.
    let body = json!({"text": "a", "stream": true, "sampling_params": {"max_new_tokens": 240}});
    let slow: Vec<TcpStream> = {
        let mut slow = Vec::new();
        for _ in 0..4 {
            slow.push(raw(front.address, "/generate", &body).await);
        }
        slow
    };
    let mut jobs = Vec::new();
    for _ in &slow {
        jobs.push(front.mock.job().await);
    }
    let flood = tokens(&ids(&"x".repeat(2000)));
    for _ in 0..200 {
        for job in &jobs {
            assert!(job.send(flood.clone()));
        }
    }
    let answered = async {
        let body = completion(&json!({}));
        let (answer, ()) = tokio::join!(front.ok("/v1/completions", &body), async {
            let job = front.mock.job().await;
            job.tokens(&ids("quick"));
            job.finish(FinishReason::Stop, 5);
        });
        assert_eq!(answer["choices"][0]["text"], "quick");
    };
    tokio::time::timeout(Duration::from_secs(100), answered)
        .await
        .expect("the others are served");
    drop(slow);
}

#[tokio::test]
async fn a_scheduler_that_dies_ends_every_request_and_may_come_back() {
    let front = start().await;
    let streaming = chat(&json!({"stream": true}));
    let whole = chat(&json!({}));
    let scheduler = async {
        let (one, two) = (front.mock.job().await, front.mock.job().await);
        for job in [&one, &two] {
            job.tokens(&ids("x"));
        }
        // The streamed answer has begun when its first byte is out; the
        // client's side waits for that below.
        (one, two)
    };
    let mut stream = raw(front.address, "/v1/chat/completions", &streaming).await;
    let begun = async {
        let mut first = [0];
        stream.read_exact(&mut first).await.expect("a first byte");
        front.mock.disconnect();
        let mut rest = String::new();
        let end = async {
            let mut buffer = [0; 4096];
            while !rest.contains("\"error\"") {
                let read = stream.read(&mut buffer).await.expect("readable");
                assert_ne!(read, 0, "ended without an error: {rest}");
                rest.push_str(&String::from_utf8_lossy(&buffer[..read]));
            }
        };
        tokio::time::timeout(Duration::from_secs(2), end)
            .await
            .expect("an error event");
        assert!(rest.contains("service_unavailable"), "{rest}");
    };
    let request = front
        .client
        .post(format!("{}/v1/chat/completions", front.url))
        .json(&whole);
    let (answer, _jobs, ()) = tokio::join!(request.send(), scheduler, begun);
    let answer = answer.expect("answered");
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers()["retry-after"], SERVED_IN.to_string());
    let text = answer.text().await.expect("text");
    assert!(text.contains("service_unavailable"));

    // The mock accepts again: requests are served as soon as the link is back.
    let simple = completion(&json!({}));
    let served = async {
        loop {
            let (answer, job) = tokio::join!(
                front.post("/v1/completions", &simple),
                tokio::time::timeout(Duration::from_millis(500), async {
                    front.mock.job().await.finish(FinishReason::Stop, 0);
                })
            );
            if answer.0 == 200 && job.is_ok() {
                return;
            }
            assert_eq!(answer.0, 503);
        }
    };
    tokio::time::timeout(Duration::from_secs(20), served)
        .await
        .expect("served again");
}

/// It ends requests at their limits itself, unless it hangs.
#[tokio::test]
async fn a_scheduler_that_ends_nothing_is_not_waited_for() {
    let front = start_with(|engine, _| engine.timeouts.request_s = Some(0)).await;
    let mut client = grpc::client(&front).await;
    let body = completion(&json!({}));
    let own = GenerateRequest {
        timeout_ms: Some(1),
        ..grpc::text("ab")
    };
    let scheduler = async {
        for _ in 0..2 {
            front.mock.job().await;
        }
        for _ in 0..2 {
            front.mock.abort().await;
        }
    };
    let http = front.post("/v1/completions", &body);
    let ((status, text), called, ()) = tokio::join!(http, client.generate(own), scheduler);
    assert_eq!(status, 408, "{text}");
    let refused = called.expect_err("its time is over");
    assert_eq!(refused.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn without_a_scheduler_requests_are_refused_at_once() {
    let run_dir = tempfile::tempdir().expect("run dir");
    let node = node_config(run_dir.path().to_owned());
    let elsewhere = tempfile::tempdir().expect("run dir");
    let mock = Mock::start(&elsewhere.path().join("frontend.sock"), HASH);
    let mut front = launch(engine_config(), node, mock, run_dir).await;
    let (status, text) = front.post("/v1/completions", &completion(&json!({}))).await;
    assert_eq!(status, 503, "{text}");
    assert_eq!(front.get("/health").await.0, 503);
    assert!(front.reports.try_recv().is_err(), "not ready");
}

#[tokio::test]
async fn a_scheduler_of_another_configuration_ends_the_process() {
    let run_dir = tempfile::tempdir().expect("run dir");
    let node = node_config(run_dir.path().to_owned());
    let mock = Mock::start(&node.frontend_socket(), "another");
    let front = launch(engine_config(), node, mock, run_dir).await;
    let error = front
        .served
        .await
        .expect("no panic")
        .expect_err("incompatible");
    assert!(
        error.to_string().contains("another configuration"),
        "{error}"
    );
}

#[tokio::test]
async fn a_drain_finishes_what_runs_and_takes_nothing_new() {
    let front = start().await;
    let body = chat(&json!({"stream": true}));
    let running = front.post("/v1/chat/completions", &body);
    let drain = async {
        let job = front.mock.job().await;
        job.tokens(&ids("a"));
        let lifecycle = front.context.link.lifecycle();
        lifecycle.drain.cancel();
        // The gate closes a moment later: wait for it.
        loop {
            let health = front.client.get(format!("{}/health", front.url));
            let health = health.send().await.expect("answered");
            if health.status() == 503 {
                assert_eq!(health.headers()["retry-after"], SERVED_IN.to_string());
                break;
            }
        }
        let request = front
            .client
            .post(format!("{}/v1/completions", front.url))
            .json(&completion(&json!({})));
        let refused = request.send().await.expect("answered");
        assert_eq!(refused.status(), 503);
        assert_eq!(refused.headers()["retry-after"], SERVED_IN.to_string());
        assert!(!front.served.is_finished());
        job.tokens(&ids("b"));
        job.finish(FinishReason::Stop, 2);
    };
    let ((status, text), ()) = tokio::join!(running, drain);
    assert_eq!(status, 200);
    assert_eq!(events(&text).last().map(String::as_str), Some("[DONE]"));
    front.served.await.expect("no panic").expect("drained");
}

#[tokio::test]
async fn a_halt_ends_requests_with_an_error() {
    let front = start().await;
    let body = completion(&json!({}));
    let running = front.post("/v1/completions", &body);
    let halt = async {
        front.mock.job().await;
        front.context.link.lifecycle().halt.cancel();
    };
    let ((status, text), ()) = tokio::join!(running, halt);
    assert_eq!(status, 503, "{text}");
    let ended = tokio::time::timeout(Duration::from_secs(10), front.served);
    ended
        .await
        .expect("in time")
        .expect("no panic")
        .expect("halted");
}

/// An engine that fails halts its frontends, and may be started anew.
#[tokio::test]
async fn who_comes_after_a_halt_hears_when_to_come_back() {
    let front = start().await;
    let body = completion(&json!({})).to_string();
    let mut client = TcpStream::connect(front.address).await.expect("connected");
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nexpect: \
         100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes()).await.expect("sent");
    // The handler that waits for the body asks the client to go on.
    let mut first = [0; 12];
    client.read_exact(&mut first).await.expect("a first line");
    assert_eq!(&first, b"HTTP/1.1 100");
    front.context.link.lifecycle().halt.cancel();
    // The gate is closed before the port is.
    while TcpStream::connect(front.address).await.is_ok() {}
    client.write_all(body.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.expect("answered");
    assert!(answer.contains("HTTP/1.1 503"), "{answer}");
    let expected = format!("retry-after: {SERVED_IN}\r\n");
    assert!(answer.contains(&expected), "{answer}");
    front.served.await.expect("no panic").expect("halted");
}

#[tokio::test]
async fn more_requests_than_the_scheduler_could_hold_are_refused_here() {
    let front = start_with(|engine, _| {
        engine.schedule.max_running_requests = 1;
        engine.schedule.max_queued_requests = 1;
    })
    .await;
    let (status, text) = front
        .post("/v1/completions", &completion(&json!({"n": 3})))
        .await;
    assert_eq!(status, 429, "{text}");
    assert!(
        text.contains("the queue is full: 2 requests run and wait"),
        "{text}"
    );
    assert!(text.contains("--max-queued-requests"), "{text}");
    // The two that were submitted before the third was refused are aborted.
    for _ in 0..2 {
        let job = front.mock.job().await;
        drop(job);
    }
    front.mock.abort().await;
    front.mock.abort().await;
    // Whoever was refused takes no room of those who come later.
    let two = completion(&json!({"n": 2}));
    let (answer, ()) = tokio::join!(front.ok("/v1/completions", &two), async {
        for _ in 0..2 {
            front.mock.job().await.finish(FinishReason::Stop, 0);
        }
    });
    assert_eq!(answer["choices"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn a_server_that_asks_for_a_key_does_not_start_without_one() {
    let run_dir = tempfile::tempdir().expect("run dir");
    let node = node_config(run_dir.path().to_owned());
    let mock = Mock::start(&node.frontend_socket(), HASH);
    let mut engine = engine_config();
    engine.server.api_key_required = true;
    let front = launch(engine, node, mock, run_dir).await;
    let ended = tokio::time::timeout(Duration::from_secs(30), front.served).await;
    let ended = ended.expect("in time").expect("no panic");
    assert!(matches!(ended, Err(RunError::NoKey)), "{ended:?}");
}

#[tokio::test]
async fn choices_that_never_fit_together_are_refused_before_any_is_queued() {
    let front = start_with(|engine, _| {
        engine.schedule.max_running_requests = 2;
        engine.schedule.max_queued_tokens = 100;
    })
    .await;
    let prompt = vec![5; 60];
    let body = completion(&json!({"prompt": prompt.clone(), "n": 4}));
    let (status, text) = front.post("/v1/completions", &body).await;
    assert_eq!(status, 400, "{text}");
    assert!(text.contains("--max-queued-tokens"), "{text}");
    // Three choices fit: two run and one waits.
    let body = completion(&json!({"prompt": prompt, "n": 3}));
    let (answer, ()) = tokio::join!(front.ok("/v1/completions", &body), async {
        for _ in 0..3 {
            let job = front.mock.job().await;
            job.finish(FinishReason::Stop, 0);
        }
    });
    assert_eq!(answer["choices"].as_array().map(Vec::len), Some(3));
}

#[tokio::test]
async fn who_leaves_is_unhealthy_and_serves_until_the_drain() {
    let front = start().await;
    front.context.link.lifecycle().leave.cancel();
    loop {
        let (status, text) = front.get("/health").await;
        if status == 503 {
            assert!(text.contains("shutting down"), "{text}");
            break;
        }
    }
    let answer = tokio::spawn({
        let (client, url) = (front.client.clone(), front.url.clone());
        async move {
            let body = completion(&json!({"max_tokens": 1}));
            let request = client.post(format!("{url}/v1/completions")).json(&body);
            request.send().await.expect("answered").status()
        }
    });
    let job = front.mock.job().await;
    job.tokens(&ids("x"));
    job.finish(FinishReason::Length, 1);
    assert_eq!(answer.await.expect("no panic"), 200);
    front.context.link.lifecycle().drain.cancel();
    front.served.await.expect("no panic").expect("drained");
}
