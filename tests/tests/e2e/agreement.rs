//! Two nodes whose ranks agree on the depth of every step over TCP.
//!
//! They run on loopback in every run. A test between network namespaces needs iproute2
//! and the right to make namespaces, and runs on request:
//!
//! ```text
//! cargo test -p lockstep-tests --test e2e -- --ignored network_namespaces
//! ```

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Child, Command},
    time::{Duration, Instant},
};

use lockstep_process::exit;
use lockstep_tests::{
    body::{COUNTED, counting},
    http::answer,
    ports,
    processes::Role,
    server::{Options, Server},
    turns,
    turns_policy::ASTRAY,
    wait::{LIMIT, blocking, until},
};
use rustix::process::Signal;
use serde_json::json;

use crate::{
    options,
    ranks::{data_parallel, drafting, taking_turns},
    shared,
};

const PATH: &str = "/v1/chat/completions";
/// A step of a request that runs long.
const STEP: u64 = 60;

/// Setup of two nodes that reach each other.
pub struct Nodes {
    /// Address of the first node.
    address: String,
    /// Programs that start the nodes.
    programs: [PathBuf; 2],
    /// Adds the options of the device that both use.
    pub device: fn(Options) -> Options,
    /// Number of ranks, and number of DP ranks that they form.
    pub ranks: (usize, usize),
    folder: tempfile::TempDir,
}

impl Nodes {
    /// Two ranks on CPU cores.
    pub fn on_loopback() -> Self {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_lockstep-under-test"));
        Self {
            address: format!("127.0.0.1:{}", ports::free()),
            programs: [program.clone(), program],
            device: |options| options,
            ranks: (2, 1),
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, text).expect("written");
        path
    }

    fn options(&self, node: usize) -> Options {
        let options = (self.device)(Options::new(&self.programs[node]))
            .set("--nnodes", "2")
            .set("--node-rank", &node.to_string())
            .set("--dist-init-addr", &self.address);
        let options = drafting(data_parallel(options, self.ranks));
        let options = taking_turns(options, &[0, 1, 2, 3], self.folder.path());
        let secret = self.write("secret", "the-secret-of-both-nodes");
        options.set("--dist-secret-file", secret.to_str().expect("UTF-8"))
    }

    async fn start(&self, second: Options) -> [Server; 2] {
        let servers = [self.options(0), second].map(Server::launch);
        servers[0].ready().await;
        servers[1].says("is ready").await;
        servers
    }

    /// Checks that the texts equal those of `single`, one node without speculation.
    async fn agree(&self, single: &Server) {
        let [first, second] = self.start(self.options(1)).await;
        for fields in [
            json!({"logprobs": true}),
            json!({"temperature": 0.9, "seed": 7, "max_tokens": 80}),
        ] {
            let body = counting(&fields);
            let expected = single.ok(PATH, &body).await;
            let answer = first.ok(PATH, &body).await;
            assert_eq!(answer["choices"], expected["choices"], "{fields}");
        }
        end([first, second]).await;
    }

    /// Checks that both nodes count correctly together, on each DP rank.
    pub async fn count(&self) {
        let servers = self.start(self.options(1)).await;
        let (ranks, dp_ranks) = self.ranks;
        for rank in 0..dp_ranks {
            let rank = (dp_ranks > 1).then_some(rank);
            let body = counting(&json!({"data_parallel_rank": rank}));
            let answer = servers[0].ok(PATH, &body).await;
            let content = &answer["choices"][0]["message"]["content"];
            assert_eq!(content, COUNTED, "{ranks} ranks, {rank:?}");
        }
        end(servers).await;
    }

    /// Sends `signal` to the second node's last rank while requests run. The clients
    /// are told within `limit`, both nodes end, and the first one names the rank.
    pub async fn lose(&self, signal: Signal, limit: Duration) {
        let servers = self.start(self.options(1)).await;
        let last = self.ranks.0 - 1;
        let fields = json!({"max_tokens": 900, "ignore_eos": true});
        let asked = [(); 2].map(|()| {
            let request = servers[0].client.post(servers[0].url(PATH));
            tokio::spawn(answer(request.json(&counting(&fields))))
        });
        until("both to run", LIMIT, async || {
            let metrics = servers[0].metrics().await;
            let running = metrics.sum("lockstep_num_requests_running") as usize;
            (running == asked.len()).then_some(())
        })
        .await;
        let folders = servers.each_ref().map(Server::run_dir);
        let begun = Instant::now();
        servers[1].process(Role::Worker(last)).await.signal(signal);
        for asked in asked {
            let answer = asked.await.expect("no panic").expect("an answer");
            assert_eq!(answer.status, 503, "{}", answer.text);
            assert_eq!(answer.error()["code"], "service_unavailable");
        }
        let took = begun.elapsed();
        assert!(took < limit, "{signal:?}: told after {took:?}");
        for server in &servers {
            let code = server.exit(LIMIT).await;
            assert_eq!(code, i32::from(exit::PROCESS_DIED), "{}", server.log());
        }
        let log = servers[0].log();
        assert!(log.contains(&format!("rank {last}")), "{log}");
        for folder in folders {
            assert!(!folder.exists(), "it has the sockets");
        }
    }

    /// Makes the second node's rank decide differently in one step. The next step ends
    /// the run, and the log shows both rows.
    pub async fn diverge(&self) {
        let astray = self.options(1).env(ASTRAY, &STEP.to_string());
        let servers = self.start(astray).await;
        let fields = json!({"max_tokens": 900, "ignore_eos": true});
        let body = counting(&fields);
        let answer = servers[0].post(PATH, &body).await;
        assert_eq!(answer.status, 503, "{}", answer.text);
        for server in &servers {
            assert_ne!(server.exit(LIMIT).await, i32::from(exit::OK));
        }
        let log = servers.each_ref().map(Server::log).concat();
        let row = format!("step {} at depth", STEP + 1);
        let found = log.lines().any(|line| {
            line.matches(&row).count() == 2
                && ["rank 0", "rank 1", "have diverged"]
                    .iter()
                    .all(|part| line.contains(part))
        });
        assert!(found, "{log}");
        let later = format!("step {}", STEP + 2);
        assert!(!log.contains(&later), "{log}");
    }
}

/// Ends two nodes by a signal to the first one.
async fn end(servers: [Server; 2]) {
    servers[0].signal(Signal::TERM).await;
    for server in &servers {
        assert_eq!(server.exit(LIMIT).await, i32::from(exit::OK));
    }
}

#[tokio::test]
async fn two_nodes_agree_on_the_depth_of_every_step() {
    let _turn = turns::shared().await;
    Nodes::on_loopback().agree(&*shared().await).await;
}

/// The cases have one rank per DP rank, two, and three DP ranks of which one spans both
/// nodes.
#[tokio::test]
async fn dp_ranks_of_two_nodes_agree_on_every_step() {
    let _turn = turns::shared().await;
    for ranks in [(2, 2), (4, 2), (6, 3)] {
        let nodes = Nodes {
            ranks,
            ..Nodes::on_loopback()
        };
        let single = Server::start(data_parallel(options(), ranks)).await;
        nodes.agree(&single).await;
        if ranks == (2, 2) {
            nodes.diverge().await;
        }
    }
}

#[tokio::test]
async fn a_node_that_decides_differently_ends_both() {
    let _turn = turns::shared().await;
    Nodes::on_loopback().diverge().await;
}

/// A network namespace, and the process that keeps it.
struct Namespace(Child);

impl Namespace {
    /// Makes a namespace with a cable to this process's own. The cable ends at
    /// 10.99.0.1 here and at 10.99.0.2 there.
    fn new() -> Self {
        let mut keeper = Command::new("unshare");
        keeper.args(["-n", "sleep", "infinity"]);
        let keeper = Self(keeper.spawn().expect("unshare"));
        let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let pid = keeper.0.id().to_string();
        assert!(blocking(LIMIT, || of(&pid) != of("self")));
        for line in [
            "ip link set lo up",
            "ip link add first type veth peer name second",
            &format!("ip link set second netns {pid}"),
            "ip addr add 10.99.0.1/24 dev first",
            "ip link set first up",
            &format!("nsenter -t {pid} -n ip addr add 10.99.0.2/24 dev second"),
            &format!("nsenter -t {pid} -n ip link set second up"),
            &format!("nsenter -t {pid} -n ip link set lo up"),
        ] {
            let mut words = line.split(' ');
            let program = words.next().expect("a program");
            let status = Command::new(program).args(words).status();
            assert!(status.expect("it runs").success(), "{line}");
        }
        keeper
    }

    /// Returns a setup with one node in each namespace.
    fn nodes(&self) -> Nodes {
        let mut nodes = Nodes::on_loopback();
        nodes.address = format!("10.99.0.1:{}", ports::free());
        let there = format!(
            "#!/bin/sh\nexec nsenter -t {} -n -- {} \"$@\"\n",
            self.0.id(),
            nodes.programs[1].display()
        );
        nodes.programs[1] = nodes.write("there", &there);
        let executable = fs::Permissions::from_mode(0o700);
        fs::set_permissions(&nodes.programs[1], executable).expect("it is ours");
        nodes
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs itself again in a namespace where it has all rights.
#[tokio::test]
#[ignore = "needs iproute2 and the right to make network namespaces"]
async fn two_nodes_in_network_namespaces() {
    const INSIDE: &str = "TEST_INSIDE_A_NAMESPACE";
    if std::env::var_os(INSIDE).is_none() {
        let own = std::env::current_exe().expect("own path");
        let status = Command::new("unshare")
            .args(["-rn", "--"])
            .arg(own)
            .args(["--exact", "agreement::two_nodes_in_network_namespaces"])
            .args(["--ignored", "--nocapture"])
            .env(INSIDE, "1")
            .status();
        assert!(status.expect("unshare").success());
        return;
    }
    let namespace = Namespace::new();
    namespace.nodes().agree(&*shared().await).await;
    namespace.nodes().diverge().await;
}
