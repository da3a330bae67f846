//! Layers that every request passes before its route.

use std::{any::Any, sync::Arc};

use axum::{
    body::Body,
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode},
    middleware::Next,
};
use tracing::Instrument;

use super::console;
use crate::{
    app::App,
    error::ApiError,
    request_id::{answer_id, fresh_id, is_valid},
};

/// The header that carries a request's id in and out.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Id of an HTTP request: the client's, or a random one.
#[derive(Debug, Clone)]
pub(super) struct RequestId(pub Arc<str>);

impl RequestId {
    /// Returns the id of the answer, which begins with `prefix`.
    pub(super) fn object(&self, prefix: &str) -> String {
        answer_id(prefix, &self.0)
    }
}

/// Gives the request an id and a tracing span, and counts the answer.
pub(super) async fn identify(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response<Body> {
    let id = client_id(request.headers()).unwrap_or_else(|| fresh_id().into());
    request.extensions_mut().insert(RequestId(id.clone()));
    let path = request.extensions().get::<MatchedPath>().cloned();
    // All unknown paths share one label, so that there are few labels.
    let route = path.as_ref().map_or("other", |path| label(path.as_str()));
    let span = tracing::info_span!("http", request = &*id, route);
    let mut response = next.run(request).instrument(span).await;
    app.metrics.answered(route, response.status().as_u16());
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

/// Returns the label in metrics of a route's path; paths with the same answer share one.
fn label(path: &str) -> &str {
    match path {
        "/get_model_info" => "/model_info",
        "/get_server_info" => "/server_info",
        _ if console::has(path) => console::PATH,
        _ => path.split("/{").next().unwrap_or(path),
    }
}

/// Returns the client's id if it is short and plain enough for logs.
pub(crate) fn client_id(headers: &HeaderMap) -> Option<Arc<str>> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    is_valid(id).then(|| id.into())
}

/// Refuses requests whose headers have more bytes than the configuration allows.
pub(super) async fn limit_headers(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let limit = app.config.server.limits.header_bytes as usize;
    let headers = request.headers();
    let first_line = request.method().as_str().len() + request.uri().to_string().len();
    let bytes = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum::<usize>()
        + first_line;
    if bytes > limit {
        return ApiError {
            status: StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            ..ApiError::bad_request(format!(
                "The request's headers have {bytes} bytes; the limit is {limit}."
            ))
        }
        .into_http();
    }
    next.run(request).await
}

/// Returns true if a request needs no key: health checks, as load balancers send them.
pub(super) fn is_open(request: &Request) -> bool {
    matches!(request.uri().path(), "/health" | "/ping")
        && matches!(*request.method(), Method::GET | Method::HEAD)
}

/// Returns the answer when a route panics. Other requests go on.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the signature tower-http asks for"
)]
pub(super) fn panicked(panic: Box<dyn Any + Send + 'static>) -> Response<Body> {
    let what = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    tracing::error!(panic = what, "a route panicked");
    ApiError::internal("The server failed to handle this request.").into_http()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error_object() {
        let response = panicked(Box::new("oh"));
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let body = axum::body::to_bytes(response.into_body(), 4096).await;
        let body = String::from_utf8(body.expect("body").to_vec()).expect("text");
        assert!(
            body.contains("internal_error") && !body.contains("oh"),
            "{body}"
        );
    }
}
