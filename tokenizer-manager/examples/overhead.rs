//! Measures the time that the tokenizer-manager adds to a request and to a streamed
//! token.
//!
//! A real tokenizer-manager serves over its real sockets, and the scheduler behind it
//! answers at once. The load is a closed loop: each client sends its next request, or
//! has its next token sent, when it has the last. Both ends run in one process, so that
//! one clock measures both.
//!
//! ```text
//! cargo run --release -p lockstep-tokenizer-manager --example overhead [-- results.json]
//! ```

#![expect(clippy::print_stdout, reason = "the table is what this program is for")]

#[expect(dead_code, reason = "shared with the tests, which use all of it")]
#[path = "../tests/front/harness.rs"]
mod harness;
#[expect(dead_code, reason = "shared with the tests, which use all of it")]
#[path = "../tests/front/mock.rs"]
mod mock;

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Instant};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use lockstep_proto::pb::lockstep::{
    FinishReason, FrontendHello, FrontendMessage, Output, SamplingParams, Submit,
    frontend_client::FrontendClient, frontend_message::Kind,
};
use mock::{Asked, Job, Mock};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
};

/// Requests of each client before measuring starts, and while measuring.
const WARM: usize = 50;
const REQUESTS: usize = 1000;
/// Tokens of each streamed answer, and answers of each client.
const TOKENS: usize = 200;
const STREAMS: usize = 10;

#[tokio::main]
async fn main() -> Result<()> {
    let front = harness::start_with(|engine, _| {
        engine.server.context_length = 2048;
        let connections = &mut engine.server.limits.connections;
        (connections.per_port, connections.per_peer) = (1024, 1024);
        engine.schedule.max_running_requests = 256;
        engine.schedule.max_queued_requests = 256;
    })
    .await;
    heading();
    let mut rows = Vec::new();
    let mut add = |row: Row| {
        row.print();
        rows.push(row);
    };
    add(round_trip(&front.context.node.frontend_socket(), &front.mock).await?);
    for (asked, clients) in [
        (prompt(16), 1),
        (prompt(16), 16),
        (prompt(4096), 1),
        (prompt(4096), 16),
        (chat(1), 1),
        (chat(16), 1),
    ] {
        add(requests(front.address, &front.mock, &asked, clients).await?);
    }
    for clients in [1, 16, 64] {
        add(streamed(front.address, &front.mock, clients).await?);
    }
    if let Some(path) = std::env::args().nth(1) {
        let values: Vec<Value> = rows.iter().map(Row::json).collect();
        std::fs::write(&path, serde_json::to_string_pretty(&values)?)
            .with_context(|| format!("writing {path}"))?;
    }
    Ok(())
}

/// One measured case.
struct Row {
    what: String,
    clients: usize,
    seconds: f64,
    /// Latency, microseconds.
    latency: Histogram<u64>,
}

impl Row {
    fn print(&self) {
        let at = |quantile| self.latency.value_at_quantile(quantile);
        println!(
            "{:<44} {:>7} {:>8} {:>8} {:>8} {:>10.0}",
            self.what,
            self.clients,
            at(0.5),
            at(0.9),
            at(0.99),
            self.latency.len() as f64 / self.seconds
        );
    }

    fn json(&self) -> Value {
        let at = |quantile| self.latency.value_at_quantile(quantile);
        json!({
            "what": self.what, "clients": self.clients, "count": self.latency.len(),
            "p50_us": at(0.5), "p90_us": at(0.9), "p99_us": at(0.99),
            "mean_us": self.latency.mean(),
            "per_second": self.latency.len() as f64 / self.seconds,
        })
    }
}

fn heading() {
    println!(
        "{:<44} {:>7} {:>8} {:>8} {:>8} {:>10}",
        "", "clients", "p50 us", "p90 us", "p99 us", "per second"
    );
}

/// Measures the scheduler's stream alone, which every request uses.
async fn round_trip(socket: &std::path::Path, mock: &Arc<Mock>) -> Result<Row> {
    let limit = std::time::Duration::from_secs(5);
    let channel = lockstep_process::connect_unix(socket, limit).await?;
    let (sender, messages) = mpsc::unbounded_channel();
    let send = |kind| {
        let sent = sender.send(FrontendMessage { kind: Some(kind) });
        sent.ok().context("the stream is open")
    };
    send(Kind::Hello(FrontendHello::default()))?;
    let messages = tokio_stream::wrappers::UnboundedReceiverStream::new(messages);
    let mut events = FrontendClient::new(channel)
        .exchange(messages)
        .await?
        .into_inner();
    events.message().await?.context("a welcome")?;
    let answers = answer_at_once(mock.clone());
    let mut latency = histogram()?;
    let begun = Instant::now();
    for request in 0..(WARM + REQUESTS) {
        let sent = Instant::now();
        send(Kind::Submit(Submit {
            request: request as u64,
            input_ids: vec![5],
            sampling: Some(SamplingParams::default()),
            ..Submit::default()
        }))?;
        events.message().await?.context("an answer")?;
        if request >= WARM {
            latency.record(micros(sent))?;
        }
    }
    answers.abort();
    Ok(Row {
        what: "stream to the scheduler alone, round trip".to_owned(),
        clients: 1,
        seconds: begun.elapsed().as_secs_f64(),
        latency,
    })
}

/// Returns a label, and the body of a request for one token.
fn prompt(bytes: usize) -> (String, Value) {
    let text = "The quick brown fox. ".repeat(bytes / 21 + 1);
    let body = json!({"model": harness::MODEL, "prompt": &text[..bytes], "max_tokens": 1});
    (format!("prompt of {bytes} bytes"), body)
}

/// Returns a label, and the body of a chat request for one token, which renders the
/// template.
fn chat(messages: usize) -> (String, Value) {
    let roles = ["user", "assistant"].into_iter().cycle();
    let turns = roles.map(|role| json!({"role": role, "content": "Hi."}));
    let turns: Vec<Value> = turns.take(messages).collect();
    let body = json!({"model": harness::MODEL, "messages": turns, "max_tokens": 1});
    (format!("chat of {messages} messages"), body)
}

/// Measures whole requests of one token.
async fn requests(
    address: SocketAddr,
    mock: &Arc<Mock>,
    (asked, body): &(String, Value),
    clients: usize,
) -> Result<Row> {
    let answers = answer_at_once(mock.clone());
    let begun = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for client in 0..clients {
        let body = body.to_string();
        tasks.spawn(async move {
            let mut connection = Connection::open(address).await?;
            let mut latency = histogram()?;
            for request in 0..(WARM + REQUESTS / clients) {
                let sent = Instant::now();
                connection.send(&body, client).await?;
                connection.answer().await?;
                if request >= WARM {
                    latency.record(micros(sent))?;
                }
            }
            anyhow::Ok(latency)
        });
    }
    let latency = gather(tasks).await?;
    answers.abort();
    Ok(Row {
        what: format!("a request of one token, {asked}"),
        clients,
        seconds: begun.elapsed().as_secs_f64(),
        latency,
    })
}

/// Measures the time from a token leaving the scheduler to its event at the client.
async fn streamed(address: SocketAddr, mock: &Arc<Mock>, clients: usize) -> Result<Row> {
    let mut inboxes = HashMap::new();
    let mut tasks = tokio::task::JoinSet::new();
    let body = json!({
        "model": harness::MODEL, "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": TOKENS, "stream": true
    });
    let begun = Instant::now();
    for client in 0..clients {
        let (sender, inbox) = mpsc::unbounded_channel();
        inboxes.insert(format!("chatcmpl-{client}"), sender);
        let body = body.to_string();
        tasks.spawn(stream_client(address, client, body, inbox));
    }
    let mock = mock.clone();
    let dispatch = tokio::spawn(async move {
        let mut asked = mock.asked.lock().await;
        while let Some(asked) = asked.recv().await {
            if let Asked::Submit(job) = asked
                && let Some(inbox) = inboxes.get(&job.submit.trace_id)
            {
                // A client that is done has dropped its inbox.
                let _ = inbox.send(*job);
            }
        }
    });
    let latency = gather(tasks).await?;
    dispatch.abort();
    Ok(Row {
        what: "a streamed token".to_owned(),
        clients,
        seconds: begun.elapsed().as_secs_f64(),
        latency,
    })
}

async fn stream_client(
    address: SocketAddr,
    client: usize,
    body: String,
    mut inbox: mpsc::UnboundedReceiver<Job>,
) -> Result<Histogram<u64>> {
    let mut latency = histogram()?;
    for _ in 0..STREAMS {
        let mut connection = Connection::open(address).await?;
        connection.send(&body, client).await?;
        let job = inbox.recv().await.context("a job")?;
        for token in 0..TOKENS {
            let sent = Instant::now();
            job.send(mock::tokens(&[mock::id('x')]));
            // The first write also holds the role; events of one write arrive together.
            connection.until(b"\"x\"").await?;
            if token > 0 {
                latency.record(micros(sent))?;
            }
        }
        job.finish(FinishReason::Length, TOKENS as u32);
        connection.until(b"[DONE]").await?;
    }
    Ok(latency)
}

/// Answers every request with one token and its end.
fn answer_at_once(mock: Arc<Mock>) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let mut asked = mock.asked.lock().await;
        while let Some(asked) = asked.recv().await {
            if let Asked::Submit(job) = asked {
                job.send(Output {
                    token_ids: vec![mock::id('x')],
                    ..mock::ended(FinishReason::Length, job.usage(1), None)
                });
            }
        }
    })
}

async fn gather(mut tasks: tokio::task::JoinSet<Result<Histogram<u64>>>) -> Result<Histogram<u64>> {
    let mut all = histogram()?;
    while let Some(latency) = tasks.join_next().await {
        all.add(latency??)?;
    }
    Ok(all)
}

fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new(3)?)
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// A bare HTTP/1.1 connection, so that the client adds little to the measured time.
struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Connection {
    async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            read: Vec::new(),
        })
    }

    async fn send(&mut self, body: &str, client: usize) -> Result<()> {
        let path = if body.contains("messages") {
            "/v1/chat/completions"
        } else {
            "/v1/completions"
        };
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nx-request-id: \
             {client}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.read.clear();
        Ok(self.stream.write_all(request.as_bytes()).await?)
    }

    /// Reads one answer with a `content-length`.
    async fn answer(&mut self) -> Result<()> {
        loop {
            self.more().await?;
            let text = std::str::from_utf8(&self.read)?;
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                continue;
            };
            ensure!(head.starts_with("HTTP/1.1 200"), "{text}");
            let length: usize = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .context("a length")?
                .parse()?;
            if body.len() >= length {
                return Ok(());
            }
        }
    }

    /// Reads until `mark` has come.
    async fn until(&mut self, mark: &[u8]) -> Result<()> {
        while !self.read.windows(mark.len()).any(|window| window == mark) {
            self.more().await?;
        }
        self.read.clear();
        Ok(())
    }

    async fn more(&mut self) -> Result<()> {
        if self.stream.read_buf(&mut self.read).await? == 0 {
            bail!("the server closed the connection");
        }
        Ok(())
    }
}
