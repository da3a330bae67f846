//! W3C trace context: a place in a trace, as text between services.
//! <https://www.w3.org/TR/trace-context/>

use lockstep_types::TraceContext;
use opentelemetry::{
    Context,
    propagation::{Extractor, TextMapPropagator},
    trace::{SpanContext, TraceFlags},
};
use opentelemetry_sdk::propagation::TraceContextPropagator;

/// Bytes of `tracestate` that are kept: as many as the recommendation asks for. A longer one is
/// left out, since every span of the request would hold it.
const STATE_BYTES: usize = 512;

struct Carrier<'a>(&'a TraceContext);

impl Extractor for Carrier<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            "traceparent" => Some(&self.0.parent),
            "tracestate" => Some(&self.0.state).filter(|state| state.len() <= STATE_BYTES),
            _ => None,
        }
        .map(String::as_str)
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent", "tracestate"]
    }
}

/// The place in a trace that a call's headers or metadata name, as found by `get`.
pub fn caller<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Option<TraceContext> {
    Some(TraceContext {
        parent: get("traceparent")?.to_owned(),
        state: get("tracestate").unwrap_or_default().to_owned(),
    })
}

/// Parses a caller's place in a trace; empty if it is no trace context.
pub(crate) fn parse(given: &TraceContext) -> Context {
    TraceContextPropagator::new().extract_with_context(&Context::new(), &Carrier(given))
}

/// The span's place, in the form for the next service.
pub(crate) fn write(span: &SpanContext) -> TraceContext {
    let flags = span.trace_flags() & TraceFlags::SAMPLED;
    TraceContext {
        parent: format!("00-{}-{}-{flags:02x}", span.trace_id(), span.span_id()),
        state: span.trace_state().header(),
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::TraceContextExt;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn there_and_back(parent: &str, state: &str) -> Option<TraceContext> {
        let given = TraceContext {
            parent: parent.to_owned(),
            state: state.to_owned(),
        };
        let context = parse(&given);
        let span = context.span().span_context().clone();
        span.is_valid().then(|| write(&span))
    }

    #[test]
    fn a_place_in_a_trace_survives_the_way() {
        let context = there_and_back(PARENT, "a=1,b=2").expect("valid");
        assert_eq!((&*context.parent, &*context.state), (PARENT, "a=1,b=2"));
        let long = format!("a={}", "x".repeat(STATE_BYTES));
        assert_eq!(there_and_back(PARENT, &long).expect("valid").state, "");
    }

    #[test]
    fn what_is_no_trace_context_begins_none() {
        let zero = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
        for wrong in [
            "",
            "00",
            "zz-1-2-3",
            &zero,
            &PARENT[..40],
            &PARENT.to_uppercase(),
        ] {
            assert_eq!(there_and_back(wrong, ""), None, "{wrong}");
        }
    }
}
