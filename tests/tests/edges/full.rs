//! The attacks of the other files at full size, beside a well-behaved client. Each test
//! prints its row of the table.

use std::{
    fs,
    time::{Duration, Instant},
};

use lockstep_tests::{
    body::{chat, completion, counting},
    flood, h2,
    processes::{Process, Role},
    row::{Row, say},
    server::Server,
    sse::Event,
    turns,
    wait::{LIMIT, until, within},
};
use rustix::process::Signal;
use serde_json::json;
use tokio::{io::AsyncWriteExt, net::TcpSocket};

use crate::{logs, nodes::Nodes, one_rank, options, resets, texts};

const CHAT: &str = "/v1/chat/completions";
const GRPC: &str = "/lockstep.v1.Inference/Generate";
const SGLANG: &str = "/sglang.grpc.scheduler.SglangScheduler/Generate";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full size"]
async fn row_02_long_texts() {
    let _turn = turns::alone().await;
    let server = Server::start(options()).await;
    let row = Row::begin("02", &server);
    texts::send(&server).await;
    row.end(&server, "10 texts of 15 MiB: 400").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full size"]
async fn row_03_unfinished_messages() {
    let _turn = turns::alone().await;
    let server = Server::start(one_rank()).await;
    let row = Row::begin("03", &server);
    let mut held = Vec::new();
    for (port, path) in [(server.grpc_port, GRPC), (server.sglang_port, SGLANG)] {
        // Each call announces 512 KiB. It sends as much as a stream may send before the
        // server reads.
        let mut call = [h2::hello(), h2::headers(1, path)].concat();
        call.extend(h2::data(1, &[0, 0, 8, 0, 0]));
        for _ in 0..3 {
            call.extend(h2::data(1, &[b'x'; 16 << 10]));
        }
        for _ in 0..1000 {
            held.push(flood::begin(port, &call).await);
        }
    }
    within("an end to all of them", 5 * LIMIT, flood::closed(held)).await;
    row.end(
        &server,
        "2,000 messages of 512 KiB, 48 KiB sent of each: all ended",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full size"]
async fn row_04_an_unread_log() {
    let _turn = turns::alone().await;
    let server = Server::start(options().unread()).await;
    let row = Row::begin("04", &server);
    logs::flood(&server, 2 * logs::ALL_FULL).await;
    let unread = (2 * logs::ALL_FULL * logs::LINE) >> 20;
    row.end(&server, &format!("{unread} MiB of log unread"))
        .await;
}

/// CPU time of a process so far, in clock ticks of a hundredth of a second (`proc(5)`,
/// `stat`).
fn ticks(process: Process) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid)).expect("it lives");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let fields = fields.split_whitespace().skip(11).take(2);
    fields
        .map(|field| field.parse::<u64>().expect("a number"))
        .sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full size"]
async fn row_06_more_connections_than_descriptors() {
    let _turn = turns::alone().await;
    let nodes = Nodes::new();
    let options = |rank| nodes.options(rank).limit("-n", 256);
    let [first, _second] = [0, 1].map(|rank| Server::launch(options(rank)));
    first.ready().await;
    let scheduler = first.process(Role::Scheduler).await;
    let row = Row::begin("06", &first);
    let mut silent = Vec::new();
    for port in [first.sglang_port, nodes.port] {
        for address in ["127.0.0.1", "127.0.0.2"] {
            silent.extend(flood::silent_from(address, port, 1250).await);
        }
    }
    let (begin, before) = (Instant::now(), ticks(scheduler));
    within("an end to all of them", LIMIT, flood::closed(silent)).await;
    let share = (ticks(scheduler) - before) as f64 / begin.elapsed().as_secs_f64();
    let outcome = format!("5,000 connections closed; {share:.0} % of a core meanwhile");
    row.end(&first, &outcome).await;
    let mut client = first.sglang().await;
    let health =
        client.health_check(lockstep_proto::pb::sglang::grpc::scheduler::HealthCheckRequest {});
    health.await.expect("SGLang's service answers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full size"]
async fn row_07_many_choices() {
    let _turn = turns::alone().await;
    let server = Server::start(options()).await;
    let fields = json!({"n": 128, "max_tokens": 400, "ignore_eos": true, "stream": true});
    let mut greedy = server.stream(CHAT, &chat("Hello.", &fields)).await;
    assert!(matches!(greedy.next().await, Event::Json(_)));
    let row = Row::begin("07", &server);
    let mut slowest = Duration::ZERO;
    for _ in 0..20 {
        let begin = Instant::now();
        let mut events = server
            .stream(CHAT, &counting(&json!({"stream": true})))
            .await;
        // The first event carries the role, the second event the first token.
        for _ in 0..2 {
            assert!(matches!(events.next().await, Event::Json(_)));
        }
        slowest = slowest.max(begin.elapsed());
        events.chunks().await;
    }
    let outcome = format!("n = 128; a neighbour's first token within {slowest:.2?}");
    row.end(&server, &outcome).await;
    drop(greedy);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full size"]
async fn row_10_provoked_resets() {
    let _turn = turns::alone().await;
    let server = Server::start(one_rank()).await;
    let row = Row::begin("10", &server);
    let begin = Instant::now();
    let mut count = 0;
    while begin.elapsed() < Duration::from_secs(25) {
        let (http, grpc, sglang) = (server.port, server.grpc_port, server.sglang_port);
        tokio::join!(
            resets::provoke(http, "/v1/completions"),
            resets::provoke(grpc, GRPC),
            resets::provoke(sglang, SGLANG),
        );
        count += 3;
    }
    row.end(
        &server,
        &format!("{count} connections sent away within 25 s"),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full size"]
async fn row_11_killed_and_stopped_processes() {
    let roles = [Role::TokenizerManager(0), Role::Scheduler, Role::Worker(0)];
    for signal in [Signal::KILL, Signal::STOP] {
        for role in roles {
            let _turn = turns::alone().await;
            let server = Server::start(options().set("--max-restarts", "1")).await;
            let short = counting(&json!({"max_tokens": 1}));
            server.ok(CHAT, &short).await;
            server.process(role).await.signal(signal);
            let begin = Instant::now();
            until("an answer", 2 * LIMIT, async || {
                let asked = server.try_post(CHAT, &short);
                let answer = tokio::time::timeout(Duration::from_secs(1), asked).await;
                answer
                    .ok()?
                    .is_ok_and(|answer| answer.status == 200)
                    .then_some(())
            })
            .await;
            say(&format!(
                "| 11 | {role:?} {signal:?} | an answer after {:.1?} |",
                begin.elapsed()
            ));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full size"]
async fn row_14_unfinished_bodies_and_unread_answers() {
    let _turn = turns::alone().await;
    let server = Server::start(one_rank().set("--send-timeout", "10")).await;
    let row = Row::begin("14", &server);
    let mut held = Vec::new();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        15 << 20
    );
    let begun = [head.as_bytes(), &vec![b' '; 12 << 20]].concat();
    for _ in 0..56 {
        let mut stream = lockstep_tests::raw::connect(server.port).await;
        // The server does not read refused bodies to their end.
        let _ = stream.write_all(&begun).await;
        held.push(stream);
    }
    let long = json!({"prompt": "a ".repeat(500_000), "return_token_strs": true}).to_string();
    let head = format!(
        "POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        long.len()
    );
    for _ in 0..56 {
        let socket = TcpSocket::new_v4().expect("a descriptor");
        socket.set_recv_buffer_size(4096).expect("a small buffer");
        let mut stream = socket
            .connect(([127, 0, 0, 1], server.port).into())
            .await
            .expect("listens");
        let _ = stream
            .write_all([&head, &long].map(String::as_str).concat().as_bytes())
            .await;
        held.push(stream);
    }
    let small = completion("1, 2,", &json!({"max_tokens": 1}));
    server.ok("/v1/completions", &small).await;
    within("an end to all of them", 5 * LIMIT, flood::closed(held)).await;
    row.end(&server, "56 bodies of 12 MiB and 56 answers").await;
}
