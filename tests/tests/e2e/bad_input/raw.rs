//! Raw bytes that are no valid HTTP request, or carry no valid body.

use std::time::Duration;

use lockstep_tests::{MODEL, raw};
use serde_json::json;

use super::{Expected, beside_good_requests, check, invalid, status};

/// Time in which a second answer would arrive, if the server sent one.
const QUIET: Duration = Duration::from_millis(100);

const JSON: &str = "content-type: application/json\r\n";
const LINE: &str = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";

fn good() -> String {
    json!({"model": MODEL, "prompt": "a", "max_tokens": 1}).to_string()
}

fn post(headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("{LINE}{headers}content-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn chunked(body: &str) -> Vec<u8> {
    format!("{LINE}transfer-encoding: chunked\r\n\r\n{body}").into_bytes()
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").into_bytes()
}

/// Bodies that are no JSON, or JSON that a server must refuse.
fn unreadable() -> Vec<(&'static str, Vec<u8>)> {
    let nested = format!("{{\"prompt\": {}1{}}}", "[".repeat(100), "]".repeat(100));
    let two = format!("{}{}", good(), good());
    let crowd = format!(
        "{{\"chat_template_kwargs\": {{\"a\": [{}[]]}}}}",
        "[],".repeat(70_000)
    );
    let rows: [(&str, &[u8]); 16] = [
        ("no body", b""),
        ("no JSON", b"{nope}"),
        ("half a JSON", br#"{"model": "x", "prompt": "#),
        ("two JSONs", two.as_bytes()),
        ("a trailing comma", br#"{"prompt": "a",}"#),
        ("a doubled key", br#"{"prompt": "a", "prompt": "b"}"#),
        ("NaN", br#"{"temperature": NaN}"#),
        ("infinity", br#"{"temperature": 1e999}"#),
        ("no UTF-8", b"{\"prompt\": \"\xff\xfe\"}"),
        ("half a surrogate pair", br#"{"prompt": "\ud800"}"#),
        ("a control character", b"{\"prompt\": \"a\x00b\"}"),
        ("a byte order mark", b"\xef\xbb\xbf{}"),
        ("deep", nested.as_bytes()),
        ("abysmal", &[b'['; 900_000]),
        ("a crowd of lists", crowd.as_bytes()),
        ("compressed", b"\x1f\x8b\x08\x00"),
    ];
    rows.map(|(row, body)| (row, post(JSON, body))).into()
}

/// Bodies with broken chunk sizes.
fn miscut() -> Vec<(&'static str, Vec<u8>)> {
    [
        (
            "a chunk size beyond all numbers",
            "FFFFFFFFFFFFFFFFF\r\nabc",
        ),
        ("a negative chunk size", "-1\r\nabc\r\n0\r\n\r\n"),
        ("a chunk longer than it says", "3\r\nabcXX0\r\n\r\n"),
    ]
    .map(|(row, body)| (row, chunked(body)))
    .into()
}

/// Well-formed requests that the server refuses: too large, of another content type, or
/// with a wrong path or method.
fn unwelcome() -> Vec<(&'static str, Vec<u8>, Expected)> {
    let large = "x".repeat(1_000_001);
    let chunk = format!("{:x}\r\n{large}\r\n0\r\n\r\n", large.len());
    let announced = format!("{LINE}{JSON}content-length: 99999999999\r\n\r\n");
    let typed = |name: &str| post(&format!("content-type: {name}\r\n"), good().as_bytes());
    let brew = b"BREW /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let with_header = post(&format!("x-a: {}\r\n", "y".repeat(40_000)), b"{}");
    let coded = |status, param, code| Expected {
        status,
        param,
        code,
    };
    let too_large = coded(413, "", "request_too_large");
    let wrong_method = coded(405, "", "method_not_supported");
    let not_found = coded(404, "model", "model_not_found");
    vec![
        (
            "a form",
            typed("application/x-www-form-urlencoded"),
            status(415),
        ),
        ("plain text", typed("text/plain"), status(415)),
        (
            "multipart",
            typed("multipart/form-data; boundary=x"),
            status(415),
        ),
        ("a large body", post(JSON, large.as_bytes()), too_large),
        ("a large body in chunks", chunked(&chunk), too_large),
        ("an announced large body", announced.into_bytes(), too_large),
        ("many bytes of headers", with_header, status(431)),
        (
            "a long path",
            get(&format!("/{}", "a".repeat(40_000))),
            status(431),
        ),
        (
            "a long method",
            format!(
                "{} / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
                "A".repeat(40_000)
            )
            .into_bytes(),
            status(431),
        ),
        ("an unknown path", get("/v2/chat"), status(404)),
        ("below a known path", get("/v1/completions/x"), status(404)),
        (
            "embeddings",
            get("/v1/embeddings"),
            coded(404, "", "endpoint_not_served"),
        ),
        ("a wrong method", get("/v1/completions"), wrong_method),
        ("an unknown method", brew.to_vec(), wrong_method),
        (
            "a path that climbs",
            get("/v1/models/../../etc/passwd"),
            not_found,
        ),
        ("a bad escape", get("/v1/models/%ff"), invalid("model")),
    ]
}

/// Requests that HTTP itself forbids. The server answers with a status such as 400 and
/// no body, and closes the connection.
fn forbidden() -> Vec<(&'static str, Vec<u8>, u16)> {
    let head = |headers: &str, body: &str| format!("{LINE}{headers}\r\n{body}").into_bytes();
    vec![
        (
            "two lengths",
            head("content-length: 5\r\ncontent-length: 6\r\n", "abcdef"),
            400,
        ),
        (
            "a list of lengths",
            head("content-length: 5, 5\r\n", "abcde"),
            400,
        ),
        (
            "a signed length",
            head("content-length: +5\r\n", "abcde"),
            400,
        ),
        (
            "a negative length",
            head("content-length: -5\r\n", "abcde"),
            400,
        ),
        (
            "a hexadecimal length",
            head("content-length: 0x5\r\n", "abcde"),
            400,
        ),
        (
            "a length beyond all numbers",
            head("content-length: 99999999999999999999\r\n", ""),
            400,
        ),
        (
            "an unknown coding",
            head("transfer-encoding: identity\r\n", "abcde"),
            400,
        ),
        (
            "a coding with a similar name",
            head("transfer-encoding: xchunked\r\n", "0\r\n\r\n"),
            400,
        ),
        (
            "chunked, but not last",
            head("transfer-encoding: chunked, identity\r\n", "0\r\n\r\n"),
            400,
        ),
        (
            "a second coding",
            head(
                "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
                "0\r\n\r\n",
            ),
            400,
        ),
        ("a folded header", head("x-a: 1\r\n 2\r\n", ""), 400),
        ("a space before the colon", head("x-a : 1\r\n", ""), 400),
        ("a zero in a header", head("x-a: a\0b\r\n", ""), 400),
        ("a lone carriage return", head("x-a: a\rb\r\n", ""), 400),
        (
            "another version",
            b"GET / HTTP/3.0\r\nhost: x\r\n\r\n".to_vec(),
            400,
        ),
        ("no version", b"GET /\r\n\r\n".to_vec(), 400),
        ("no HTTP", b"\x00\xff\xfe\x01 garbage\r\n\r\n".to_vec(), 400),
        (
            "TLS",
            [
                &b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03"[..],
                &[0; 200],
            ]
            .concat(),
            400,
        ),
        (
            "too many headers",
            head(
                &(0..200)
                    .map(|at| format!("x-{at}: y\r\n"))
                    .collect::<String>(),
                "",
            ),
            431,
        ),
        (
            "an endless header",
            head(&format!("x-a: {}\r\n", "y".repeat(200_000)), ""),
            431,
        ),
        (
            "an endless path",
            get(&format!("/{}", "a".repeat(70_000))),
            414,
        ),
    ]
}

#[tokio::test]
async fn bytes_that_are_no_request_are_refused() {
    beside_good_requests(async |server| {
        let mut wrong = Vec::new();
        let unreadable = unreadable().into_iter().chain(miscut());
        let unreadable = unreadable.map(|(row, request)| (row, request, invalid("")));
        for (row, request, expected) in unreadable.chain(unwelcome()) {
            match raw::http(server.port, &request).await {
                Some(answer) => check(row, &answer, expected, &mut wrong),
                None => wrong.push(format!("{row}: closed without an answer")),
            }
        }
        for (row, request, status) in forbidden() {
            match raw::http(server.port, &request).await {
                Some(answer) if answer.status == status && answer.text.is_empty() => {}
                other => wrong.push(format!("{row}: {other:?}")),
            }
        }
        wrong
    })
    .await;
}

/// Sends a request inside the body of another request. A proxy and a server may
/// disagree about the end of the outer body. The server may answer one of the two
/// requests at most.
#[tokio::test]
async fn no_request_is_smuggled_inside_another() {
    let open = LINE.replace("connection: close\r\n", "");
    let inner = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n";
    let rows = [
        // The chunks end at once. A reader that goes by the length takes the rest for
        // the body.
        format!(
            "{open}content-length: {}\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{inner}",
            inner.len() + 5
        ),
        // The length ends early. A reader that goes by the chunks goes on.
        format!(
            "{open}transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n{:x}\r\n{inner}\r\n0\r\n\r\n{inner}",
            inner.len()
        ),
        format!(
            "{open}content-length: 0\r\ncontent-length: {}\r\n\r\n{inner}",
            inner.len()
        ),
        format!("{open}transfer-encoding:\x0bchunked\r\ncontent-length: 0\r\n\r\n{inner}"),
        format!(
            "GET / HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n{inner}"
        ),
        // A request without a length has no body. The bytes that follow are the next
        // request only if the first request announced no body.
        format!("{open}transfer-encoding: chunked\r\n\r\n0\nX: y\r\n\r\n{inner}"),
    ];
    beside_good_requests(async |server| {
        let mut wrong = Vec::new();
        for row in rows {
            let answers = raw::exchange(server.port, row.as_bytes(), QUIET).await;
            let answers = String::from_utf8_lossy(&answers);
            if answers.contains("lockstep_") || answers.matches("HTTP/1.1 ").count() > 1 {
                wrong.push(format!("{row:?}: {answers}"));
            }
        }
        wrong
    })
    .await;
}
