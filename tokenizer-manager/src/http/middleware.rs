//! Layers that every request passes before its route.

use std::{any::Any, sync::Arc};

use axum::{
    body::Body,
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode},
    middleware::Next,
};
use tracing::Instrument;

use super::routes;
use crate::{
    app::{App, fresh_id},
    error::{ApiError, ApiResult},
};

/// The header that carries a request's id in and out.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Maximum bytes of an id that is taken over from a client.
const ID_BYTES: usize = 128;
/// Maximum bytes of an id that a client asks to abort. Ids of the SGLang gateway may
/// have any length; its own port aborts longer ones.
const SOUGHT_ID_BYTES: usize = 1024;
/// Prefix of the id of a chat's answer; the rest is the request's id.
pub(super) const CHAT: &str = "chatcmpl";
/// Prefix of the id of a completion's answer.
pub(super) const COMPLETION: &str = "cmpl";

/// Id of an HTTP request: the client's, or a random one.
#[derive(Debug, Clone)]
pub(super) struct RequestId(pub Arc<str>);

impl RequestId {
    /// Returns the id of the answer, which begins with [`CHAT`] or [`COMPLETION`].
    pub(super) fn object(&self, prefix: &str) -> String {
        answer_id(prefix, &self.0)
    }
}

/// Returns the possible ids in the engine of the request with the client's id `id`. The
/// client may mean an id that it chose, or the id of an answer.
///
/// # Errors
/// An invalid `field`, for an id that is too long.
pub(crate) fn known_as(field: &'static str, id: &str) -> ApiResult<Vec<String>> {
    if id.len() > SOUGHT_ID_BYTES {
        let message = format!(
            "'{field}' has {} bytes; ids have at most {SOUGHT_ID_BYTES}.",
            id.len()
        );
        return Err(ApiError::invalid(field, message));
    }
    let answers = [CHAT, COMPLETION].map(|prefix| answer_id(prefix, id));
    Ok([id.to_owned()].into_iter().chain(answers).collect())
}

fn answer_id(prefix: &str, id: &str) -> String {
    format!("{prefix}-{id}")
}

/// Gives the request an id and a tracing span, and counts the answer.
pub(super) async fn identify(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response<Body> {
    let id = client_id(request.headers()).unwrap_or_else(|| fresh_id().into());
    request.extensions_mut().insert(RequestId(id.clone()));
    let path = request.extensions().get::<MatchedPath>();
    // All unknown paths share one label, so that there are few labels.
    let route = path.map_or("other", |path| routes::label(path.as_str()));
    let span = tracing::info_span!("http", request = &*id, route);
    let mut response = next.run(request).instrument(span).await;
    app.metrics.answered(route, response.status().as_u16());
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

/// Returns the client's id if it is short and plain enough for logs.
pub(crate) fn client_id(headers: &HeaderMap) -> Option<Arc<str>> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    valid_id(id).then(|| id.into())
}

/// Returns true if an id can stand in logs and headers as it is.
fn valid_id(id: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
    (1..=ID_BYTES).contains(&id.len()) && id.bytes().all(plain)
}

/// Refuses an id that a client gave in `field`.
///
/// # Errors
/// 400 for an id that is not a [`valid_id`].
pub(crate) fn check_id(field: &str, id: &str) -> ApiResult<()> {
    if valid_id(id) {
        return Ok(());
    }
    let id = &id[..id.floor_char_boundary(ID_BYTES)];
    let message = format!(
        "Invalid '{field}' {id:?}: expected 1 to {ID_BYTES} letters, digits and characters of \
         \"-_.:/\"."
    );
    Err(ApiError::invalid(field, message))
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

    #[test]
    fn ids_from_clients_are_short_and_plain() {
        assert!(valid_id("req-1:a/b.c_D"));
        for wrong in ["", "a b", "ä", "a\nb", &"x".repeat(129)] {
            assert!(!valid_id(wrong), "{wrong:?}");
        }
    }

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
