//! The console: its files, their headers and their access; and the list of requests.

use std::collections::BTreeSet;

use lockstep_proto::pb::lockstep::{ListRequestsResponse, LiveRequest};
use reqwest::{Method, Response, header};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::harness::{Front, start, start_with};

async fn get(front: &Front, path: &str, headers: &[(&str, &str)]) -> Response {
    let request = front.client.get(format!("{}{path}", front.url));
    let add = |request: reqwest::RequestBuilder, (name, value): &(&str, &str)| {
        request.header(*name, *value)
    };
    let request = headers.iter().fold(request, add);
    request.send().await.expect("answered")
}

/// Returns the texts between quotes for which `known` is true.
fn quoted(text: &str, known: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let parts = text.split('"').filter(|part| known(part));
    parts.map(str::to_owned).collect()
}

/// Returns the paths of the page's files: those that the page names, and those that its
/// main script imports.
async fn files(front: &Front) -> BTreeSet<String> {
    let page = get(front, "/console", &[])
        .await
        .text()
        .await
        .expect("text");
    let named = quoted(&page, |part| part.starts_with("console/"));
    let mut all: BTreeSet<_> = named.iter().map(|file| format!("/{file}")).collect();
    let main = get(front, "/console/main.js", &[]).await;
    let main = main.text().await.expect("text");
    let imported = quoted(&main, |part| part.starts_with("./"));
    all.extend(
        imported
            .iter()
            .map(|file| file.replacen('.', "/console", 1)),
    );
    all.insert("/console".to_owned());
    all
}

#[tokio::test]
async fn every_file_of_the_page_is_there_and_closed_to_others() {
    let front = start().await;
    let files = files(&front).await;
    assert!(files.len() > 8, "{files:?}");
    for path in &files {
        let response = get(&front, path, &[]).await;
        assert_eq!(response.status(), 200, "{path}");
        let headers = response.headers().clone();
        let kind = match path.rsplit_once('.').map(|(_, end)| end) {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "text/html; charset=utf-8",
        };
        assert_eq!(headers[header::CONTENT_TYPE], kind, "{path}");
        let policy = headers[header::CONTENT_SECURITY_POLICY].to_str();
        let policy = policy.expect("text");
        assert!(policy.starts_with("default-src 'none';"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert!(!policy.contains("http"), "{policy}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            ("cache-control", "no-cache"),
        ] {
            assert_eq!(headers[name], value, "{path}");
        }
        let text = response.text().await.expect("text");
        // Nothing comes from other servers; the name of SVG's elements looks like a
        // URL.
        let plain = text.replace("http://www.w3.org/2000/svg", "");
        assert!(!plain.contains("://"), "{path} names another server");
        for inline in ["<style", " style=", " onclick=", "innerHTML", "eval("] {
            assert!(!text.contains(inline), "{path}: {inline}");
        }
    }
}

#[tokio::test]
async fn a_file_is_kept_until_it_changes() {
    let front = start().await;
    let mut tags = BTreeSet::new();
    let files = files(&front).await;
    for path in &files {
        let response = get(&front, path, &[]).await;
        let tag = response.headers()[header::ETAG].clone();
        let tag = tag.to_str().expect("text");
        assert!(tags.insert(tag.to_owned()), "{path} has another's tag");
        for known in [tag.to_owned(), format!("\"a\", W/{tag}")] {
            let again = get(&front, path, &[("if-none-match", &known)]).await;
            assert_eq!(again.status(), 304, "{path} {known}");
            assert_eq!(again.headers()[header::ETAG], tag);
            assert_eq!(again.headers()[header::CACHE_CONTROL], "no-cache");
            assert!(again.text().await.expect("text").is_empty());
        }
        let other = get(&front, path, &[("if-none-match", "\"a\"")]).await;
        assert_eq!(other.status(), 200);
    }
}

#[tokio::test]
async fn it_is_off_where_it_is_not_wanted() {
    let on = start().await;
    let files = files(&on).await;
    assert!(on.get("/").await.1.contains("/console"));
    let off = start_with(|engine, _| engine.server.web.console = false).await;
    for path in files.iter().map(String::as_str).chain(["/console/"]) {
        let (status, text) = off.get(path).await;
        assert_eq!(status, 404, "{path}");
        assert!(text.contains("Invalid URL"), "{text}");
    }
    assert!(!off.get("/").await.1.contains("/console"));
}

#[tokio::test]
async fn its_files_need_no_key_and_all_that_it_shows_does() {
    let front = start_with(|engine, node| {
        engine.server.api_key_required = true;
        node.api_key = Some("client".to_owned());
        node.admin_api_key = Some("operator".to_owned());
    })
    .await;
    for path in files(&front).await {
        assert_eq!(get(&front, &path, &[]).await.status(), 200, "{path}");
    }
    // A path without a file does not bypass the key.
    for path in ["/console/x", "/consoles", "/console/main.js/"] {
        assert_eq!(get(&front, path, &[]).await.status(), 401, "{path}");
    }
    for (path, client) in [
        ("/metrics", 200),
        ("/speculation", 200),
        ("/server_info", 200),
        ("/requests", 401),
    ] {
        for (key, expected) in [("", 401), ("client", client), ("operator", 200)] {
            let bearer = format!("Bearer {key}");
            let response = get(&front, path, &[("authorization", &bearer)]).await;
            assert_eq!(response.status(), expected, "{path} {key}");
        }
    }
}

#[tokio::test]
async fn pages_of_others_get_nothing_of_it() {
    let front = start().await;
    for headers in [
        &[("origin", "https://evil.example")][..],
        &[("host", "evil.example")],
        &[
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-dest", "script"),
        ],
        &[
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "iframe"),
        ],
    ] {
        for path in ["/console", "/console/main.js", "/requests"] {
            let response = get(&front, path, headers).await;
            assert_eq!(response.status(), 403, "{path} {headers:?}");
        }
    }
    let link = [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-dest", "document"),
    ];
    assert_eq!(get(&front, "/console", &link).await.status(), 200);
}

/// Returns the status for a request target that no HTTP client would send.
async fn status_of(front: &Front, target: &str) -> u16 {
    let mut stream = TcpStream::connect(front.address).await.expect("connected");
    let head = format!("GET {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answered");
    let status = answer.split(' ').nth(1).and_then(|word| word.parse().ok());
    status.unwrap_or_else(|| panic!("{answer}"))
}

#[tokio::test]
async fn no_other_path_leads_to_a_file() {
    let front = start().await;
    assert_eq!(status_of(&front, "/console/main.js").await, 200);
    assert_eq!(status_of(&front, "/console").await, 200);
    for target in [
        "/console/index.html",
        "/console/../Cargo.toml",
        "/console/../console/main.js",
        "/console/%2e%2e/main.js",
        "/console/..%2f..%2fetc/passwd",
        "/console//main.js",
        "/console//etc/passwd",
        "/console/./main.js",
        "/console/main.js%00.css",
        "/console/MAIN.JS",
        "/console\\main.js",
        "/main.js",
    ] {
        let status = status_of(&front, target).await;
        assert!(matches!(status, 400 | 404), "{target}: {status}");
    }
}

#[tokio::test]
async fn it_is_only_read() {
    let front = start().await;
    for method in [Method::POST, Method::PUT, Method::DELETE] {
        let url = format!("{}/console", front.url);
        let request = front.client.request(method, url).json(&json!({}));
        let response = request.send().await.expect("answered");
        assert_eq!(response.status(), 405);
        let text = response.text().await.expect("text");
        assert!(text.contains("method_not_supported"), "{text}");
    }
    let once = reqwest::Client::builder().no_proxy();
    let once = once.redirect(reqwest::redirect::Policy::none()).build();
    let slash = format!("{}/console/", front.url);
    let moved = once.expect("client").get(slash).send().await;
    let moved = moved.expect("answered");
    assert_eq!(moved.status(), 308);
    assert_eq!(moved.headers()[header::LOCATION], "../console");
    assert_eq!(get(&front, "/console/", &[]).await.status(), 200);
    let metrics = front.get("/metrics").await.1;
    assert!(
        metrics.contains("route=\"/console\",status=\"200\""),
        "{metrics}"
    );
    assert!(!metrics.contains("route=\"/console/\""), "{metrics}");
}

#[tokio::test]
async fn requests_are_listed_without_their_texts() {
    let front = start().await;
    let (status, text) = front.get("/requests").await;
    assert_eq!(
        (status, text.as_str()),
        (200, r#"{"total":0,"requests":[]}"#)
    );
    *front.mock.live.lock().expect("no panic") = ListRequestsResponse {
        requests: vec![
            LiveRequest {
                trace_id: "chatcmpl-a".to_owned(),
                running: true,
                retracted: false,
                age_ms: 1500,
                prompt_tokens: 20,
                output_tokens: 7,
                max_new_tokens: 64,
                cached_tokens: Some(16),
                dp_rank: Some(1),
            },
            LiveRequest {
                trace_id: "b".to_owned(),
                retracted: true,
                ..LiveRequest::default()
            },
            LiveRequest::default(),
        ],
        total: 9,
    };
    let answer: Value = serde_json::from_str(&front.get("/requests").await.1).expect("json");
    assert_eq!(answer["total"], 9);
    let listed = answer["requests"].as_array().expect("a list");
    assert_eq!(
        listed[0],
        json!({
            "rid": "chatcmpl-a",
            "state": "running",
            "age_seconds": 1.5,
            "prompt_tokens": 20,
            "cached_tokens": 16,
            "completion_tokens": 7,
            "max_tokens": 64,
            "dp_rank": 1,
        })
    );
    let states: Vec<_> = listed.iter().map(|one| &one["state"]).collect();
    assert_eq!(states, ["running", "retracted", "waiting"]);
    assert_eq!(listed[1]["dp_rank"], Value::Null);
}
