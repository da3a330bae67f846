//! Bad input of every kind. Each row gets its status and error, while a steady stream
//! of good requests is served and no process is lost.

mod grpc;
mod half_open;
mod json;
mod raw;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lockstep_tests::{
    body::{COUNTED, counting},
    http::Answer,
    server::Server,
    turns,
    wait::{LIMIT, until},
};
use serde_json::Value;

use crate::options;

/// Expected answer to a row of HTTP.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Expected {
    status: u16,
    /// OpenAI's `param`, empty for null.
    param: &'static str,
    /// OpenAI's `code`, empty for null.
    code: &'static str,
}

/// A 400 without a code.
const fn invalid(param: &'static str) -> Expected {
    coded(param, "")
}

/// A 400 with a code.
const fn coded(param: &'static str, code: &'static str) -> Expected {
    Expected {
        status: 400,
        param,
        code,
    }
}

/// A 400 for a value of another JSON type.
const fn mistyped(param: &'static str) -> Expected {
    coded(param, "invalid_type")
}

/// A 400 for a feature of OpenAI's API that this server does not support.
const fn unsupported(param: &'static str) -> Expected {
    coded(param, "unsupported_parameter")
}

/// Another status, without field or code.
const fn status(status: u16) -> Expected {
    Expected {
        status,
        ..invalid("")
    }
}

/// Adds each deviation to `wrong`, so that one run shows all of them.
fn check(row: &str, answer: &Answer, expected: Expected, wrong: &mut Vec<String>) {
    let error = answer.error();
    let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
    let found = (answer.status, text("param"), text("code"), text("type"));
    let kind = "invalid_request_error".to_owned();
    let expected = (
        expected.status,
        expected.param.to_owned(),
        expected.code.to_owned(),
        kind,
    );
    if found != expected {
        wrong.push(format!(
            "{row}: {found:?} instead of {expected:?}: {}",
            answer.text
        ));
    }
}

/// Runs `rows` beside good requests and checks that neither the good requests nor the
/// processes suffer.
async fn beside_good_requests(rows: impl AsyncFnOnce(&Server) -> Vec<String>) {
    let _turn = turns::shared().await;
    let server = Server::start(options().set("--max-body-bytes", "1000000")).await;
    let before = server.processes();
    assert_eq!(before.len(), 5);
    let (over, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    let good = async {
        while !over.load(Ordering::Relaxed) || served.load(Ordering::Relaxed) < 3 {
            let body = counting(&Value::Object(serde_json::Map::new()));
            let answer = server.ok("/v1/chat/completions", &body).await;
            assert_eq!(answer["choices"][0]["message"]["content"], COUNTED);
            served.fetch_add(1, Ordering::Relaxed);
        }
    };
    let bad = async {
        let wrong = rows(&server).await;
        over.store(true, Ordering::Relaxed);
        wrong
    };
    let ((), wrong) = tokio::join!(good, bad);
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert_eq!(server.processes(), before, "a process was lost");
    until("an idle engine", LIMIT, async || {
        let metrics = server.metrics().await;
        let used = metrics.value("lockstep_kv_tokens_used")
            + metrics.value("lockstep_num_requests_running");
        (used == 0.0).then_some(())
    })
    .await;
    let metrics = server.metrics().await;
    assert_eq!(metrics.value("lockstep_kv_leaked_pages"), 0.0);
}
