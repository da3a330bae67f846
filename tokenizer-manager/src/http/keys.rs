//! Layers that ask for the keys of clients and operators.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, Response, header},
    middleware::Next,
};

use super::middleware::is_open;
use crate::{app::App, error::ApiError};

/// Header that carries a key in Anthropic's API.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Checks the key of `Authorization`, or else that of `x-api-key`.
fn check(
    request: &Request,
    check: impl Fn(Option<&[u8]>) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    let headers = request.headers();
    let bearer = headers.get(header::AUTHORIZATION);
    let checked = check(bearer.map(HeaderValue::as_bytes));
    match headers.get(API_KEY) {
        Some(key) if checked.is_err() => {
            let bearer = [b"Bearer ", key.as_bytes()].concat();
            check(Some(&bearer))
        }
        _ => checked,
    }
}

/// Requires the clients' key on every route but `/health` and `/ping`.
pub(super) async fn clients(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    if !is_open(&request)
        && let Err(error) = check(&request, |shown| app.keys.check_client(shown))
    {
        return error.into_http();
    }
    next.run(request).await
}

/// Requires the operators' key.
pub(super) async fn operators(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    if let Err(error) = check(&request, |shown| app.keys.check_operator(shown)) {
        return error.into_http();
    }
    next.run(request).await
}
