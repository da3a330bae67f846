//! Tracing of requests that generate.

use axum::{
    body::Body,
    extract::{MatchedPath, Request, State},
    http::{HeaderName, HeaderValue, Method, Response},
    middleware::Next,
};
use lockstep_traces::{Traces, names};

use crate::{request_stats::RequestStats, request_trace::RequestTrace};

/// The routes that generate.
const GENERATING: [&str; 5] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/generate",
];
/// Header that tells the caller the trace of its request, as in W3C's draft of trace
/// context level 2.
const TRACE_RESPONSE: HeaderName = HeaderName::from_static("traceresponse");

/// Begins the span of a request that generates and is sampled. The request's statistics
/// keep the span until the answer is sent.
pub(super) async fn trace(
    State((traces, scheme)): State<(Traces, &'static str)>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let Some((trace, stats)) = begin(&traces, scheme, &request).zip(RequestStats::current()) else {
        return next.run(request).await;
    };
    let place = HeaderValue::from_str(&trace.context().parent);
    stats.follow(trace);
    let mut response = next.run(request).await;
    if let Ok(place) = place {
        response.headers_mut().insert(TRACE_RESPONSE, place);
    }
    response
}

fn begin(
    traces: &Traces,
    scheme: &'static str,
    request: &Request,
) -> Option<std::sync::Arc<RequestTrace>> {
    let route = request.extensions().get::<MatchedPath>()?.as_str();
    let route = *GENERATING.iter().find(|generating| **generating == route)?;
    if request.method() != Method::POST {
        return None;
    }
    let header = |name: &str| request.headers().get(name)?.to_str().ok();
    let trace = RequestTrace::begin(traces, format!("POST {route}"), header)?;
    trace.set(names::HTTP_REQUEST_METHOD, "POST");
    trace.set(names::HTTP_ROUTE, route);
    trace.set(names::URL_PATH, route);
    trace.set(names::URL_SCHEME, scheme);
    Some(trace)
}
