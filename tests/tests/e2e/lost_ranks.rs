//! Ranks that are killed or stopped, and the group of ranks that replaces them.

use std::{
    fs,
    net::TcpStream,
    time::{Duration, Instant},
};

use lockstep_process::exit;
use lockstep_tests::{
    body::{COUNTED, counting},
    http::{Answer, answer},
    processes::Role,
    server::{Options, Server},
    turns,
    wait::{LIMIT, until},
};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    options,
    ranks::{adapting, data_parallel},
};

const PATH: &str = "/v1/chat/completions";
/// Timeout of the watchdog.
pub const WATCHDOG: Duration = Duration::from_secs(4);
/// Time after the watchdog's timeout within which clients get their errors.
pub const PROMISE: Duration = Duration::from_secs(3);
/// Candidate depths of drafts, the initial depth first.
const DEPTHS: [u64; 2] = [1, 3];
/// Steps before the first change of depth.
const WARM_UP: u32 = 8;
/// Requests that run at once. For each of them, [`WAITING`] more wait.
const RUNNING: usize = 2;
const WAITING: usize = 2;

/// Kills one rank of a group, and then stops one rank of the group that replaces it.
/// All clients get their errors in time, the new group begins at the initial depth, and
/// nothing is left at the end.
pub async fn are_lost(options: Options, ranks: (usize, usize)) {
    let folder = tempfile::tempdir().expect("a folder");
    // Counted numbers are easy to draft, so the depth rises.
    let file = json!({
        "strategy": "ema", "update_interval": 1, "warmup_batches": WARM_UP, "ema_alpha": 1,
        "candidate_steps": DEPTHS, "up_hysteresis": -0.5,
    });
    let options = data_parallel(options, ranks)
        .set("--speculative-algorithm", "NGRAM")
        .set("--speculative-num-steps", &DEPTHS[0].to_string())
        .set("--max-running-requests", &RUNNING.to_string())
        .set("--max-restarts", "1")
        .set("--watchdog-timeout", &WATCHDOG.as_secs().to_string())
        .set("--ping-timeout", "0");
    let server = Server::start(adapting(options, &file, folder.path())).await;
    until("another depth than the initial one", LIMIT, async || {
        count(&server).await;
        (steps(&server, DEPTHS[1]).await > 0).then_some(())
    })
    .await;
    let before = server.processes();
    lose(&server, ranks.1, Signal::KILL, PROMISE).await;
    until("a new group", LIMIT, async || {
        assert_eq!(server.ended(), None, "{}", server.log());
        let now = server.processes();
        let all = now.len() == before.len();
        (all && now.iter().filter(|one| before.contains(one)).count() == 1).then_some(())
    })
    .await;
    server.ready().await;
    // Fewer steps than the warm-up before the first change of depth.
    let body = counting(&json!({"max_tokens": WARM_UP / 2}));
    server.ok(PATH, &body).await;
    let [initial, other] = [steps(&server, DEPTHS[0]), steps(&server, DEPTHS[1])];
    assert!(initial.await > 0);
    assert_eq!(other.await, 0, "as before the restart");
    count(&server).await;
    let run_dir = server.run_dir();
    lose(&server, ranks.1, Signal::STOP, WATCHDOG + PROMISE).await;
    let code = server.exit(LIMIT).await;
    assert_eq!(code, i32::from(exit::PROCESS_DIED), "{}", server.log());
    for said in ["worker 1 was killed by signal 9", "--watchdog-timeout"] {
        assert!(server.log().contains(said), "{said}: {}", server.log());
    }
    assert!(!run_dir.exists(), "it has the sockets");
    for port in [server.port, server.grpc_port, server.sglang_port] {
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "{port}");
    }
}

/// Signals rank 1 while all DP ranks have requests. Every running and waiting request
/// must get its error within `limit`. The ranks' shared memory has no name that could
/// be left behind.
async fn lose(server: &Server, dp_ranks: usize, signal: Signal, limit: Duration) {
    let fields = |rank| json!({"max_tokens": 900, "ignore_eos": true, "data_parallel_rank": rank});
    let asked: Vec<_> = (0..RUNNING * (1 + WAITING))
        .map(|number| {
            let rank = (dp_ranks > 1).then_some(number % dp_ranks);
            let request = server.client.post(server.url(PATH));
            tokio::spawn(answer(request.json(&counting(&fields(rank)))))
        })
        .collect();
    until("some to run and others to wait", LIMIT, async || {
        let metrics = server.metrics().await;
        let counts = ["running", "waiting"]
            .map(|state| metrics.sum(&format!("lockstep_num_requests_{state}")) as usize);
        (counts == [RUNNING, RUNNING * WAITING]).then_some(())
    })
    .await;
    let worker = server.process(Role::Worker(1)).await;
    assert_eq!(shared_by_name(worker.pid), Vec::<String>::new());
    let begun = Instant::now();
    worker.signal(signal);
    for asked in asked {
        let answer = asked.await.expect("no panic");
        told(&answer.expect("an answer"));
    }
    let took = begun.elapsed();
    assert!(took < limit, "{signal:?}: told after {took:?}");
}

/// Checks the error that a client of a lost engine gets.
fn told(answer: &Answer) {
    assert_eq!(answer.status, 503, "{}", answer.text);
    assert_eq!(answer.error()["code"], "service_unavailable");
}

/// Returns the process's mappings of `/dev/shm` that still have a name.
fn shared_by_name(pid: i32) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    let named = |line: &&str| line.contains("/dev/shm/") && !line.ends_with("(deleted)");
    maps.lines().filter(named).map(str::to_owned).collect()
}

async fn count(server: &Server) {
    let answer = server.ok(PATH, &counting(&json!({}))).await;
    assert_eq!(answer["choices"][0]["message"]["content"], COUNTED);
}

/// Returns the number of steps that ran at `depth` since the group began.
async fn steps(server: &Server, depth: u64) -> u64 {
    let shown: Value = server.get("/speculation").await.ok();
    let depths = shown["by_depth"].as_array().expect("a list");
    let of = depths.iter().find(|of| of["depth"] == depth);
    of.and_then(|of| of["steps"].as_u64()).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dp_rank_that_is_lost_costs_what_ran_alone() {
    let _turn = turns::alone().await;
    are_lost(options(), (2, 2)).await;
}
