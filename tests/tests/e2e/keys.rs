//! Tests of a server with an API key.

use lockstep_proto::pb::{
    lockstep::{GetModelInfoRequest, TokenizeRequest},
    sglang::grpc::scheduler::HealthCheckRequest,
};
use lockstep_tests::{
    body::{COUNTED, counting},
    http::answer,
    server::Server,
    turns,
};
use serde_json::json;
use tonic::{Code, Request};

use crate::options;

const KEY: &str = "sk-0123456789abcdef";

fn with_key<T>(message: T, header: Option<&str>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(header) = header {
        let value = header.parse().expect("ascii");
        request.metadata_mut().insert("authorization", value);
    }
    request
}

#[tokio::test]
async fn only_the_right_key_opens_and_health_needs_none() {
    let _turn = turns::shared().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("key");
    std::fs::write(&file, format!("{KEY}\n")).expect("written");
    let file = file.to_str().expect("UTF-8");
    let server = Server::start(options().set("--api-key-file", file)).await;

    let right = format!("Bearer {KEY}");
    let wrong = [
        None,
        Some("Bearer wrong"),
        Some("Bearer "),
        Some("Bearer"),
        Some(KEY),
        Some("Basic c2s6MDE="),
        Some(&right[..right.len() - 1]),
    ];
    let paths = [
        "/v1/models",
        "/metrics",
        "/server_info",
        "/model_info",
        "/flush_cache",
        "/",
        "/no/such",
        "/health_generate",
    ];
    for header in wrong {
        let mut asked: Vec<_> = paths.map(|path| server.client.get(server.url(path))).into();
        asked.push(
            server
                .client
                .post(server.url("/v1/chat/completions"))
                .json(&counting(&json!({}))),
        );
        asked.push(server.client.post(server.url("/health")));
        for mut request in asked {
            if let Some(header) = header {
                request = request.header("authorization", header);
            }
            let refused = answer(request).await.expect("answered");
            assert_eq!(refused.status, 401, "{header:?}: {}", refused.text);
            let error = refused.error();
            assert_eq!(error["code"], "invalid_api_key");
            assert_eq!(error["type"], "invalid_request_error");
        }
        let info = with_key(GetModelInfoRequest {}, header);
        let refused = server.inference().await.get_model_info(info).await;
        assert_eq!(refused.expect_err("refused").code(), Code::Unauthenticated);
        let check = with_key(HealthCheckRequest {}, header);
        let refused = server.sglang().await.health_check(check).await;
        assert_eq!(refused.expect_err("refused").code(), Code::Unauthenticated);
    }
    assert_eq!(server.get("/health").await.status, 200);

    let request = server.client.post(server.url("/v1/chat/completions"));
    let request = request.bearer_auth(KEY).json(&counting(&json!({})));
    let told = answer(request).await.expect("answered").ok();
    assert_eq!(told["choices"][0]["message"]["content"], COUNTED);
    let tokenize = TokenizeRequest {
        text: "a".to_owned(),
        add_special_tokens: None,
    };
    let tokens = with_key(tokenize, Some(&right));
    server
        .inference()
        .await
        .tokenize(tokens)
        .await
        .expect("let in");
    let check = with_key(HealthCheckRequest {}, Some(&right));
    server
        .sglang()
        .await
        .health_check(check)
        .await
        .expect("let in");

    let info = server
        .client
        .get(server.url("/server_info"))
        .bearer_auth(KEY);
    let info = answer(info).await.expect("answered");
    assert!(!info.text.contains(KEY), "shown to clients");
    assert!(!server.log().contains(KEY), "written to the log");
}
