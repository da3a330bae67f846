//! Public ports that speak TLS.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use hyper_util::rt::TokioIo;
use lockstep_process::exit;
use lockstep_proto::pb::lockstep::{
    Chat, ChatMessage, generate_request::Input, inference_client::InferenceClient,
};
use lockstep_tests::{
    body::{COUNTED, counting},
    server::{Options, Server},
    tls::{Authority, connect, post},
    turns,
    wait::{LIMIT, until},
};
use serde_json::json;
use tempfile::TempDir;
use tonic::transport::Endpoint;

use crate::{grpc, options};

const PATH: &str = "/v1/chat/completions";

/// The certificate and key files of a server, and the authority that signs them.
struct Files {
    folder: TempDir,
    authority: Authority,
}

impl Files {
    fn new() -> Self {
        let files = Self {
            folder: tempfile::tempdir().expect("a folder"),
            authority: Authority::default(),
        };
        files.exchange();
        files
    }

    /// Writes a new certificate and its key.
    fn exchange(&self) {
        let at = |name| self.folder.path().join(name);
        self.authority
            .sign()
            .write(&at("server.pem"), &at("server.key"));
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    fn options(&self) -> Options {
        options()
            .set("--ssl-certfile", &self.path("server.pem"))
            .set("--ssl-keyfile", &self.path("server.key"))
    }
}

fn is_counted(answer: &str) -> bool {
    answer.starts_with("HTTP/1.1 200") && answer.contains(COUNTED)
}

async fn start(options: Options) -> Server {
    let server = Server::launch(options);
    server.says("Ready after").await;
    server
}

#[tokio::test]
async fn clients_ask_by_https_and_by_grpc_over_tls() {
    let _turn = turns::shared().await;
    let files = Files::new();
    let server = start(files.options()).await;
    assert!(
        server.log().contains("https://127.0.0.1"),
        "{}",
        server.log()
    );
    let body = counting(&json!({})).to_string();
    let client = files.authority.client(&["http/1.1"], None);
    let answer = post(&client, server.port, PATH, &body).await;
    let answer = answer.expect("answered");
    assert!(is_counted(&answer), "{answer}");
    let plain = server
        .client
        .get(format!("http://127.0.0.1:{}/health", server.port));
    let plain = plain.send().await.expect("an answer");
    assert_eq!(plain.status(), 400, "no plain HTTP");
    let stranger = Authority::default().client(&["http/1.1"], None);
    connect(&stranger, server.port)
        .await
        .expect_err("another authority");

    let client = files.authority.client(&["h2"], None);
    let port = server.grpc_port;
    let connector = tower::service_fn(move |_| {
        let client = client.clone();
        async move { connect(&client, port).await.map(TokioIo::new) }
    });
    // The connector speaks TLS. With an `https` address, tonic would add TLS itself.
    let channel = Endpoint::from_static("http://localhost")
        .connect_with_connector(connector)
        .await
        .expect("a channel");
    let message = ChatMessage {
        role: "user".to_owned(),
        content: "Count from 3 to 12.".to_owned(),
    };
    let input = Input::Chat(Chat {
        messages: vec![message],
    });
    let answer = InferenceClient::new(channel)
        .generate(grpc::greedy(input, 60))
        .await;
    let mut answer = answer.expect("accepted").into_inner();
    let mut text = String::new();
    while let Some(message) = answer.message().await.expect("a message") {
        text.push_str(&message.text);
    }
    assert_eq!(text, COUNTED);
}

/// No request fails while certificates are exchanged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_exchanged_under_load() {
    const CLIENTS: usize = 6;
    const EXCHANGES: usize = 3;
    let _turn = turns::shared().await;
    let files = Files::new();
    let server = Arc::new(start(files.options()).await);
    let (stop, answered) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let client = files.authority.client(&["http/1.1"], None);
    let ask = || {
        let (stop, answered, client) = (stop.clone(), answered.clone(), client.clone());
        let (server, body) = (server.clone(), counting(&json!({})).to_string());
        tokio::spawn(async move {
            while !stop.load(Relaxed) {
                let answer = post(&client, server.port, PATH, &body).await;
                let answer = answer.expect("answered");
                assert!(is_counted(&answer), "{answer}");
                answered.fetch_add(1, Relaxed);
            }
        })
    };
    let clients: Vec<_> = (0..CLIENTS).map(|_| ask()).collect();
    let shown = async || {
        let stream = connect(&client, server.port).await.expect("agreed");
        let (_, session) = stream.get_ref();
        session.peer_certificates().expect("shown")[0].to_vec()
    };
    for _ in 0..EXCHANGES {
        let (before, then) = (shown().await, answered.load(Relaxed));
        files.exchange();
        until("another certificate", LIMIT, async || {
            (shown().await != before).then_some(())
        })
        .await;
        until("more answers", LIMIT, async || {
            (answered.load(Relaxed) > then + CLIENTS).then_some(())
        })
        .await;
    }
    stop.store(true, Relaxed);
    for client in clients {
        client.await.expect("no request failed");
    }
}

#[tokio::test]
async fn clients_without_a_certificate_are_refused_where_roots_are_named() {
    let _turn = turns::shared().await;
    let (files, clients) = (Files::new(), Authority::default());
    std::fs::write(files.path("clients.pem"), clients.pem()).expect("written");
    let server = start(
        files
            .options()
            .set("--ssl-ca-certs", &files.path("clients.pem")),
    )
    .await;
    let body = counting(&json!({})).to_string();
    let (own, others) = (clients.sign(), files.authority.sign());
    for (shows, let_in) in [(Some(&own), true), (None, false), (Some(&others), false)] {
        let client = files.authority.client(&["http/1.1"], shows);
        let answer = post(&client, server.port, PATH, &body).await;
        assert_eq!(answer.is_ok_and(|answer| is_counted(&answer)), let_in);
    }
}

#[tokio::test]
async fn files_that_can_not_be_used_are_named_before_the_start() {
    let _turn = turns::shared().await;
    let files = Files::new();
    std::fs::write(files.path("empty.pem"), "").expect("written");
    for (option, value, says) in [
        (
            "--ssl-certfile",
            files.path("nowhere.pem"),
            "--ssl-certfile",
        ),
        ("--ssl-keyfile", files.path("empty.pem"), "--ssl-keyfile"),
        ("--ssl-ca-certs", files.path("empty.pem"), "--ssl-ca-certs"),
    ] {
        let server = Server::launch(files.options().set(option, &value));
        assert_eq!(server.exit(LIMIT).await, i32::from(exit::USAGE));
        let log = server.log();
        assert!(log.contains(says) && log.contains(&value), "{log}");
    }
    let alone = options().set("--ssl-certfile", &files.path("server.pem"));
    let server = Server::launch(alone);
    assert_eq!(server.exit(LIMIT).await, i32::from(exit::USAGE));
    assert!(server.log().contains("--ssl-keyfile"), "{}", server.log());
}

/// A server with an expired certificate still starts and serves. The log names the
/// problem.
#[tokio::test]
async fn an_expired_certificate_serves_and_is_told_of() {
    let _turn = turns::shared().await;
    let files = Files::new();
    let (certificate, key) = (
        files.folder.path().join("server.pem"),
        files.path("server.key"),
    );
    let expired = || {
        let pair = files.authority.sign_until(2001);
        pair.write(&certificate, key.as_ref());
    };
    expired();
    let said = format!("--ssl-certfile {}: it expired ", files.path("server.pem"));
    let server = start(files.options()).await;
    assert!(server.log().contains(&said), "{}", server.log());
    files.exchange();
    server.says("the certificate of now").await;
    expired();
    // This warning comes from the running server, after the name of its module.
    let again = format!("tls: {}: it expired ", files.path("server.pem"));
    server.says(&again).await;
    drop(server);
    let server = Server::launch(files.options().flag("--log-json"));
    server.says(&said).await;
}

#[tokio::test]
async fn nodes_that_would_refuse_each_other_are_not_started() {
    let _turn = turns::shared().await;
    let files = Files::new();
    std::fs::write(files.path("roots.pem"), files.authority.pem()).expect("written");
    let pair = files.authority.sign_until(2001);
    let at = |name| files.folder.path().join(name);
    pair.write(&at("server.pem"), &at("server.key"));
    let options = options()
        .set("--dist-ssl-certfile", &files.path("server.pem"))
        .set("--dist-ssl-keyfile", &files.path("server.key"))
        .set("--dist-ssl-ca-certs", &files.path("roots.pem"))
        .set("--nnodes", "2")
        .set("--tp-size", "2")
        .set("--dist-init-addr", "127.0.0.1:1")
        .set("--dist-secret", "0123456789abcdef0123456789abcdef");
    let server = Server::launch(options);
    assert_eq!(server.exit(LIMIT).await, i32::from(exit::USAGE));
    let said = format!(
        "--dist-ssl-certfile {}: it expired ",
        files.path("server.pem")
    );
    let log = server.log();
    assert!(
        log.contains(&said) && log.contains("put a new one"),
        "{log}"
    );
}
