//! Layers that ask for the keys of clients and operators.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, Response, header},
    middleware::Next,
};

use super::middleware::is_open;
use crate::app::App;

fn shown(request: &Request) -> Option<&[u8]> {
    let header = request.headers().get(header::AUTHORIZATION);
    header.map(HeaderValue::as_bytes)
}

/// Requires the clients' key on every route but `/health` and `/ping`.
pub(super) async fn clients(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    if !is_open(&request)
        && let Err(error) = app.keys.check_client(shown(&request))
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
    if let Err(error) = app.keys.check_operator(shown(&request)) {
        return error.into_http();
    }
    next.run(request).await
}
