//! Bytes that are no proper request.

use std::time::Duration;

use lockstep_tests::{MODEL, raw};
use serde_json::json;

use super::{Expected, beside_good_requests, check, coded, invalid, status};

/// Long enough for a second answer, if there were one.
const QUIET: Duration = Duration::from_millis(100);

const LINE: &str = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";

fn good() -> String {
    json!({"model": MODEL, "prompt": "a", "max_tokens": 1}).to_string()
}

fn post(headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("{LINE}{headers}content-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").into_bytes()
}

/// Requests that reach the routes: they are answered with an error object.
fn understood() -> Vec<(&'static str, Vec<u8>, Expected)> {
    let json = "content-type: application/json\r\n";
    let nested = |levels: usize| {
        format!(
            "{{\"prompt\": {}1{}}}",
            "[".repeat(levels),
            "]".repeat(levels)
        )
    };
    let large = "x".repeat(1_000_001);
    let too_large = Expected {
        status: 413,
        ..coded("", "request_too_large")
    };
    let wrong_method = Expected {
        status: 405,
        ..coded("", "method_not_supported")
    };
    let not_found = Expected {
        status: 404,
        ..coded("model", "model_not_found")
    };
    let chunked =
        |body: &str| format!("{LINE}transfer-encoding: chunked\r\n\r\n{body}").into_bytes();
    vec![
        ("no body", post(json, b""), invalid("")),
        ("no JSON", post(json, b"{nope}"), invalid("")),
        (
            "half a JSON",
            post(json, br#"{"model": "x", "prompt": "#),
            invalid(""),
        ),
        (
            "two JSONs",
            post(json, format!("{}{}", good(), good()).as_bytes()),
            invalid(""),
        ),
        (
            "a trailing comma",
            post(json, br#"{"prompt": "a",}"#),
            invalid(""),
        ),
        (
            "a doubled key",
            post(json, br#"{"prompt": "a", "prompt": "b"}"#),
            invalid(""),
        ),
        ("NaN", post(json, br#"{"temperature": NaN}"#), invalid("")),
        (
            "infinity",
            post(json, br#"{"temperature": 1e999}"#),
            invalid(""),
        ),
        (
            "no UTF-8",
            post(json, b"{\"prompt\": \"\xff\xfe\"}"),
            invalid(""),
        ),
        (
            "half a surrogate pair",
            post(json, br#"{"prompt": "\ud800"}"#),
            invalid(""),
        ),
        (
            "a control character",
            post(json, b"{\"prompt\": \"a\x00b\"}"),
            invalid(""),
        ),
        (
            "a byte order mark",
            post(json, b"\xef\xbb\xbf{}"),
            invalid(""),
        ),
        ("deep", post(json, nested(100).as_bytes()), invalid("")),
        (
            "abysmal",
            post(json, "[".repeat(900_000).as_bytes()),
            invalid(""),
        ),
        (
            "compressed",
            post(
                &format!("{json}content-encoding: gzip\r\n"),
                b"\x1f\x8b\x08\x00",
            ),
            invalid(""),
        ),
        (
            "a form",
            post(
                "content-type: application/x-www-form-urlencoded\r\n",
                b"a=b",
            ),
            status(415),
        ),
        (
            "plain text",
            post("content-type: text/plain\r\n", good().as_bytes()),
            status(415),
        ),
        (
            "multipart",
            post(
                "content-type: multipart/form-data; boundary=x\r\n",
                b"--x--",
            ),
            status(415),
        ),
        ("a large body", post(json, large.as_bytes()), too_large),
        (
            "a large body in chunks",
            chunked(&format!("{:x}\r\n{large}\r\n0\r\n\r\n", large.len())),
            too_large,
        ),
        (
            "an announced large body",
            format!("{LINE}{json}content-length: 99999999999\r\n\r\n").into_bytes(),
            too_large,
        ),
        (
            "a chunk size beyond all numbers",
            chunked("FFFFFFFFFFFFFFFFF\r\nabc"),
            invalid(""),
        ),
        (
            "a negative chunk size",
            chunked("-1\r\nabc\r\n0\r\n\r\n"),
            invalid(""),
        ),
        (
            "a chunk longer than it says",
            chunked("3\r\nabcXX0\r\n\r\n"),
            invalid(""),
        ),
        (
            "many headers' bytes",
            post(&format!("x-a: {}\r\n", "y".repeat(40_000)), b"{}"),
            status(431),
        ),
        (
            "a long path",
            get(&format!("/{}", "a".repeat(40_000))),
            status(431),
        ),
        ("an unknown path", get("/v2/chat"), status(404)),
        (
            "an unknown path below a known one",
            get("/v1/completions/x"),
            status(404),
        ),
        (
            "embeddings",
            post(json, b"{}")
                .iter()
                .copied()
                .collect::<Vec<_>>()
                .splice_path("/v1/embeddings"),
            status(404),
        ),
        ("a wrong method", get("/v1/completions"), wrong_method),
        (
            "an unknown method",
            b"BREW /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".to_vec(),
            wrong_method,
        ),
        (
            "a path that climbs",
            get("/v1/models/../../etc/passwd"),
            not_found,
        ),
        ("a bad escape", get("/v1/models/%ff"), invalid("model")),
    ]
}

/// Puts another path into a request to `/v1/completions`.
trait SplicePath {
    fn splice_path(self, path: &str) -> Vec<u8>;
}

impl SplicePath for Vec<u8> {
    fn splice_path(self, path: &str) -> Vec<u8> {
        let old = b"/v1/completions";
        let at = self
            .windows(old.len())
            .position(|part| part == old)
            .expect("its path");
        [&self[..at], path.as_bytes(), &self[at + old.len()..]].concat()
    }
}

/// Requests that HTTP itself forbids: the connection is closed after a status
/// of 400 or the like, which has no body.
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
        for (row, request, expected) in understood() {
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

/// A request inside another's body, for a proxy and a server that disagree
/// about where the first one ends: at most one of them may be answered.
#[tokio::test]
async fn no_request_is_smuggled_inside_another() {
    let open = LINE.replace("connection: close\r\n", "");
    let inner = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n";
    let rows = [
        // The chunks end at once; a reader of the length takes the rest for the body.
        format!(
            "{open}content-length: {}\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{inner}",
            inner.len() + 5
        ),
        // The length ends early; a reader of the chunks goes on.
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
        // A body without a length is none, and what follows is the next
        // request only where nothing was announced.
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
