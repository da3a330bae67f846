//! Two nodes on one machine, over TCP.

use lockstep_process::exit;
use lockstep_tests::{
    body::{COUNTED, counting},
    ports,
    processes::Role,
    server::{Options, Server},
    tls::Authority,
    turns,
    wait::LIMIT,
};
use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::{options, shared};

/// What both nodes know.
const SECRET: &str = "the-secret-of-both-nodes";

/// Options of a node, with a secret of its own.
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

/// The options of a node whose certificate `authority` has signed.
fn certified(options: Options, folder: &TempDir, authority: &Authority, name: &str) -> Options {
    let at = |what: &str| folder.path().join(format!("{name}.{what}"));
    authority.sign().write(&at("pem"), &at("key"));
    std::fs::write(at("roots"), authority.pem()).expect("written");
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
    let node = |number, authority, name| {
        let options = nodes.options(number, SECRET);
        certified(options, &nodes.folder, authority, name)
    };
    let first = Server::launch(node(0, &own, "first"));
    let mistrusts = certified(nodes.options(1, SECRET), &nodes.folder, &own, "mistrusts");
    std::fs::write(nodes.folder.path().join("mistrusts.roots"), other.pem()).expect("written");
    for (what, wrong, says) in [
        ("of another authority", node(1, &other, "other"), "TLS"),
        ("that trusts others", mistrusts, "agree on TLS"),
    ] {
        let wrong = Server::launch(wrong);
        let code = wrong.exit(LIMIT).await;
        assert_eq!(code, i32::from(exit::START_FAILED), "{what}");
        assert!(wrong.log().contains(says), "{what}: {}", wrong.log());
        assert_eq!(first.ended(), None, "{what}: {}", first.log());
    }
    let right = Server::launch(node(1, &own, "right"));
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
    assert_eq!(first.ended(), None, "{}", first.log());
    let right = Server::launch(nodes.options(1, SECRET));
    first.ready().await;
    right.says("is ready").await;
}

#[tokio::test]
async fn a_node_that_is_told_to_stop_lets_requests_finish_and_leaves() {
    let _turn = turns::alone().await;
    let nodes = Nodes::new();
    let [first, second] = nodes.start().await;
    let asked = first.client.post(first.url("/v1/chat/completions"));
    let fields = json!({"max_tokens": 1000, "ignore_eos": true});
    let asked = tokio::spawn(lockstep_tests::http::answer(asked.json(&counting(&fields))));
    lockstep_tests::wait::until("the request to run", LIMIT, async || {
        let metrics = first.metrics().await;
        (metrics.value("lockstep_num_requests_running") == 1.0).then_some(())
    })
    .await;
    second.signal(Signal::TERM).await;
    let answer = asked.await.expect("no panic").expect("answered");
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(second.exit(LIMIT).await, i32::from(exit::OK));
    let own = first.exit(LIMIT).await;
    assert_eq!(own, i32::from(exit::PROCESS_DIED), "{}", first.log());
    assert!(first.log().contains("was told to stop"), "{}", first.log());
}
