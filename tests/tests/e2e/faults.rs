//! Processes that are killed under load.

use std::time::{Duration, Instant};

use lockstep_process::exit;
use lockstep_proto::pb::lockstep::{GenerateResponse, generate_request::Input};
use lockstep_tests::{
    body::{COUNTED, chat, counting},
    http::Answer,
    processes::Role,
    server::Server,
    sse::{Event, Events},
    turns,
    wait::{LIMIT, until},
};
use serde_json::{Value, json};
use tonic::{Code, Status, Streaming};

use crate::{grpc, options, sglang};

/// Time within which clients of a lost engine get their errors.
const PROMISE: Duration = Duration::from_secs(2);
const PATH: &str = "/v1/chat/completions";
const ROLES: [Role; 5] = [
    Role::Launcher,
    Role::TokenizerManager(0),
    Role::Scheduler,
    Role::Worker(0),
    Role::Worker(1),
];

fn long(stream: bool) -> Value {
    let fields = json!({"max_tokens": 1900, "ignore_eos": true, "stream": stream});
    chat("Hello.", &fields)
}

/// Clients whose requests do not end by themselves.
struct Clients<W> {
    streams: Vec<Events>,
    calls: Vec<Streaming<GenerateResponse>>,
    gateway: Streaming<lockstep_proto::pb::sglang::grpc::scheduler::GenerateResponse>,
    whole: W,
}

/// End of one client's request.
#[derive(Debug)]
enum Told {
    /// OpenAI's error object. The status is absent if the error came in a stream.
    Error(Option<u16>, Value),
    Status(Status),
    /// The connection broke. Holds the error that the client library reports.
    Broken(String),
}

type Whole = futures::future::JoinAll<
    std::pin::Pin<Box<dyn Future<Output = reqwest::Result<Answer>> + Send>>,
>;

async fn load(server: &Server) -> Clients<Whole> {
    let mut streams = Vec::new();
    for _ in 0..6 {
        let mut events = server.stream(PATH, &long(true)).await;
        assert!(matches!(events.next().await, Event::Json(_)));
        streams.push(events);
    }
    let mut calls = Vec::new();
    for _ in 0..2 {
        let mut request = grpc::greedy(Input::Text("a".to_owned()), 1900);
        request.sampling.as_mut().expect("set").ignore_eos = Some(true);
        let mut client = server.inference().await;
        let mut call = client
            .generate(request)
            .await
            .expect("accepted")
            .into_inner();
        call.message().await.expect("a message");
        calls.push(call);
    }
    let mut request = sglang::greedy("gateway", vec![5, 6, 7], 1900);
    request.sampling_params.as_mut().expect("set").ignore_eos = true;
    let mut client = server.sglang().await;
    let mut gateway = client
        .generate(request)
        .await
        .expect("accepted")
        .into_inner();
    gateway.message().await.expect("a message");
    let running = 6 + 2 + 1;
    let whole = (0..4).map(|_| {
        let request = server.client.post(server.url(PATH)).json(&long(false));
        let handle = tokio::spawn(lockstep_tests::http::answer(request));
        Box::pin(async { handle.await.expect("no panic") }) as _
    });
    let whole = futures::future::join_all(whole);
    until("all to run", LIMIT, async || {
        let metrics = server.metrics().await;
        let now = metrics.value("lockstep_num_requests_running");
        (now == f64::from(running + 4)).then_some(())
    })
    .await;
    Clients {
        streams,
        calls,
        gateway,
        whole,
    }
}

/// Reads all clients to their ends. Returns how the HTTP requests ended, and how the calls of
/// `lockstep.v1.Inference` ended.
async fn ends(
    streams: Vec<Events>,
    calls: Vec<Streaming<GenerateResponse>>,
    whole: Whole,
) -> (Vec<Told>, Vec<Told>) {
    let streams = futures::future::join_all(streams.into_iter().map(stream_end));
    let calls = futures::future::join_all(calls.into_iter().map(call_end));
    let (streams, calls, whole) = tokio::join!(streams, calls, whole);
    let whole = whole.into_iter().map(|answer| match answer {
        Ok(answer) => Told::Error(Some(answer.status), answer.error()),
        Err(error) => Told::Broken(format!("{error:?}")),
    });
    (streams.into_iter().chain(whole).collect(), calls)
}

async fn whole_call<T>(mut call: Streaming<T>) -> Result<(), Status> {
    while call.message().await?.is_some() {}
    Ok(())
}

async fn stream_end(mut events: Events) -> Told {
    loop {
        let event = events.next().await;
        if let Some(error) = event.error() {
            return Told::Error(None, error.clone());
        }
        match event {
            Event::Json(_) => {}
            Event::Broken(error) => return Told::Broken(error),
            Event::Done | Event::End => panic!("ended as if all were well"),
        }
    }
}

async fn call_end<T>(mut call: Streaming<T>) -> Told {
    loop {
        match call.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("ended as if all were well"),
            Err(status) => return Told::Status(status),
        }
    }
}

/// Kills `role` under load and checks the errors that clients get, and their delay. The gateway's
/// call goes straight to the engine: with `engine_lives` it must complete.
async fn kill_under_load(server: &Server, role: Role, engine_lives: bool) {
    let Clients {
        streams,
        calls,
        gateway,
        whole,
    } = load(server).await;
    let victim = server.process(role).await;
    let killed = Instant::now();
    victim.kill();
    let told = ends(streams, calls, whole);
    let ((http, mut calls), gateway) = if engine_lives {
        (told.await, Err(gateway))
    } else {
        let (told, gateway) = tokio::join!(told, call_end(gateway));
        (told, Ok(gateway))
    };
    let took = killed.elapsed();
    assert!(took < PROMISE, "{role:?}: clients were told after {took:?}");
    for told in http {
        match told {
            Told::Error(status, error) => {
                assert_eq!(status.unwrap_or(503), 503, "{role:?}: {error}");
                assert_eq!(error["type"], "server_error", "{role:?}");
                assert_eq!(error["code"], "service_unavailable", "{role:?}");
            }
            // Only clients of the killed tokenizer-manager can lose their connection.
            Told::Broken(error) => assert_eq!(role, Role::TokenizerManager(0), "{error}"),
            Told::Status(status) => panic!("{status}"),
        }
    }
    match gateway {
        Ok(told) => calls.push(told),
        Err(goes_on) => whole_call(goes_on).await.expect("all of it"),
    }
    for told in calls {
        let Told::Status(status) = told else {
            panic!("{told:?}")
        };
        // After a broken connection the status comes from the client's own library.
        let broken = [Code::Unknown, Code::Internal, Code::Cancelled];
        let defined = status.code() == Code::Unavailable || broken.contains(&status.code());
        assert!(defined, "{role:?}: {status:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_client_is_told_and_nothing_is_left_running() {
    for role in ROLES {
        let _turn = turns::alone().await;
        let server = Server::start(options()).await;
        kill_under_load(&server, role, false).await;
        let expected = match role {
            Role::Launcher => -1,
            _ => i32::from(exit::PROCESS_DIED),
        };
        assert_eq!(server.exit(LIMIT).await, expected, "{role:?}");
        let log = server.log();
        let named = match role {
            Role::Launcher => continue,
            Role::TokenizerManager(_) => "tokenizer-manager 0 was killed by signal 9",
            Role::Scheduler => "scheduler was killed by signal 9",
            Role::Worker(rank) => &format!("worker {rank} was killed by signal 9"),
        };
        assert!(log.contains(named), "the cause is not named:\n{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_is_restarted_as_often_as_allowed() {
    for role in &ROLES[1..] {
        let _turn = turns::alone().await;
        let server = Server::start(options().set("--max-restarts", "1")).await;
        let before = server.processes();
        let front = matches!(role, Role::TokenizerManager(_));
        kill_under_load(&server, *role, front).await;
        // A restart replaces every process but the launcher. A lost tokenizer-manager is replaced
        // alone.
        let expected = if front { before.len() - 1 } else { 1 };
        until("a new engine", LIMIT, async || {
            assert_eq!(server.ended(), None, "{}", server.log());
            let now = server.processes();
            let kept = before
                .iter()
                .filter(|process| now.contains(process))
                .count();
            (kept == expected && now.len() == before.len()).then_some(())
        })
        .await;
        server.ready().await;
        let answer = server.ok(PATH, &counting(&json!({}))).await;
        assert_eq!(answer["choices"][0]["message"]["content"], COUNTED);
        if *role == Role::Worker(1) {
            server.process(Role::Scheduler).await.kill();
            assert_eq!(server.exit(LIMIT).await, i32::from(exit::PROCESS_DIED));
        }
    }
}

/// `Retry-After` is the pause before the restart (here 0) plus the duration of the last start.
/// Without a restart left it is 1 second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_lost_an_engine_hears_when_the_next_one_serves() {
    let _turn = turns::alone().await;
    let server = Server::start(options().set("--max-restarts", "1")).await;
    for (word, restarts) in [("Ready after ", 1), ("Ready again after ", 0)] {
        let took = until("the time of a start", LIMIT, async || {
            let log = server.log();
            let (_, rest) = log.rsplit_once(word)?;
            rest.split_once(" s")?.0.parse::<f64>().ok()
        })
        .await;
        let Clients { streams, whole, .. } = load(&server).await;
        server.process(Role::Worker(1)).await.kill();
        for answer in whole.await {
            let answer = answer.expect("an answer");
            assert_eq!(answer.status, 503, "{}", answer.text);
            let after = answer.headers["retry-after"].to_str().expect("digits");
            let after: f64 = after.parse().expect("a number");
            // The rest of the engine takes half a second to end.
            let expected = match restarts {
                0 => 1.0..=1.0,
                _ => took + 0.4..=took + 2.0,
            };
            assert!(
                expected.contains(&after),
                "{after} and not {expected:?}: {}",
                answer.text
            );
        }
        drop(streams);
    }
    assert_eq!(server.exit(LIMIT).await, i32::from(exit::PROCESS_DIED));
}

#[tokio::test]
async fn an_idle_engine_dies_with_its_first_process() {
    for role in &ROLES[1..] {
        let _turn = turns::alone().await;
        let server = Server::start(options()).await;
        server.process(*role).await.kill();
        assert_eq!(server.exit(LIMIT).await, i32::from(exit::PROCESS_DIED));
    }
}
