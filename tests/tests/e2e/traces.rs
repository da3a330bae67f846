//! Traces of requests through real processes, as a collector receives them.

use std::collections::BTreeMap;

use futures::StreamExt;
use lockstep_process::exit;
use lockstep_proto::pb::lockstep::generate_request::{Constraint, Input};
use lockstep_tests::{
    MODEL,
    body::{COUNTED, counting},
    server::{Options, Server},
    sse::{self, Events},
    turns,
    wait::{LIMIT, until},
};
use lockstep_trace_collector::{CollectedSpan, Collector, tree};
use rustix::process::Signal;
use serde_json::json;
use tonic::{Request, metadata::MetadataValue};

use crate::{grpc, options, sglang};

const PATH: &str = "/v1/chat/completions";
const FRONT: &str = "lockstep-tokenizer-manager";
const SCHEDULER: &str = "lockstep-scheduler";
const WORKER: &str = "lockstep-tp-worker";
/// Id of the caller's span.
const CALLER: &str = "b7ad6b7169203331";

/// A `traceparent` header of a caller, in a trace of its own.
fn traceparent(trace: u8, is_sampled: bool) -> String {
    format!("00-{}-{CALLER}-0{}", trace_id(trace), u8::from(is_sampled))
}

fn trace_id(trace: u8) -> String {
    format!("0af7651916cd43dd8448eb211c8031{trace:02x}")
}

/// Options that trace only requests of sampled callers, and export soon.
fn traced(collector: &Collector) -> Options {
    options()
        .set("--otlp-traces-endpoint", &collector.endpoint())
        .set("--trace-sample-ratio", "0")
        .flag("--speculative-adaptive=false")
        .env("OTEL_BSP_SCHEDULE_DELAY", "50")
}

/// Streams a chat whose caller sends `traceparent`. Returns the text and the
/// `traceresponse` header.
async fn chat(server: &Server, traceparent: &str) -> (String, Option<String>) {
    let body = counting(&json!({"stream": true, "temperature": 0, "max_tokens": 60}));
    let request = server.client.post(server.url(PATH)).json(&body);
    let request = request.header("traceparent", traceparent);
    let request = request.header("tracestate", "caller=1");
    let response = request.send().await.expect("answered");
    assert_eq!(response.status(), 200);
    let place = response.headers().get("traceresponse").cloned();
    let chunks = Events::new(response).chunks().await;
    let place = place.map(|place| place.to_str().expect("text").to_owned());
    (sse::text(&chunks, 0), place)
}

/// Waits until a trace has at least `count` spans, and returns the spans.
async fn spans(collector: &Collector, trace: u8, count: usize) -> Vec<CollectedSpan> {
    let id = trace_id(trace);
    let own = || {
        let all = collector.spans().into_iter();
        all.filter(|span| span.trace_id == id).collect::<Vec<_>>()
    };
    until("the spans of a trace", LIMIT, async || {
        (own().len() >= count).then_some(())
    })
    .await;
    own()
}

/// Counts spans by service, name and name of the parent span.
fn parents(spans: &[CollectedSpan]) -> BTreeMap<(&str, &str, &str), usize> {
    let mut parents = BTreeMap::new();
    for span in spans {
        let parent = spans.iter().find(|other| other.span_id == span.parent_id);
        let parent = match parent {
            Some(parent) => &*parent.name,
            None if span.parent_id == CALLER => "the caller",
            None => panic!("nobody's part: {span:?}"),
        };
        *parents
            .entry((&*span.service, &*span.name, parent))
            .or_default() += 1;
    }
    parents
}

fn named<'a>(spans: &'a [CollectedSpan], service: &str, name: &str) -> &'a CollectedSpan {
    let mut found = spans
        .iter()
        .filter(|span| span.service == service && span.name == name);
    found
        .next()
        .unwrap_or_else(|| panic!("no {name} of {service}"))
}

fn expect(span: &CollectedSpan, attributes: &[(&str, &str)]) {
    for (name, value) in attributes {
        assert_eq!(span.text(name), *value, "{name} of {span:?}");
    }
}

/// The spans of one request in the engine, on two ranks.
const ENGINE: [((&str, &str, &str), usize); 5] = [
    ((SCHEDULER, "queue", "request"), 1),
    ((SCHEDULER, "prefill", "request"), 1),
    ((SCHEDULER, "decode", "request"), 1),
    ((WORKER, "prefill", "prefill"), 2),
    ((WORKER, "decode", "decode"), 2),
];

#[tokio::test]
async fn a_streamed_request_is_one_trace_through_all_processes() {
    let _turn = turns::shared().await;
    let collector = Collector::start();
    let server = Server::start(traced(&collector)).await;
    let (text, none) = chat(&server, &traceparent(1, false)).await;
    assert_eq!(
        (&*text, none),
        (COUNTED, None),
        "its caller does not sample"
    );
    let (text, place) = chat(&server, &traceparent(2, true)).await;
    assert_eq!(text, COUNTED);

    let spans = spans(&collector, 2, 13).await;
    let (http, chat) = (format!("POST {PATH}"), format!("chat {MODEL}"));
    let front = [
        ((FRONT, &*http, "the caller"), 1),
        ((FRONT, "render chat template", &*http), 1),
        ((FRONT, &*chat, &*http), 1),
        ((FRONT, "tokenize", &*chat), 1),
        ((FRONT, "detokenize and stream", &*chat), 1),
        ((SCHEDULER, "request", &*chat), 1),
    ];
    assert_eq!(parents(&spans), front.into_iter().chain(ENGINE).collect());
    let root = named(&spans, FRONT, &http);
    assert_eq!(
        place,
        Some(format!("00-{}-{}-01", root.trace_id, root.span_id))
    );
    assert_eq!(
        (root.kind, &*root.state),
        (2, "caller=1"),
        "a server's span"
    );
    expect(
        root,
        &[("http.response.status_code", "200"), ("http.route", PATH)],
    );
    let asked = named(&spans, FRONT, &chat);
    let output = asked.text("gen_ai.usage.output_tokens");
    expect(
        asked,
        &[
            ("gen_ai.operation.name", "chat"),
            ("gen_ai.request.model", MODEL),
            ("gen_ai.request.max_tokens", "60"),
            ("gen_ai.request.temperature", "0"),
            ("gen_ai.response.finish_reasons", "[stop]"),
        ],
    );
    assert!(
        asked
            .text("gen_ai.response.time_to_first_chunk")
            .parse::<f64>()
            .expect("s")
            > 0.0
    );
    let request = named(&spans, SCHEDULER, "request");
    expect(
        request,
        &[
            (
                "lockstep.prompt_tokens",
                &asked.text("gen_ai.usage.input_tokens"),
            ),
            ("lockstep.tokens", &output),
            ("lockstep.finish_reason", "stop"),
        ],
    );
    let decode = named(&spans, SCHEDULER, "decode");
    let number = |span: &CollectedSpan, name: &str| span.text(name).parse::<u64>().expect(name);
    assert!(
        number(decode, "lockstep.speculation.accepted_tokens") > 0,
        "{decode:?}"
    );
    for rank in ["0", "1"] {
        let of_rank = |span: &&CollectedSpan| {
            (&*span.service, &*span.name) == (WORKER, "decode")
                && span.text("lockstep.rank") == rank
        };
        let steps = spans.iter().find(of_rank).expect("its decode");
        assert!(number(steps, "lockstep.steps") > 1, "{steps:?}");
        assert!(number(steps, "lockstep.step_us") >= number(steps, "lockstep.verify_us"));
    }
    // A span lies within its parent's time.
    for span in &spans {
        if let Some(parent) = spans.iter().find(|other| other.span_id == span.parent_id) {
            let inside = parent.start <= span.start && span.end <= parent.end;
            assert!(inside, "{span:?} in {parent:?}");
        }
    }
    if std::env::var_os("UPDATE_TRACE").is_some() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/results/trace.txt");
        std::fs::write(file, tree(&spans)).expect("a file");
    }

    over_grpc(&server, &collector).await;
    let metrics = server.metrics().await;
    let name = "lockstep_trace_spans_total";
    assert!(metrics.sum_with(name, &[("outcome", "exported")]) >= 13.0);
    // The end of the server exports the spans that remain.
    chat_and_leave(&server, &collector).await;
    let sampled = |span: &CollectedSpan| span.trace_id != trace_id(1);
    assert!(
        collector.spans().iter().all(sampled),
        "what is not sampled is not exported"
    );
}

/// Calls of both gRPC services continue the traces of their callers too.
async fn over_grpc(server: &Server, collector: &Collector) {
    let metadata = |trace| MetadataValue::try_from(traceparent(trace, true)).expect("plain");
    let mut call = Request::new(grpc::greedy(Input::Text("1, 2, 3,".to_owned()), 5));
    call.metadata_mut().insert("traceparent", metadata(3));
    let answers = server.inference().await.generate(call).await;
    let answers: Vec<_> = answers.expect("accepted").into_inner().collect().await;
    assert!(answers.iter().all(Result::is_ok));
    let own = spans(collector, 3, 12).await;
    let root = "lockstep.v1.Inference/Generate";
    let asked = format!("text_completion {MODEL}");
    let front = [
        ((FRONT, root, "the caller"), 1),
        ((FRONT, &*asked, root), 1),
        ((FRONT, "tokenize", &*asked), 1),
        ((FRONT, "detokenize and stream", &*asked), 1),
        ((SCHEDULER, "request", &*asked), 1),
    ];
    assert_eq!(parents(&own), front.into_iter().chain(ENGINE).collect());

    let mut request = grpc::greedy(Input::Text("It is".to_owned()), 9);
    request.constraint = Some(Constraint::Regex("[0-9]{5}".to_owned()));
    let mut call = Request::new(request);
    call.metadata_mut().insert("traceparent", metadata(6));
    let answers = server.inference().await.generate(call).await;
    let answers: Vec<_> = answers.expect("accepted").into_inner().collect().await;
    assert!(answers.iter().all(Result::is_ok));
    let own = spans(collector, 6, 13).await;
    let with = [((FRONT, "compile", &*asked), 1)];
    let all = front.into_iter().chain(ENGINE).chain(with);
    assert_eq!(parents(&own), all.collect());
    let compiled = [
        ("lockstep.constraint.kind", "regex"),
        ("lockstep.constraint.cached", "false"),
    ];
    expect(named(&own, FRONT, "compile"), &compiled);
    let masks = own.iter().filter(|span| span.service == WORKER);
    let masks = masks.filter_map(|span| span.text("lockstep.constraint.masks").parse::<u64>().ok());
    assert!(masks.sum::<u64>() >= 1, "{own:?}");

    let mut call = Request::new(sglang::greedy("chatcmpl-traced", vec![5, 6, 7], 5));
    call.metadata_mut().insert("traceparent", metadata(4));
    let answers = server.sglang().await.generate(call).await;
    let answers: Vec<_> = answers.expect("accepted").into_inner().collect().await;
    assert!(answers.iter().all(Result::is_ok));
    let own = spans(collector, 4, 10).await;
    let root = "sglang.grpc.scheduler.SglangScheduler/Generate";
    let front = [
        ((SCHEDULER, root, "the caller"), 1),
        ((SCHEDULER, &*asked, root), 1),
        ((SCHEDULER, "request", &*asked), 1),
    ];
    assert_eq!(parents(&own), front.into_iter().chain(ENGINE).collect());
    expect(
        named(&own, SCHEDULER, &asked),
        &[
            ("gen_ai.usage.output_tokens", "5"),
            ("gen_ai.usage.input_tokens", "3"),
            ("gen_ai.response.finish_reasons", "[length]"),
        ],
    );
}

/// Sends a chat and drains the server, which exports the last spans.
async fn chat_and_leave(server: &Server, collector: &Collector) {
    chat(server, &traceparent(5, true)).await;
    server.signal(Signal::TERM).await;
    assert_eq!(server.exit(LIMIT).await, i32::from(exit::OK));
    assert_eq!(spans(collector, 5, 13).await.len(), 13);
}

#[tokio::test]
async fn a_collector_that_never_answers_changes_nothing_for_requests() {
    let _turn = turns::shared().await;
    let collector = Collector::stalled();
    let server = Server::start(traced(&collector)).await;
    for trace in 0..4 {
        assert_eq!(chat(&server, &traceparent(trace, true)).await.0, COUNTED);
    }
    until("an export that hangs", LIMIT, async || {
        (collector.calls() > 0).then_some(())
    })
    .await;
    assert_eq!(chat(&server, &traceparent(5, true)).await.0, COUNTED);
    // The export of the last spans has a time limit of its own.
    server.signal(Signal::TERM).await;
    assert_eq!(server.exit(LIMIT).await, i32::from(exit::OK));
}
