//! Strangers and clients who do their worst all at once, until the storm is dropped.

use std::time::Duration;

use futures::future::{join_all, pending};
use reqwest::Client;
use serde_json::json;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::timeout,
};

use crate::{body::counting, h2, server::Server};

/// Time for which each stranger stays before it comes again.
const STAY: Duration = Duration::from_secs(1);
/// Bytes of a long path, of which the log keeps the beginning.
const PATH: usize = 6000;

/// A running storm; dropping it ends it.
#[derive(Debug)]
pub struct Storm {
    /// The strangers' tasks, which never end by themselves.
    _strangers: JoinSet<()>,
}

/// Number of strangers of each kind at a time.
#[derive(Debug, Clone, Copy)]
pub struct Strength {
    /// Silent connections, on each port.
    pub silent: usize,
    /// Bodies and messages that never end, on each port.
    pub unfinished: usize,
    /// Answers that nobody reads, on each port.
    pub unread: usize,
    /// Streams that the server has to reset, on each port.
    pub resets: u32,
    /// Requests whose long paths are logged.
    pub logged: usize,
}

impl Strength {
    /// The largest storm that one test process can manage.
    pub const FULL: Self = Self {
        silent: 50,
        unfinished: 20,
        unread: 8,
        resets: 500,
        logged: 8,
    };
    /// Few enough to leave time for other work on a machine with two cores.
    pub const TENTH: Self = Self {
        silent: 5,
        unfinished: 2,
        unread: 1,
        resets: 50,
        logged: 1,
    };
}

impl Storm {
    /// Begins a storm over all public ports of a server, and `more` ports that speak
    /// gRPC.
    pub fn over(server: &Server, more: &[u16], strength: Strength) -> Self {
        let mut strangers = JoinSet::new();
        let calls = "/lockstep.v1.Inference/Generate";
        let gateway = "/sglang.grpc.scheduler.SglangScheduler/Generate";
        let mut ports = vec![
            (server.port, "/v1/completions"),
            (server.grpc_port, calls),
            (server.sglang_port, gateway),
        ];
        ports.extend(
            more.iter()
                .map(|port| (*port, "/lockstep.v1.WorkerGateway/Attach")),
        );
        for (port, path) in ports {
            strangers.spawn(again(async move || {
                let silent = (0..strength.silent).map(|_| say(port, Vec::new()));
                join_all(silent).await;
            }));
            strangers.spawn(again(async move || {
                say(port, resets(path, strength.resets)).await;
            }));
            strangers.spawn(again(async move || {
                let unfinished = (0..strength.unfinished).map(|_| say(port, unfinished(path)));
                join_all(unfinished).await;
            }));
            strangers.spawn(again(async move || {
                let unread = (0..strength.unread).map(|_| say(port, unread(path)));
                join_all(unread).await;
            }));
        }
        for _ in 0..strength.logged {
            let (client, url) = (
                server.client.clone(),
                server.url(&format!("/{}", "x".repeat(PATH))),
            );
            strangers.spawn(again(async move || log(&client, &url).await));
        }
        Self {
            _strangers: strangers,
        }
    }
}

async fn again(one: impl AsyncFn()) {
    loop {
        one().await;
        // A stranger that is refused at once must not keep others from running.
        tokio::task::yield_now().await;
    }
}

/// Sends some bytes and then nothing, until the server hangs up or for a while.
async fn say(port: u16, bytes: Vec<u8>) {
    let _ = timeout(STAY, async {
        let Some(mut stream) = narrow(port).await else {
            return pending().await;
        };
        // The server may hang up before it has read everything.
        let _ = stream.write_all(&bytes).await;
        pending::<()>().await;
    })
    .await;
}

/// Opens a connection that takes little at a time; `None` if nobody listens.
async fn narrow(port: u16) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().ok()?;
    socket.set_recv_buffer_size(4096).ok()?;
    socket.connect(([127, 0, 0, 1], port).into()).await.ok()
}

/// Makes frames for streams that end with an error of the client's making.
fn resets(path: &str, count: u32) -> Vec<u8> {
    let mut frames = h2::hello();
    for stream in (1..2 * count).step_by(2) {
        frames.extend(h2::headers(stream, path));
        frames.extend(h2::window_update(stream, 0x7fff_ffff));
    }
    frames
}

/// Returns the beginning of a body whose rest never comes.
fn unfinished(path: &str) -> Vec<u8> {
    if path.starts_with("/v1/") {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
             content-length: 1000000\r\n\r\n"
        );
        return [head.as_bytes(), &[b' '; 100_000]].concat();
    }
    let mut frames = h2::hello();
    for stream in (1..16).step_by(2) {
        frames.extend(h2::headers(stream, path));
        // A message of 128 KiB, of which one byte comes.
        frames.extend(h2::data(stream, &[0, 0, 2, 0, 0, 7]));
    }
    frames
}

/// Returns requests whose answers cannot be sent.
fn unread(path: &str) -> Vec<u8> {
    if path.starts_with("/v1/") {
        let body = counting(&json!({"max_tokens": 200, "ignore_eos": true, "stream": true}));
        let body = body.to_string();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        return [head, body].concat().into_bytes();
    }
    let mut frames = h2::hello_without_windows();
    for stream in (1..16).step_by(2) {
        frames.extend(h2::headers(stream, "/grpc.health.v1.Health/Check"));
        frames.extend(h2::last_data(stream, &[0; 5]));
    }
    frames
}

async fn log(client: &Client, url: &str) {
    if client.get(url).send().await.is_err() {
        // The server no longer answers, or not now.
        tokio::time::sleep(STAY).await;
    }
}
