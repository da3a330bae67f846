//! Spans reach a collector, and a bad collector changes nothing.

use std::time::{Duration, SystemTime};

use lockstep_trace_collector::Collector;
use lockstep_traces::{SpanKind, Traces, names};
use lockstep_types::{TraceConfig, TraceContext};

const LONG: Duration = Duration::from_secs(60);
const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-";

fn traces(endpoint: &str, sample_ppm: u32) -> Traces {
    let config = TraceConfig {
        endpoint: TraceConfig::url(endpoint),
        sample_ppm: Some(sample_ppm),
    };
    Traces::start(&config, "front", "front 0").expect("an exporter")
}

fn caller(flags: &str) -> TraceContext {
    TraceContext {
        parent: format!("{CALLER}{flags}"),
        state: "other=1".to_owned(),
    }
}

#[test]
fn spans_of_several_services_join_the_callers_trace() {
    let collector = Collector::start();
    let front = traces(&collector.endpoint(), 0);
    let worker = front.beside("worker", "worker 0").expect("an exporter");
    let mut root = front
        .begin("POST /x", SpanKind::Server, Some(&caller("01")))
        .expect("the caller's is sampled");
    root.set(names::GEN_AI_REQUEST_MAX_TOKENS, 7);
    let mut part = root.child("decode");
    let context = part.context();
    drop(worker.within(&part, "decode", SystemTime::now()));
    part.event("step waits", [(names::RANK, 3), (names::WAIT_US, 250)]);
    part.fail("broken");
    drop((part, root));
    front.finish(LONG);

    let spans = collector.spans();
    let named = |service: &str, name: &str| {
        let found = spans
            .iter()
            .find(|span| span.service == service && span.name == name);
        found
            .unwrap_or_else(|| panic!("{service}: {name} in {spans:?}"))
            .clone()
    };
    let root = named("lockstep-front", "POST /x");
    assert_eq!(root.trace_id, CALLER[3..35]);
    assert_eq!(root.parent_id, CALLER[36..52]);
    assert_eq!((root.kind, root.state.as_str()), (2, "other=1"));
    assert_eq!(root.text(names::GEN_AI_REQUEST_MAX_TOKENS), "7");
    assert!(root.instance.contains(" front 0 "), "{}", root.instance);
    let part = named("lockstep-front", "decode");
    assert_eq!(part.parent_id, root.span_id);
    assert_eq!(part.error.as_deref(), Some("broken"));
    let [(event, about)] = &part.events[..] else {
        panic!("{:?}", part.events);
    };
    assert_eq!(event, "step waits");
    assert_eq!(about[names::WAIT_US].to_string(), "250");
    assert_eq!(
        context.parent,
        format!("00-{}-{}-01", part.trace_id, part.span_id)
    );
    let worker = named("lockstep-worker", "decode");
    assert_eq!(worker.parent_id, part.span_id);
    assert_eq!((spans.len(), front.counts().exported), (3, 3));
}

#[test]
fn the_caller_decides_before_the_share_does() {
    let collector = Collector::start();
    let begin = |traces: &Traces, caller: Option<&TraceContext>| {
        traces.begin("x", SpanKind::Server, caller).is_some()
    };
    let (none, all) = (
        traces(&collector.endpoint(), 0),
        traces(&collector.endpoint(), 1_000_000),
    );
    assert!(!begin(&none, None) && begin(&all, None));
    assert!(begin(&none, Some(&caller("01"))) && !begin(&all, Some(&caller("00"))));
    assert!(
        begin(&all, Some(&TraceContext::default())),
        "no caller at all"
    );
    none.finish(LONG);
    all.finish(LONG);
    assert_eq!(
        collector.spans().len(),
        3,
        "what is not sampled is not exported"
    );
}

#[test]
fn a_collector_that_never_answers_costs_spans_and_nothing_else() {
    /// More spans than wait and travel at once.
    const SPANS: u64 = 10_000;
    let collector = Collector::stalled();
    let traces = traces(&collector.endpoint(), 1_000_000);
    for _ in 0..SPANS {
        drop(traces.begin("x", SpanKind::Internal, None));
    }
    assert!(collector.wait(|calls, _| calls > 0), "it was asked");
    let counts = traces.counts();
    assert_eq!((counts.exported, counts.dropped), (0, SPANS - 8192));
    // An export would wait for much longer. This test ends because the export is given up.
    traces.finish(Duration::from_millis(50));
}

#[test]
fn a_collector_that_is_away_is_counted() {
    // A port that is closed again.
    let endpoint = Collector::start().endpoint();
    let traces = traces(&endpoint, 1_000_000);
    drop(traces.begin("x", SpanKind::Internal, None));
    traces.finish(Duration::from_millis(50));
    assert_eq!(traces.counts().exported, 0);
}
