use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tracing_subscriber::fmt::Subscriber;

use super::{JsonRole, RoleTime, capped, check};

/// Collects written bytes.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("not poisoned").write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("not poisoned").clone()).expect("text")
    }
}

#[test]
fn json_lines_begin_with_the_role() {
    let sink = Sink::default();
    let make = {
        let sink = sink.clone();
        move || sink.clone()
    };
    let subscriber = Subscriber::builder()
        .json()
        .flatten_event(true)
        .with_writer(JsonRole::over("worker 1", make))
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        let span = tracing::info_span!("request", request_id = "r-1");
        span.in_scope(|| tracing::info!(tokens = 3, "done \"well\""));
    });
    let line: serde_json::Value = serde_json::from_str(&sink.text()).expect("one JSON object");
    assert_eq!(line["role"], "worker 1");
    assert_eq!(
        (&line["message"], &line["tokens"]),
        (&"done \"well\"".into(), &3.into())
    );
    assert_eq!(line["span"]["request_id"], "r-1");
}

#[test]
fn plain_lines_name_the_role_after_the_time() {
    let sink = Sink::default();
    let make = {
        let sink = sink.clone();
        move || sink.clone()
    };
    let subscriber = Subscriber::builder()
        .with_ansi(false)
        .with_timer(RoleTime("scheduler".into()))
        .with_writer(make)
        .finish();
    tracing::subscriber::with_default(subscriber, || tracing::info!("hello"));
    let text = sink.text();
    let words: Vec<_> = text.split_whitespace().collect();
    assert_eq!(words[1..3], ["scheduler", "INFO"]);
    assert!(text.ends_with("hello\n"), "{text}");
}

#[test]
fn filters() {
    for good in ["info", "debug,h2=warn", "lockstep_scheduler=trace", "off"] {
        assert!(check(good).is_ok(), "{good}");
    }
    for bad in [
        "loud=very",
        "a=b=c",
        "blah",
        "",
        "info,blah",
        "lockstep_scheduler",
    ] {
        assert!(check(bad).is_err(), "{bad}");
    }
}

#[test]
fn chatty_libraries_stay_at_info_unless_named() {
    for quiet in ["info", "warn,lockstep=debug", "h2=trace", "off"] {
        assert_eq!(capped(quiet), quiet);
    }
    let capped = capped("DEBUG,h2=trace");
    assert!(capped.starts_with("DEBUG,h2=trace,hyper=info,"), "{capped}");
    assert!(!capped.contains("h2=info"), "{capped}");
    assert_eq!(check(&capped), Ok(()));
}

/// Variable for the child of the test below, which logs to a pipe that nobody reads.
const CHILD: &str = "LOCKSTEP_TEST_LOG_TO_NOBODY";

#[test]
fn a_line_that_nobody_can_read_harms_nobody() {
    if let Ok(json) = std::env::var(CHILD) {
        super::init("test", "info", json == "json");
        tracing::info!("to nobody");
        return;
    }
    for format in ["text", "json"] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let status = std::process::Command::new(std::env::current_exe().expect("this test"))
            .args([
                "--exact",
                "--nocapture",
                "logging::tests::a_line_that_nobody_can_read_harms_nobody",
            ])
            .env(CHILD, format)
            .stdout(std::process::Stdio::null())
            .stderr(writer)
            .status()
            .expect("started");
        assert!(status.success(), "{format}: {status}");
    }
}
