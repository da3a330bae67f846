//! Two nodes on one machine, over TCP.

use lockstep_process::exit;
use lockstep_tests::{
    body::{COUNTED, counting},
    ports,
    processes::Role,
    server::{Options, Server},
    tls::{Authority, connect},
    turns,
    wait::LIMIT,
};
use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;
use tokio::{io::AsyncReadExt, task::JoinHandle};

use crate::{options, shared};

/// The secret that both nodes share.
const SECRET: &str = "the-secret-of-both-nodes";

/// Makes the options of the nodes. Each node reads its secret from a file.
struct Nodes {
    address: String,
    folder: tempfile::TempDir,
}

impl Nodes {
    fn new() -> Self {
        Self {
            address: format!("127.0.0.1:{}", ports::free()),
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    fn options(&self, node: usize, secret: &str) -> Options {
        let file = self.folder.path().join(secret);
        std::fs::write(&file, secret).expect("written");
        options()
            .set("--nnodes", "2")
            .set("--node-rank", &node.to_string())
            .set("--dist-init-addr", &self.address)
            .set("--dist-secret-file", file.to_str().expect("UTF-8"))
    }

    async fn start(&self) -> [Server; 2] {
        let servers = [0, 1].map(|node| Server::launch(self.options(node, SECRET)));
        servers[0].ready().await;
        servers[1].says("is ready").await;
        servers
    }
}

#[tokio::test]
async fn two_nodes_answer_as_one_and_end_together() {
    let _turn = turns::shared().await;
    let single = shared().await;
    let nodes = Nodes::new();
    let [first, second] = nodes.start().await;
    let roles = |server: &Server| -> Vec<_> {
        server
            .processes()
            .iter()
            .map(|process| process.role)
            .collect()
    };
    assert_eq!(roles(&second), [Role::Launcher, Role::Worker(1)]);
    assert!(!roles(&first).contains(&Role::Worker(1)));
    let body = counting(&json!({"logprobs": true}));
    let expected = single.ok("/v1/chat/completions", &body).await;
    let answer = first.ok("/v1/chat/completions", &body).await;
    assert_eq!(answer["choices"], expected["choices"], "also the logprobs");
    first.signal(Signal::TERM).await;
    assert_eq!(
        first.exit(LIMIT).await,
        i32::from(exit::OK),
        "{}\n{}",
        first.log(),
        second.log()
    );
    assert_eq!(
        second.exit(LIMIT).await,
        i32::from(exit::OK),
        "{}\n{}",
        first.log(),
        second.log()
    );
}

#[tokio::test]
async fn a_node_that_dies_ends_the_other() {
    for (victim, role) in [
        (1, Role::Launcher),
        (1, Role::Worker(1)),
        (0, Role::Launcher),
    ] {
        let _turn = turns::alone().await;
        let nodes = Nodes::new();
        let servers = nodes.start().await;
        let asked = servers[0]
            .client
            .post(servers[0].url("/v1/chat/completions"));
        let fields = json!({"max_tokens": 1900, "ignore_eos": true});
        let asked = tokio::spawn(lockstep_tests::http::answer(asked.json(&counting(&fields))));
        lockstep_tests::wait::until("the request to run", LIMIT, async || {
            let metrics = servers[0].metrics().await;
            (metrics.value("lockstep_num_requests_running") == 1.0).then_some(())
        })
        .await;
        servers[victim].process(role).await.kill();
        let answer = asked.await.expect("no panic").expect("answered");
        assert_eq!(answer.status, 503, "{}", answer.text);
        answer.error();
        let survivor = servers[1 - victim].exit(LIMIT).await;
        assert_eq!(
            survivor,
            i32::from(exit::PROCESS_DIED),
            "{role:?} of node {victim}"
        );
        if role != Role::Launcher {
            let own = servers[victim].exit(LIMIT).await;
            assert_eq!(own, i32::from(exit::PROCESS_DIED));
        }
    }
}

/// Options of a node whose certificate is signed by `signs`. The node trusts the
/// authorities `trusts`.
fn certified(
    options: Options,
    folder: &TempDir,
    (name, signs): (&str, &Authority),
    trusts: &[&Authority],
) -> Options {
    let at = |what: &str| folder.path().join(format!("{name}.{what}"));
    signs.sign().write(&at("pem"), &at("key"));
    let roots: String = trusts.iter().map(|one| one.pem()).collect();
    std::fs::write(at("roots"), roots).expect("written");
    let set =
        |options: Options, option: &str, what| options.set(option, &at(what).to_string_lossy());
    let options = set(options, "--dist-ssl-certfile", "pem");
    let options = set(options, "--dist-ssl-keyfile", "key");
    set(options, "--dist-ssl-ca-certs", "roots")
}

#[tokio::test]
async fn nodes_with_certificates_let_nobody_else_in() {
    let _turn = turns::shared().await;
    let nodes = Nodes::new();
    let [own, other] = [Authority::default(), Authority::default()];
    let node = |number, name, signs, trusts: &[&Authority]| {
        let options = nodes.options(number, SECRET);
        certified(options, &nodes.folder, (name, signs), trusts)
    };
    let first = Server::launch(node(0, "first", &own, &[&own]));
    for (name, wrong, expected, says) in [
        // The first node refuses this node.
        (
            "other",
            node(1, "other", &other, &[&own, &other]),
            exit::START_FAILED,
            "all have them",
        ),
        // This node refuses the first node.
        (
            "mistrusts",
            node(1, "mistrusts", &other, &[&other]),
            exit::START_FAILED,
            "agree on TLS",
        ),
        (
            "unsigned",
            node(1, "unsigned", &other, &[&own]),
            exit::USAGE,
            "--dist-ssl-certfile",
        ),
    ] {
        let wrong = Server::launch(wrong);
        let code = wrong.exit(LIMIT).await;
        assert_eq!(code, i32::from(expected), "{name}: {}", wrong.log());
        assert!(wrong.log().contains(says), "{name}: {}", wrong.log());
        assert_eq!(first.ended(), None, "{name}: {}", first.log());
    }
    // A peer without a certificate, or without TLS, is turned away.
    let port = nodes.address.rsplit_once(':').expect("a port").1;
    let port = port.parse().expect("a number");
    let client = own.client(&["h2"], None);
    let nobody = async {
        let mut stream = connect(&client, port).await?;
        stream.read_u8().await
    };
    nobody.await.expect_err("no certificate");
    let plain = Server::launch(nodes.options(1, SECRET));
    assert_eq!(plain.exit(LIMIT).await, i32::from(exit::START_FAILED));
    assert!(plain.log().contains("all have them"), "{}", plain.log());
    let right = Server::launch(node(1, "right", &own, &[&own]));
    first.ready().await;
    right.says("is ready").await;
    let answer = first
        .ok("/v1/chat/completions", &counting(&json!({})))
        .await;
    assert_eq!(answer["choices"][0]["message"]["content"], COUNTED);
    first.signal(Signal::TERM).await;
    for server in [first, right] {
        assert_eq!(
            server.exit(LIMIT).await,
            i32::from(exit::OK),
            "{}",
            server.log()
        );
    }
}

#[tokio::test]
async fn a_wrong_secret_is_refused_and_the_right_one_still_let_in() {
    let _turn = turns::shared().await;
    let nodes = Nodes::new();
    let first = Server::launch(nodes.options(0, SECRET));
    let wrong = Server::launch(nodes.options(1, "another-secret-altogether"));
    assert_eq!(wrong.exit(LIMIT).await, i32::from(exit::START_FAILED));
    assert!(wrong.log().contains("secret"), "{}", wrong.log());
    first
        .says("a worker with a wrong or missing secret was refused")
        .await;
    assert!(first.log().contains("peer=\"127.0.0.1:"), "{}", first.log());
    assert_eq!(first.ended(), None, "{}", first.log());
    let right = Server::launch(nodes.options(1, SECRET));
    first.ready().await;
    right.says("is ready").await;
}

/// Sends a long request and waits until the request runs.
async fn asks_at_length(
    server: &Server,
) -> JoinHandle<reqwest::Result<lockstep_tests::http::Answer>> {
    let asked = server.client.post(server.url("/v1/chat/completions"));
    let fields = json!({"max_tokens": 1000, "ignore_eos": true});
    let asked = tokio::spawn(lockstep_tests::http::answer(asked.json(&counting(&fields))));
    lockstep_tests::wait::until("the request to run", LIMIT, async || {
        let metrics = server.metrics().await;
        (metrics.value("lockstep_num_requests_running") == 1.0).then_some(())
    })
    .await;
    asked
}

#[tokio::test]
async fn a_node_that_is_told_to_stop_lets_requests_finish_and_leaves() {
    let _turn = turns::alone().await;
    let nodes = Nodes::new();
    let [first, second] = nodes.start().await;
    let asked = asks_at_length(&first).await;
    second.signal(Signal::TERM).await;
    let answer = asked.await.expect("no panic").expect("answered");
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(second.exit(LIMIT).await, i32::from(exit::OK));
    let own = first.exit(LIMIT).await;
    assert_eq!(own, i32::from(exit::PROCESS_DIED), "{}", first.log());
    assert!(first.log().contains("was told to stop"), "{}", first.log());
}

#[tokio::test]
async fn nodes_that_are_stopped_together_all_end_well() {
    let _turn = turns::alone().await;
    let nodes = Nodes::new();
    let [first, second] = nodes.start().await;
    let asked = asks_at_length(&first).await;
    second.signal(Signal::TERM).await;
    // The engine learns of the other node's end before its own signal.
    lockstep_tests::wait::until("node 0 to hear of it", LIMIT, async || {
        first.log().contains("was told to stop").then_some(())
    })
    .await;
    first.signal(Signal::TERM).await;
    let answer = asked.await.expect("no panic").expect("answered");
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(second.exit(LIMIT).await, i32::from(exit::OK));
    let own = first.exit(LIMIT).await;
    assert_eq!(own, i32::from(exit::OK), "{}", first.log());
}
