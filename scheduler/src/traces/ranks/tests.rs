use std::time::Duration;

use lockstep_trace_collector::Collector;
use lockstep_traces::SpanKind;
use lockstep_types::{ConstraintWork, TraceConfig, TraceContext};

use super::*;

#[test]
fn what_constraints_cost_stands_in_the_spans_of_requests_that_ran() {
    let collector = Collector::start();
    let config = TraceConfig {
        endpoint: TraceConfig::url(&collector.endpoint()),
        sample_ppm: Some(1_000_000),
    };
    let traces = Traces::start(&config, "scheduler", "scheduler").expect("an exporter");
    let workers = traces.beside("tp-worker", "tp-worker");
    let mut ranks = Ranks {
        workers: Some(workers.expect("an exporter")),
        size: 1,
        of_dp_rank: 1,
        closing: Vec::new(),
        last_step: 0,
    };
    let request = traces.begin(
        "request",
        SpanKind::Internal,
        Some(&TraceContext::default()),
    );
    let request = request.expect("it is sampled");
    let mut part = ranks.part(&request, "decode", SystemTime::now(), 2);
    for step in 1..=3 {
        let constraints = ConstraintWork {
            masks: 4,
            mask_us: 100 + step,
            waits: u64::from(step == 2),
            wait_us: 1000 * u64::from(step == 2),
            ..ConstraintWork::default()
        };
        let result = RankResult {
            step,
            constraints,
            ..RankResult::default()
        };
        ranks.answered(0, &result, std::iter::once(&mut part));
    }
    ranks.close(part, SystemTime::now(), 0);
    ranks.settle(3);
    drop(request);
    traces.finish(Duration::from_secs(60));

    let spans = collector.spans();
    let of = |service: &str| {
        let mut found = spans.iter();
        found.find(|span| span.service == service && span.name == "decode")
    };
    let (part, steps) = (of("lockstep-scheduler"), of("lockstep-tp-worker"));
    let [(event, about)] = &part.expect("the part").events[..] else {
        panic!("one step waited: {spans:?}");
    };
    assert_eq!(event, "step waits for a constraint");
    assert_eq!(about[names::WAIT_US].to_string(), "1000");
    let steps = steps.expect("the rank's steps");
    assert_eq!(
        steps.text(names::MASKS),
        "8",
        "not those before its first step"
    );
    assert_eq!(steps.text(names::MASK_US), "205");
}
