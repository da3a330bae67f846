//! CORS for web pages and keys for operators, on a server of real processes.

use lockstep_proto::pb::{lockstep::AbortRequest, smg::grpc::common::FlushCacheRequest};
use lockstep_tests::{
    body::{COUNTED, counting},
    http::{Answer, answer},
    server::Server,
    turns,
    wait::{LIMIT, until},
};
use reqwest::Method;
use serde_json::json;
use tonic::{Code, Request};

use crate::{options, shared};

const PAGE: &str = "https://chat.example.com";
const KEY: &str = "sk-operators-0123456789";

async fn ask(server: &Server, method: Method, path: &str, headers: &[(&str, &str)]) -> Answer {
    let request = server.client.request(method, server.url(path));
    let request = headers.iter().fold(request, |request, (name, value)| {
        request.header(*name, *value)
    });
    answer(request.json(&counting(&json!({}))))
        .await
        .expect("answered")
}

#[tokio::test]
async fn other_pages_command_nothing_and_read_nothing() {
    let (_turn, server) = (turns::shared().await, shared().await);
    for page in [
        [("origin", "https://evil.example")],
        [("sec-fetch-site", "cross-site")],
        [("host", "evil.example")],
    ] {
        for path in [
            "/v1/chat/completions",
            "/flush_cache",
            "/abort_request",
            "/speculation",
        ] {
            let refused = ask(&server, Method::POST, path, &page).await;
            assert_eq!(refused.status, 403, "{path} {page:?}: {}", refused.text);
            refused.error();
        }
        assert_eq!(
            ask(&server, Method::GET, "/health", &page).await.status,
            200
        );
    }
    let image = [("user-agent", "Mozilla/5.0"), ("accept", "image/*")];
    let refused = ask(&server, Method::GET, "/flush_cache", &image).await;
    assert_eq!(refused.status, 405);
}

#[tokio::test]
async fn listed_pages_are_served_and_operators_have_a_key() {
    let _turn = turns::shared().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("key");
    std::fs::write(&file, KEY).expect("written");
    let options = options()
        .set("--admin-api-key-file", file.to_str().expect("UTF-8"))
        .set("--cors-allowed-origins", PAGE);
    let server = Server::start(options).await;

    let page = [("origin", PAGE), ("sec-fetch-site", "cross-site")];
    let asks = [page[0], ("access-control-request-method", "POST")];
    for (method, headers) in [(Method::OPTIONS, asks), (Method::POST, page)] {
        let told = ask(&server, method.clone(), "/v1/chat/completions", &headers).await;
        assert_eq!(told.status, 200, "{}", told.text);
        assert_eq!(told.headers["access-control-allow-origin"], PAGE);
        assert!(
            method == Method::OPTIONS || told.text.contains(COUNTED),
            "{}",
            told.text
        );
    }

    let bearer = format!("Bearer {KEY}");
    for (shown, status) in [(None, 401), (Some("Bearer x"), 401), (Some(&*bearer), 200)] {
        let headers: Vec<_> = shown
            .map(|key| ("authorization", key))
            .into_iter()
            .collect();
        // The answer may come while the last step of the request is still in flight.
        let flushed = until("an idle server", LIMIT, async || {
            let flushed = ask(&server, Method::POST, "/flush_cache", &headers).await;
            (flushed.status != 400).then_some(flushed)
        })
        .await;
        assert_eq!(flushed.status, status, "{}", flushed.text);
    }
    let with_key = |right: bool| {
        let mut request = Request::new(());
        if right {
            let key = bearer.parse().expect("ascii");
            request.metadata_mut().insert("authorization", key);
        }
        request
    };
    for (right, code) in [(false, Code::Unauthenticated), (true, Code::Ok)] {
        let flush = with_key(right).map(|()| FlushCacheRequest::default());
        let flushed = server.sglang().await.flush_cache(flush).await;
        assert_eq!(flushed.err().map_or(Code::Ok, |status| status.code()), code);
        let abort = with_key(right).map(|()| AbortRequest {
            request_id: "nobody".to_owned(),
        });
        let aborted = server.inference().await.abort(abort).await;
        assert_eq!(aborted.err().map_or(Code::Ok, |status| status.code()), code);
    }
    assert!(!server.log().contains(KEY), "written to the log");
}
