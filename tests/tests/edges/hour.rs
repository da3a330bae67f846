//! Everything at once for a long time: clients, operators, and hostile strangers.
//! Afterwards the server has the same processes, no larger than before.

use std::{
    fs,
    path::Path,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use lockstep_tests::{
    body::{COUNTED, completion, counting},
    processes::Process,
    row::say,
    server::Server,
    sse,
    storm::{Storm, Strength},
    turns,
    wait::{LIMIT, until},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{interval, timeout},
};

use crate::{folders::copy_demo, mutated, options};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
/// Environment variable with the duration of the long test in seconds (default: an
/// hour).
const SECONDS: &str = "LOCKSTEP_HOUR_S";
/// Number of parts of the long test.
const PARTS: u32 = 12;
/// Number of clients that wait for all their answers.
const CLIENTS: u64 = 4;
/// Number of threads, and of descriptors, that a process may have more than before.
const MORE: usize = 4;

/// Duration of one part of the test.
#[derive(Debug, Clone, Copy)]
enum Lasts {
    /// Until each client has this number of answers.
    Answers(usize),
    Time(Duration),
}

impl Lasts {
    fn is_over(self, begin: Instant, answered: usize) -> bool {
        match self {
            Self::Answers(each) => answered >= each,
            Self::Time(time) => begin.elapsed() >= time,
        }
    }
}

/// Resources that a process uses.
#[derive(Debug, Clone, Copy)]
struct Size {
    process: Process,
    resident: usize,
    threads: usize,
    descriptors: usize,
}

fn sizes(server: &Server) -> Vec<Size> {
    let size = |process: Process| {
        let count = |what| {
            let entries = fs::read_dir(format!("/proc/{}/{what}", process.pid));
            entries.expect("it lives").count()
        };
        Size {
            process,
            resident: process.memory("VmRSS"),
            threads: count("task"),
            descriptors: count("fd"),
        }
    };
    server.processes().into_iter().map(size).collect()
}

/// A request that the test repeats. Its answer must stay the same.
fn greedy() -> Value {
    completion("1, 2, 3,", &json!({"max_tokens": 16}))
}

async fn text(server: &Server) -> String {
    let answer = server.ok(COMPLETIONS, &greedy()).await;
    answer["choices"][0]["text"]
        .as_str()
        .expect("a text")
        .to_owned()
}

/// Sends requests with known answers. Returns the number of answers.
async fn client(server: Arc<Server>, seed: u64, expected: String, lasts: Lasts) -> usize {
    let mut random = StdRng::seed_from_u64(seed);
    let (begin, mut answered) = (Instant::now(), 0);
    while !lasts.is_over(begin, answered) {
        match random.random_range(0..3) {
            0 => {
                let answer = server.ok(CHAT, &counting(&json!({}))).await;
                assert_eq!(answer["choices"][0]["message"]["content"], COUNTED);
            }
            1 => {
                let events = server
                    .stream(CHAT, &counting(&json!({"stream": true})))
                    .await;
                assert_eq!(sse::text(&events.chunks().await, 0), COUNTED);
            }
            _ => assert_eq!(text(&server).await, expected),
        }
        answered += 1;
    }
    answered
}

/// Sends requests and leaves in the middle of each answer.
async fn leaver(server: Arc<Server>) {
    let fields = json!({"max_tokens": 400, "ignore_eos": true, "stream": true});
    loop {
        let mut events = server.stream(CHAT, &counting(&fields)).await;
        for _ in 0..5 {
            events.next().await;
        }
    }
}

/// Sends an operator's commands, some of them wrong.
async fn operator(server: Arc<Server>) {
    let mut second = interval(Duration::from_secs(1));
    loop {
        second.tick().await;
        server.metrics().await;
        // The server refuses this while requests run.
        server.post("/flush_cache", &json!({})).await;
        let nobody = json!({"rid": "nobody"});
        server.post("/abort_request", &nobody).await;
        let update = json!({"model_path": "odd"});
        let answer = server.post("/update_weights_from_disk", &update).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
    }
}

/// Sends twenty damaged requests a second.
async fn mutant(server: Arc<Server>, seed: u64) {
    let mut ticks = interval(Duration::from_millis(50));
    let mut requests = JoinSet::new();
    for seed in seed.. {
        ticks.tick().await;
        let server = server.clone();
        requests.spawn(async move { mutated::one(&server, seed).await });
        while let Some(done) = requests.try_join_next() {
            let wrong = done.expect("it does not panic");
            assert_eq!(wrong, None);
        }
    }
}

/// Runs all of them at once. Returns the number of answers that the good clients got.
async fn everything(server: &Arc<Server>, seed: u64, lasts: Lasts, expected: &str) -> usize {
    let clients = (0..CLIENTS).map(|number| {
        let seed = seed + number;
        tokio::spawn(client(server.clone(), seed, expected.to_owned(), lasts))
    });
    let clients = join_all(clients.collect::<Vec<_>>());
    let storm = Storm::over(server, &[], Strength::TENTH);
    let mut others = JoinSet::new();
    others.spawn(leaver(server.clone()));
    others.spawn(operator(server.clone()));
    others.spawn(mutant(server.clone(), seed * 1_000_000));
    let mut clients = pin!(clients);
    let answered = tokio::select! {
        answered = &mut clients => answered,
        failed = others.join_next() => {
            failed.expect("three of them").expect("none of them fails");
            clients.await
        }
    };
    drop((others, storm));
    answered
        .into_iter()
        .map(|one| one.expect("no client fails"))
        .sum()
}

/// Waits until no request runs and all connections of the storm are gone.
async fn quiet(server: &Server, before: &[Size]) -> Vec<Size> {
    until("an idle engine", LIMIT, async || {
        let metrics = server.metrics().await;
        let busy = metrics.value("lockstep_num_requests_running")
            + metrics.value("lockstep_num_requests_waiting");
        (busy == 0.0).then_some(())
    })
    .await;
    let few = |now: &Size, before: &Size| {
        now.descriptors <= before.descriptors + MORE && now.threads <= before.threads + MORE
    };
    let settled = timeout(LIMIT, async {
        until("no connections", 2 * LIMIT, async || {
            let now = sizes(server);
            now.iter()
                .zip(before)
                .all(|(now, before)| few(now, before))
                .then_some(now)
        })
        .await
    });
    let Ok(now) = settled.await else {
        panic!("{before:#?}\nbecame\n{:#?}", sizes(server));
    };
    assert_eq!(
        server.metrics().await.value("lockstep_kv_leaked_pages"),
        0.0
    );
    now
}

fn odd_weights(updates: &Path) {
    copy_demo(&updates.join("odd"), "model.safetensors");
    fs::write(updates.join("odd/model.safetensors"), [0xFF; 12]).expect("written");
}

/// Runs several parts, and checks the processes after each part.
async fn for_a_while(parts: u32, part: Lasts) {
    let _turn = turns::alone().await;
    let updates = tempfile::tempdir().expect("a folder");
    odd_weights(updates.path());
    let updates_dir = updates.path().to_str().expect("UTF-8");
    let options = options()
        .timed()
        .set("--tokenizer-managers", "2")
        .set("--weight-update-dir", updates_dir)
        // A cache takes its memory when pages are first used. This cache is full within
        // one part.
        .set("--max-total-tokens", "8192");
    let server = Arc::new(Server::start(options).await);
    let expected = text(&server).await;
    let processes = server.processes();
    let before = sizes(&server);
    let mut all = Vec::new();
    for number in 1..=parts {
        let answered = everything(&server, number.into(), part, &expected).await;
        assert!(answered > 0);
        let now = quiet(&server, &before).await;
        say(&format!("part {number}: {answered} answers"));
        for size in &now {
            let (kib, process) = (size.resident >> 10, size.process);
            let Size {
                threads,
                descriptors,
                ..
            } = size;
            say(&format!(
                "  {process}: {kib} KiB, {threads} threads, {descriptors} descriptors"
            ));
        }
        all.push(now);
        assert_eq!(server.processes(), processes, "a process was lost");
    }
    assert_eq!(text(&server).await, expected);
    // The first request of a kind takes memory for good, for example for the heaps of
    // threads.
    let (first, more) = match all.len() {
        1 => (&before, 64 << 20),
        _ => (&all[0], 8 << 20),
    };
    for (first, last) in first.iter().zip(&all[all.len() - 1]) {
        let most = first.resident + first.resident / 20 + more;
        assert!(last.resident <= most, "{first:?} became {last:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_while_of_everything_leaves_no_trace() {
    for_a_while(1, Lasts::Answers(30)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes an hour"]
async fn an_hour_of_everything_leaves_no_trace() {
    let seconds = std::env::var(SECONDS)
        .ok()
        .and_then(|text| text.parse().ok());
    let part = Duration::from_secs(seconds.unwrap_or(3600)) / PARTS;
    for_a_while(PARTS, Lasts::Time(part)).await;
}
