//! The HTTP front: the APIs of OpenAI and Anthropic, SGLang's native API, and routes for
//! operators.

mod access;
mod adapters;
mod admin;
mod allowed_folder;
mod anthropic;
mod body;
mod browsers;
mod console;
mod constraint;
mod conversation;
mod corpora;
mod fields;
mod info;
mod json;
mod keys;
mod loads;
mod middleware;
mod native;
mod not_found;
mod openai;
mod openapi;
mod requests;
mod routes;
mod sampling;
mod speculation;
mod sse;
mod thinking;
mod tokenize;
mod tools;
mod traced;
mod unsupported;
mod weights;

use std::sync::Arc;

use axum::{
    Router,
    middleware::{from_fn, from_fn_with_state},
    routing::any,
};
use tower_http::catch_panic::CatchPanicLayer;

use crate::{
    app::App,
    error::{ApiError, ApiResult},
};

/// Returns the router of all routes.
pub fn router(app: Arc<App>) -> Router {
    let cors = tower::util::option_layer(browsers::cors(&app.config.server.web));
    let operators =
        routes::operators().route_layer(from_fn_with_state(app.clone(), keys::operators));
    let scheme = if app.is_encrypted { "https" } else { "http" };
    let traced = app
        .traces
        .clone()
        .map(|traces| from_fn_with_state((traces, scheme), traced::trace));
    routes::clients()
        .merge(operators)
        .layer(tower::util::option_layer(traced))
        .fallback(any(not_found::unknown))
        .method_not_allowed_fallback(not_found::wrong_method)
        .layer(from_fn_with_state(app.clone(), keys::clients))
        .merge(console::router(&app.config.server.web))
        .layer(from_fn_with_state(app.clone(), browsers::guard))
        .layer(cors)
        .layer(from_fn_with_state(app.clone(), middleware::limit_headers))
        .layer(CatchPanicLayer::custom(middleware::panicked))
        .layer(from_fn(anthropic::reshape))
        .layer(from_fn(access::log))
        .layer(from_fn_with_state(app.clone(), middleware::identify))
        .with_state(app)
}

/// Returns a JSON answer.
fn json<T: serde::Serialize>(value: &T) -> ApiResult<axum::response::Response> {
    use axum::{
        body::Body,
        http::{HeaderValue, header},
    };
    let text = serde_json::to_vec(value)
        .map_err(|error| ApiError::internal(format!("The answer could not be written: {error}")))?;
    let mut response = axum::response::Response::new(Body::from(text));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    Ok(response)
}
