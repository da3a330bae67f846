//! JSON with very many small values, which could take many times its own size in
//! memory.

use futures::future::join_all;
use lockstep_tests::{
    body::{COUNTED, completion, counting},
    row::Row,
    server::Server,
    turns,
};
use serde_json::{Value, json};

use crate::one_rank;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// A kind of body: its path, the body with `"MANY"` in place of the values, and the
/// repeated value.
type Kind = (&'static str, Value, &'static str);

fn kinds() -> Vec<Kind> {
    let nested = json!({"chat_template_kwargs": {"a": {"b": "MANY"}}});
    vec![
        (CHAT, counting(&json!({"messages": "MANY"})), "[]"),
        (CHAT, counting(&json!({"messages": "MANY"})), "{}"),
        (CHAT, counting(&json!({"tools": "MANY"})), "{}"),
        (CHAT, counting(&nested), "[[]]"),
        (CHAT, counting(&json!({"stop": "MANY"})), "\"\""),
        (
            CHAT,
            counting(&json!({"messages": [{"role": "user", "content": "MANY"}]})),
            "{}",
        ),
        (COMPLETIONS, completion("MANY", &json!({})), "\"\""),
        (COMPLETIONS, completion("MANY", &json!({})), "7"),
        (
            COMPLETIONS,
            completion("a", &json!({"logit_bias": "MANY"})),
            "{\"1\":1}",
        ),
    ]
}

/// Makes a body with about `bytes` of values.
fn body((_, around, value): &Kind, bytes: usize) -> String {
    let values = vec![*value; bytes / (value.len() + 1)].join(",");
    around
        .to_string()
        .replace("\"MANY\"", &format!("[{values}]"))
}

/// Makes a body whose `logit_bias` is one object of about `bytes`.
fn biased(bytes: usize) -> String {
    let biases: Vec<_> = (0..bytes / 12).map(|id| format!("\"{id:07}\":1")).collect();
    let body = completion("a", &json!({"logit_bias": "MANY"})).to_string();
    body.replace("\"MANY\"", &format!("{{{}}}", biases.join(",")))
}

async fn refused(server: &Server, path: &str, body: String) {
    let shown = body[..body.len().min(120)].to_owned();
    let request = server.client.post(server.url(path));
    let request = request
        .header("content-type", "application/json")
        .body(body);
    let answer = lockstep_tests::http::answer(request)
        .await
        .expect("answered");
    assert_eq!(answer.status, 400, "{shown}: {}", answer.text);
    assert!(answer.text.len() < 2_000, "{shown}: {}", answer.text);
}

/// Sends bodies of all kinds, `at_once` of each kind concurrently.
async fn send(server: &Server, bytes: usize, at_once: usize) {
    for kind in kinds() {
        let body = body(&kind, bytes);
        join_all((0..at_once).map(|_| refused(server, kind.0, body.clone()))).await;
    }
    let body = biased(bytes);
    join_all((0..at_once).map(|_| refused(server, COMPLETIONS, body.clone()))).await;
}

#[tokio::test]
async fn many_small_values_cost_little_more_than_their_text() {
    const BODY: usize = 1 << 20;
    // Growth that any request may cause, for example by the heaps of new threads.
    const OTHER: usize = 16 << 20;
    let _turn = turns::shared().await;
    let server = Server::start(one_rank()).await;
    server.ok(CHAT, &counting(&json!({}))).await;
    let processes = server.processes();
    let sum = |name| processes.iter().map(|of| of.memory(name)).sum::<usize>();
    let before = sum("VmRSS");
    processes.iter().for_each(|process| process.reset_peak());
    send(&server, BODY, 1).await;
    let grown = sum("VmHWM").saturating_sub(before);
    assert!(grown <= 10 * BODY + OTHER, "{} MiB", grown >> 20);
    let answer = server.ok(CHAT, &counting(&json!({}))).await;
    assert_eq!(answer["choices"][0]["message"]["content"], COUNTED);
    assert_eq!(server.processes(), processes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full size"]
async fn very_many_small_values_cost_little_more_than_their_text() {
    const BODY: usize = (16 << 20) - 4096;
    let _turn = turns::alone().await;
    let server = Server::start(one_rank()).await;
    let row = Row::begin("05", &server);
    send(&server, BODY, 3).await;
    row.end(&server, "10 kinds of 16 MiB, three at once: 400")
        .await;
}
