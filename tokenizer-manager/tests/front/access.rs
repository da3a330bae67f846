//! The access log, with token counts from real requests.

use std::{
    io::{self, Write},
    time::Duration,
};

use lockstep_proto::pb::lockstep::FinishReason;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

use super::{
    client::{chat, completion},
    harness::{Front, start},
    messages::message,
    mock::ids,
    responses::response,
};

const PATIENCE: Duration = Duration::from_secs(30);

/// Sends each log line to the test. The formatter writes a line at once.
#[derive(Clone)]
struct Lines(UnboundedSender<Vec<u8>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The send may fail: nobody reads lines after the test has ended.
        let _ = self.0.send(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// Returns the log line of one request, among the lines of tests that run at the same
/// time.
async fn line(lines: &mut UnboundedReceiver<Vec<u8>>, id: &str) -> Value {
    loop {
        // A line that never comes fails the test instead of hanging it.
        let line = tokio::time::timeout(PATIENCE, lines.recv()).await;
        let line = line.expect("in time").expect("a line");
        let line: Value = serde_json::from_slice(&line).expect("json");
        if line["fields"]["request"] == id {
            return line["fields"].clone();
        }
    }
}

async fn post(front: &Front, path: &str, id: &str, body: &Value) {
    let url = format!("{}{path}", front.url);
    let request = front.client.post(url).header("x-request-id", id).json(body);
    let response = request.send().await.expect("answered");
    response.bytes().await.expect("body");
}

#[tokio::test]
async fn lines_count_the_tokens_of_all_choices() {
    let (sender, mut lines) = unbounded_channel();
    tracing_subscriber::fmt()
        .json()
        .with_env_filter(EnvFilter::new("access=info"))
        .with_writer(Lines(sender))
        .init();
    let front = start().await;
    for (number, (path, body)) in [
        ("/v1/chat/completions", chat(&json!({"n": 2}))),
        (
            "/v1/chat/completions",
            chat(&json!({"n": 2, "stream": true})),
        ),
        (
            "/v1/completions",
            completion(&json!({"n": 2, "stream": true})),
        ),
        (
            "/generate",
            json!({"text": "ab", "sampling_params": {"n": 2}}),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("logged-{number}");
        let scheduler = async {
            let mut prompt = 0;
            for _ in 0..2 {
                let job = front.mock.job().await;
                prompt = job.submit.input_ids.len();
                job.tokens(&ids("abc"));
                job.finish(FinishReason::Stop, 3);
            }
            prompt
        };
        let ((), prompt) = tokio::join!(post(&front, path, &id, &body), scheduler);
        let line = line(&mut lines, &id).await;
        assert_eq!(line["path"], path);
        assert_eq!(line["status"], 200, "{line}");
        assert_eq!(line["complete"], true, "{line}");
        assert_eq!(line["prompt_tokens"], prompt, "{line}");
        assert_eq!(line["completion_tokens"], 6, "{line}");
    }
    let fields = [json!({}), json!({"stream": true})];
    let bodies = fields.iter().flat_map(|fields| {
        [
            ("/v1/messages", message(fields)),
            ("/v1/responses", response(fields)),
        ]
    });
    for (number, (path, body)) in bodies.enumerate() {
        let id = format!("logged-one-{number}");
        let scheduler = async {
            let job = front.mock.job().await;
            job.tokens(&ids("abc"));
            job.finish(FinishReason::Stop, 3);
            job.submit.input_ids.len()
        };
        let ((), prompt) = tokio::join!(post(&front, path, &id, &body), scheduler);
        let line = line(&mut lines, &id).await;
        assert_eq!(line["complete"], true, "{line}");
        assert_eq!(
            (&line["prompt_tokens"], &line["completion_tokens"]),
            (&json!(prompt), &json!(3))
        );
    }
    // The line also has an error that came after the status.
    let fields = json!({"stream": true});
    for (path, body) in [
        ("/v1/chat/completions", chat(&fields)),
        ("/v1/messages", message(&fields)),
        ("/v1/responses", response(&fields)),
    ] {
        let scheduler = async {
            let job = front.mock.job().await;
            job.tokens(&ids("Hi"));
            job.fail(lockstep_proto::pb::lockstep::RequestError {
                kind: lockstep_proto::pb::lockstep::ErrorKind::Internal.into(),
                message: "a rank died".to_owned(),
                ..Default::default()
            });
        };
        let id = format!("logged-late{}", path.len());
        tokio::join!(post(&front, path, &id, &body), scheduler);
        let late = line(&mut lines, &id).await;
        assert_eq!(late["status"], 200);
        assert_eq!(late["code"], "internal_error");
        assert_eq!(late["complete"], false, "{late}");
    }

    let fields = json!({"lora_path": "x"});
    for (path, body) in [
        ("/v1/chat/completions", chat(&fields)),
        ("/v1/messages", message(&fields)),
    ] {
        let id = format!("logged-refused{}", path.len());
        post(&front, path, &id, &body).await;
        let line = line(&mut lines, &id).await;
        assert_eq!(line["status"], 400);
        assert_eq!(line["code"], "unsupported_parameter");
        assert_eq!(line["completion_tokens"], 0);
    }
}
