//! Requests that a web page can make a browser send.

use lockstep_types::EngineConfig;
use reqwest::{Method, RequestBuilder, Response, header};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{
    client::chat,
    harness::{Front, start, start_with},
};

/// Origin of a stranger's page.
const FOREIGN: &str = "https://evil.example";
/// Origin that the server is configured to accept.
const LISTED: &str = "https://chat.example";
const FIREFOX: &str = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0";

fn request(front: &Front, method: Method, path: &str, headers: &[(&str, &str)]) -> RequestBuilder {
    let request = front
        .client
        .request(method, format!("{}{path}", front.url))
        .header("connection", "close");
    let add = |request: RequestBuilder, (name, value): &(&str, &str)| request.header(*name, *value);
    headers.iter().fold(request, add)
}

async fn send(request: RequestBuilder) -> (u16, String) {
    let response: Response = request.send().await.expect("answered");
    (
        response.status().as_u16(),
        response.text().await.expect("body"),
    )
}

fn code(text: &str) -> Value {
    serde_json::from_str::<Value>(text).expect("json")["error"]["code"].clone()
}

#[tokio::test]
async fn pages_of_others_command_nothing() {
    let front = start().await;
    let own = front.url.clone();
    // Another server of the same host.
    let beside = format!("{own}0");
    let table: &[(&[(&str, &str)], bool)] = &[
        (&[], true),
        (&[("origin", &beside)], false),
        (&[("origin", FOREIGN)], false),
        (&[("origin", "null")], false),
        (&[("origin", "http://localhost:3000")], false),
        (&[("origin", &own)], true),
        (&[("origin", &own), ("sec-fetch-site", "same-origin")], true),
        (&[("sec-fetch-site", "none")], true),
        (&[("sec-fetch-site", "cross-site")], false),
        (&[("sec-fetch-site", "same-site")], false),
        (
            &[("origin", FOREIGN), ("sec-fetch-site", "same-origin")],
            false,
        ),
    ];
    for (headers, served) in table {
        for path in ["/flush_cache", "/tokenize", "/update_weights_from_disk"] {
            let post = request(&front, Method::POST, path, headers).json(&json!({"prompt": "a"}));
            let (status, text) = send(post).await;
            let refused = (status, code(&text)) == (403, json!("origin_not_allowed"));
            assert_eq!(refused, !served, "{path} {headers:?}: {text}");
            assert!(*served || text.contains("--cors-allowed-origins"), "{text}");
        }
        let (status, text) = send(request(&front, Method::GET, "/v1/models", headers)).await;
        assert_eq!(status == 200, *served, "{headers:?}: {text}");
        // Load balancers may use any headers.
        let (status, _) = send(request(&front, Method::GET, "/health", headers)).await;
        assert_eq!(status, 200);
    }
}

#[tokio::test]
async fn a_link_may_lead_here() {
    let front = start().await;
    let link = [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-dest", "document"),
    ];
    assert_eq!(send(request(&front, Method::GET, "/", &link)).await.0, 200);
    let framed = [link[0], link[1], ("sec-fetch-dest", "iframe")];
    assert_eq!(
        send(request(&front, Method::GET, "/", &framed)).await.0,
        403
    );
    assert_eq!(
        send(request(&front, Method::POST, "/flush_cache", &link))
            .await
            .0,
        403
    );
}

#[tokio::test]
async fn a_name_that_somebody_can_register_does_not_lead_here() {
    let hosts = |engine: &mut EngineConfig| {
        engine.server.host = "bound.example".to_owned();
        engine.server.web.allowed_hosts = vec!["listed.example".into(), ".below.example".into()];
    };
    let front = start_with(|engine, _| hosts(engine)).await;
    for (host, served) in [
        ("localhost:8000", true),
        ("LOCALHOST", true),
        ("a.localhost", true),
        ("127.0.0.1", true),
        ("10.1.2.3:80", true),
        ("[::1]:8000", true),
        ("lockstep", true),
        ("lockstep.default.svc.cluster.local", true),
        ("lockstep.default.svc", true),
        ("box.internal", true),
        ("bound.example:1", true),
        ("Listed.example.:1", true),
        ("a.b.below.example", true),
        ("below.example", false),
        ("evil.example", false),
        ("evil.example:8000", false),
        ("localhost.evil.example", false),
        ("127.0.0.1.evil.example", false),
        ("notlisted.example", false),
    ] {
        let headers = [("host", host)];
        let (status, text) = send(request(&front, Method::GET, "/v1/models", &headers)).await;
        assert_eq!(status == 200, served, "{host}: {text}");
        if !served {
            assert_eq!((status, code(&text)), (403, json!("host_not_allowed")));
            assert!(text.contains("--allowed-hosts"), "{text}");
        }
        let (status, _) = send(request(&front, Method::GET, "/health", &headers)).await;
        assert_eq!(status, 200, "{host}");
    }
}

#[tokio::test]
async fn the_name_may_also_stand_in_the_target() {
    let front = start().await;
    for (target, status) in [
        ("http://localhost", " 200 "),
        ("http://evil.example", " 403 "),
    ] {
        let mut stream = TcpStream::connect(front.address).await.expect("connected");
        let ask = format!(
            "GET {target}/v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(ask.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answered");
        assert!(answer.starts_with(&format!("HTTP/1.1{status}")), "{answer}");
    }
}

#[tokio::test]
async fn a_browser_says_that_it_sends_json() {
    let front = start().await;
    let body = json!({"prompt": "a"}).to_string();
    let own = front.url.clone();
    for browser in [
        ("user-agent", FIREFOX),
        ("origin", &*own),
        ("sec-fetch-site", "same-origin"),
    ] {
        let bare = request(&front, Method::POST, "/tokenize", &[browser]).body(body.clone());
        assert_eq!(send(bare).await.0, 415, "{browser:?}");
        let json = [browser, ("content-type", "application/json")];
        let typed = request(&front, Method::POST, "/tokenize", &json).body(body.clone());
        assert_eq!(send(typed).await.0, 200, "{browser:?}");
    }
    // Tools often leave out the content type.
    let bare = request(&front, Method::POST, "/tokenize", &[]).body(body);
    assert_eq!(send(bare).await.0, 200);
}

#[tokio::test]
async fn a_get_changes_nothing_for_a_page() {
    let front = start().await;
    let own = front.url.clone();
    for page in [
        ("user-agent", FIREFOX),
        ("sec-fetch-site", "none"),
        ("referer", &*own),
    ] {
        let (status, text) = send(request(&front, Method::GET, "/flush_cache", &[page])).await;
        assert_eq!(status, 405, "{page:?}: {text}");
        let post = request(&front, Method::POST, "/flush_cache", &[page]);
        assert_eq!(send(post).await.0, 200, "{page:?}");
    }
    assert_eq!(front.get("/flush_cache").await.0, 200, "as SGLang has it");
}

fn headers_of(response: &Response, name: &str) -> String {
    let values = response.headers().get_all(name).iter();
    let values: Vec<_> = values.filter_map(|value| value.to_str().ok()).collect();
    values.join(",").to_ascii_lowercase()
}

#[tokio::test]
async fn a_listed_page_asks_before_and_needs_no_key_for_that() {
    let front = start_with(|engine, node| {
        engine.server.api_key_required = true;
        node.api_key = Some("secret".to_owned());
        engine.server.web.cors_allowed_origins = vec![LISTED.to_owned()];
    })
    .await;
    let preflight = |origin| {
        let asks = [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            (
                "access-control-request-headers",
                "authorization,content-type",
            ),
        ];
        request(&front, Method::OPTIONS, "/v1/chat/completions", &asks).send()
    };
    let allowed = preflight(LISTED).await.expect("answered");
    assert!(allowed.status().is_success());
    assert_eq!(headers_of(&allowed, "access-control-allow-origin"), LISTED);
    assert!(headers_of(&allowed, "access-control-allow-methods").contains("post"));
    let names = headers_of(&allowed, "access-control-allow-headers");
    assert!(
        names.contains("authorization") && names.contains("content-type"),
        "{names}"
    );
    assert!(headers_of(&allowed, "vary").contains("origin"));
    let refused = preflight(FOREIGN).await.expect("answered");
    assert_eq!(headers_of(&refused, "access-control-allow-origin"), "");

    // The page may read every answer, errors too.
    let models = |key: &'static str| {
        request(&front, Method::GET, "/v1/models", &[("origin", LISTED)])
            .bearer_auth(key)
            .send()
    };
    for (key, status) in [("secret", 200), ("wrong", 401)] {
        let answer = models(key).await.expect("answered");
        assert_eq!(answer.status(), status);
        assert_eq!(headers_of(&answer, "access-control-allow-origin"), LISTED);
        let exposed = headers_of(&answer, "access-control-expose-headers");
        for name in ["x-request-id", "retry-after"] {
            assert!(exposed.contains(name), "{exposed}");
        }
    }
}

#[tokio::test]
async fn a_listed_page_is_served_without_a_key() {
    for (listed, origin, served) in [
        (LISTED, LISTED, true),
        (LISTED, FOREIGN, false),
        ("*", FOREIGN, true),
        ("*", "null", true),
    ] {
        let front = start_with(|engine, _| {
            engine.server.web.cors_allowed_origins = vec![listed.to_owned()];
        })
        .await;
        let page = [("origin", origin), ("sec-fetch-site", "cross-site")];
        let post = request(&front, Method::POST, "/tokenize", &page).json(&json!({"prompt": "a"}));
        let answer = post.send().await.expect("answered");
        assert_eq!(answer.status() == 200, served, "{listed} {origin}");
        let allowed = headers_of(&answer, "access-control-allow-origin");
        assert_eq!(!allowed.is_empty(), served, "{listed} {origin}: {allowed}");
    }
    // If no origin is listed, answers have no CORS headers.
    let front = start().await;
    let answer = request(&front, Method::GET, "/health", &[("origin", FOREIGN)]);
    let answer = answer.send().await.expect("answered");
    assert!(
        !answer
            .headers()
            .contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN)
    );
}

/// Routes of operators alone, and routes of every client.
const COMMANDS: &[(Method, &str)] = &[
    (Method::POST, "/flush_cache"),
    (Method::GET, "/flush_cache"),
    (Method::POST, "/abort_request"),
    (Method::POST, "/speculation"),
    (Method::POST, "/ngram/corpus"),
    (Method::DELETE, "/ngram/corpus/a"),
    (Method::POST, "/add_external_corpus"),
    (Method::POST, "/remove_external_corpus"),
    (Method::POST, "/update_weights_from_disk"),
];
const QUESTIONS: &[(Method, &str)] = &[
    (Method::GET, "/v1/models"),
    (Method::GET, "/speculation"),
    (Method::GET, "/ngram/corpus"),
    (Method::GET, "/list_external_corpora"),
    (Method::POST, "/tokenize"),
    (Method::GET, "/metrics"),
];

#[tokio::test]
async fn operators_have_a_key_of_their_own() {
    for client_key in [None, Some("client")] {
        let front = start_with(|engine, node| {
            engine.server.api_key_required = client_key.is_some();
            node.api_key = client_key.map(str::to_owned);
            node.admin_api_key = Some("operator".to_owned());
        })
        .await;
        for (commands, routes) in [(true, COMMANDS), (false, QUESTIONS)] {
            for (method, path) in routes {
                for key in [None, Some("wrong"), Some("client"), Some("operator")] {
                    let ask = request(&front, method.clone(), path, &[]);
                    let ask = key.into_iter().fold(ask, RequestBuilder::bearer_auth);
                    let (status, text) = send(ask.json(&json!({"prompt": "a"}))).await;
                    let right = key == Some("operator")
                        || !commands && (client_key.is_none() || key == client_key);
                    assert_eq!(status != 401, right, "{method} {path} {key:?}: {text}");
                }
            }
        }
        let (status, text) = front.post("/flush_cache", &chat(&json!({}))).await;
        assert_eq!(status, 401);
        assert!(
            client_key.is_some() || text.contains("--admin-api-key-file"),
            "{text}"
        );
    }
}
