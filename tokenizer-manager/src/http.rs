//! The HTTP front: OpenAI's API, SGLang's native API, and what operators need.

mod absent;
mod access;
mod admin;
mod body;
mod browsers;
mod chat;
mod completions;
mod corpora;
mod info;
mod json;
mod keys;
mod middleware;
mod models;
mod native;
mod openai;
mod sampling;
mod speculation;
mod sse;
mod tokenize;
mod unsupported;
mod weights;

use std::sync::Arc;

use axum::{
    Router,
    middleware::{from_fn, from_fn_with_state},
    routing::{any, delete, get, post},
};
pub(crate) use chat::convert::messages::check as check_messages;
pub use keys::Keys;
pub(crate) use middleware::valid_id;
use tower_http::catch_panic::CatchPanicLayer;

use crate::{
    app::App,
    error::{ApiError, ApiResult},
};

/// All routes.
pub fn router(app: Arc<App>) -> Router {
    let cors = tower::util::option_layer(browsers::cors(&app.config.server.web));
    clients()
        .merge(operators(&app))
        .fallback(any(absent::unknown))
        .method_not_allowed_fallback(absent::wrong_method)
        .layer(from_fn_with_state(app.clone(), keys::clients))
        .layer(from_fn_with_state(app.clone(), browsers::guard))
        .layer(cors)
        .layer(from_fn_with_state(app.clone(), middleware::limit_headers))
        .layer(CatchPanicLayer::custom(middleware::panicked))
        .layer(from_fn(access::log))
        .layer(from_fn_with_state(app.clone(), middleware::identify))
        .with_state(app)
}

/// What every client may ask.
fn clients() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(info::index))
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::retrieve))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/generate", post(native::generate))
        .route("/health", get(admin::health))
        .route("/ping", get(admin::health))
        .route("/version", get(info::version))
        .route("/health_generate", get(admin::health_generate))
        .route("/model_info", get(info::model_info))
        .route("/get_model_info", get(info::model_info))
        .route("/server_info", get(info::server_info))
        .route("/get_server_info", get(info::server_info))
        .route("/speculation", get(speculation::show))
        .route("/ngram/corpus", get(corpora::list))
        .route("/list_external_corpora", get(corpora::list_external))
        .route("/metrics", get(admin::metrics))
}

/// What changes the server for everybody.
fn operators(app: &Arc<App>) -> Router<Arc<App>> {
    let flush = get(admin::flush_cache).layer(from_fn(browsers::no_page));
    Router::new()
        .route("/flush_cache", flush.post(admin::flush_cache))
        .route("/abort_request", post(admin::abort_request))
        .route("/speculation", post(speculation::set))
        .route("/ngram/corpus", post(corpora::add))
        .route("/ngram/corpus/{*name}", delete(corpora::remove))
        .route("/add_external_corpus", post(corpora::add_external))
        .route("/remove_external_corpus", post(corpora::remove_external))
        .route("/update_weights_from_disk", post(weights::update_from_disk))
        .route_layer(from_fn_with_state(app.clone(), keys::operators))
}

/// A JSON answer.
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
