//! Large bodies of the worst kinds, several at a time.

use std::time::{Duration, Instant};

use futures::future::join_all;
use lockstep_tests::{
    body::{COUNTED, counting},
    flood,
    row::say,
    server::Server,
    turns,
    wait::{LIMIT, within},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::options;

/// Number of concurrent bodies.
const AT_ONCE: usize = 8;

/// A kind of body: its path, its beginning, its repeated part and its end.
type Kind = (&'static str, &'static str, &'static str, &'static str);

const KINDS: [Kind; 6] = [
    ("/v1/completions", r#"{"prompt":""#, "7", r#""}"#),
    ("/tokenize", r#"{"prompt":""#, "7", r#""}"#),
    (
        "/v1/chat/completions",
        r#"{"messages":[{"role":"user","content":""#,
        "7",
        r#""}]}"#,
    ),
    ("/v1/chat/completions", r#"{"messages":["#, "[],", "[]]}"),
    ("/v1/completions", r#"{"prompt":"#, "[", "]}"),
    ("/v1/completions", r#"{"prompt":["#, "7,", "7]}"),
];

/// Makes a request whose body has exactly `bytes`.
fn request((path, begin, repeated, end): Kind, bytes: usize) -> Vec<u8> {
    let mut body = begin.to_owned();
    let room = bytes - begin.len() - end.len();
    body.push_str(&repeated.repeat(room / repeated.len()));
    body.push_str(&" ".repeat(room % repeated.len()));
    body.push_str(end);
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {bytes}\r\n\r\n"
    );
    [head, body].concat().into_bytes()
}

/// Sends the rest of the request and reads the answer.
async fn answer(mut stream: TcpStream, last: &[u8]) -> String {
    stream.write_all(last).await.expect("it still listens");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .await
        .expect("an answer and an end");
    answer
}

/// Returns the longest time of an answer of `/health` while the bodies are answered.
async fn all_at_once(server: &Server, kind: Kind, bytes: usize) -> Duration {
    let request = request(kind, bytes);
    let (most, last) = request.split_at(request.len() - 1);
    let mut begun = Vec::new();
    for _ in 0..AT_ONCE {
        begun.push(flood::begin(server.port, most).await);
    }
    let answers = join_all(begun.into_iter().map(|stream| answer(stream, last)));
    let mut answers = std::pin::pin!(within("answers", LIMIT, answers));
    let mut slowest = Duration::ZERO;
    let answers = loop {
        let begin = Instant::now();
        let health = server.get("/health");
        tokio::select! {
            answers = &mut answers => break answers,
            health = health => assert_eq!(health.status, 200),
        }
        slowest = slowest.max(begin.elapsed());
    };
    for answer in answers {
        assert!(answer.starts_with("HTTP/1.1 400"), "{kind:?}: {answer}");
        assert!(answer.len() < 2_000, "{kind:?}: {answer}");
    }
    slowest
}

/// Sends bodies of all kinds. Returns the growth of all processes' memory in bytes, and
/// the longest time of an answer of `/health`.
async fn send_all(bytes: usize) -> (usize, Duration) {
    let _turn = turns::shared().await;
    let server = Server::start(options()).await;
    let counted = async || {
        let answer = server
            .ok("/v1/chat/completions", &counting(&json!({})))
            .await;
        assert_eq!(answer["choices"][0]["message"]["content"], COUNTED);
    };
    counted().await;
    let processes = server.processes();
    let sum = |name| processes.iter().map(|of| of.memory(name)).sum::<usize>();
    let before = sum("VmRSS");
    let (mut grown, mut slowest) = (0, Duration::ZERO);
    for kind in KINDS {
        for process in &processes {
            process.reset_peak();
        }
        let health = all_at_once(&server, kind, bytes).await;
        let more = sum("VmHWM").saturating_sub(before);
        say(&format!("{kind:?}: {} MiB, /health {health:?}", more >> 20));
        (grown, slowest) = (grown.max(more), slowest.max(health));
    }
    counted().await;
    assert_eq!(server.processes(), processes);
    (grown, slowest)
}

#[tokio::test]
async fn large_bodies_cost_little_more_than_themselves() {
    const BODY: usize = 4 << 20;
    // Growth that any request may cause, for example by the heaps of new threads.
    const OTHER: usize = 16 << 20;
    let (grown, _) = send_all(BODY).await;
    assert!(grown <= 10 * BODY + OTHER, "{} MiB", grown >> 20);
}

/// Full size. The test measures time.
#[tokio::test]
#[ignore = "full size"]
async fn the_largest_bodies_cost_little_more_than_themselves() {
    const BODY: usize = 16 << 20;
    let (grown, slowest) = send_all(BODY).await;
    assert!(grown <= 10 * BODY, "{} MiB", grown >> 20);
    assert!(
        slowest <= Duration::from_secs(1),
        "/health took {slowest:?}"
    );
}
