//! Answers for paths that are not served.

use axum::{
    extract::Request,
    http::{Method, StatusCode},
};

use crate::error::ApiError;

/// Paths of other servers' APIs, and advice about the route to use instead.
const ABSENT: &[(&[&str], &str)] = &[
    (
        &["/v1/responses"],
        "Nothing is stored: send the whole conversation to POST /v1/responses.",
    ),
    (
        &["/v1/messages"],
        "Send the conversation to POST /v1/messages, or to POST /v1/messages/count_tokens.",
    ),
    (
        &["/v1/threads", "/v1/assistants", "/api/chat"],
        "Send the conversation to POST /v1/chat/completions.",
    ),
    (
        &[
            "/completion",
            "/completions",
            "/api/generate",
            "/v1/generate",
            "/inference/v1/generate",
        ],
        "Send the prompt to POST /v1/completions or POST /generate.",
    ),
    (
        &["/chat/completions", "/models", "/api/tags"],
        "OpenAI's routes begin with /v1: give clients a base URL that ends in it.",
    ),
    (
        &[
            "/v1/embeddings",
            "/embeddings",
            "/embed",
            "/api/embed",
            "/v1/rerank",
            "/v2/rerank",
            "/rerank",
            "/v1/score",
            "/score",
            "/classify",
            "/pooling",
            "/v1/moderations",
            "/v1/audio",
            "/v1/images",
            "/v1/realtime",
        ],
        "This server generates text, and only that: POST /v1/chat/completions, POST \
         /v1/completions, POST /generate.",
    ),
    (
        &[
            "/v1/files",
            "/v1/batches",
            "/v1/fine_tuning",
            "/v1/uploads",
            "/v1/vector_stores",
        ],
        "Nothing is stored here; send each request to POST /v1/chat/completions or POST \
         /v1/completions.",
    ),
];

/// Returns a 404. For a path that other servers have, it names the route to use
/// instead.
pub(super) async fn unknown(request: Request) -> ApiError {
    let (method, path) = (request.method(), request.uri().path());
    let below = |known: &&&str| {
        let rest = path.strip_prefix(**known);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let instead = ABSENT
        .iter()
        .find(|(paths, _)| paths.iter().any(|known| below(&known)));
    let (code, message) = match instead {
        Some((_, instead)) => (
            Some("endpoint_not_served"),
            format!("{path} is not served here. {instead}"),
        ),
        None => (None, invalid_url(method, path)),
    };
    ApiError {
        status: StatusCode::NOT_FOUND,
        code,
        ..ApiError::bad_request(message)
    }
}

fn invalid_url(method: &Method, path: &str) -> String {
    format!("Invalid URL ({method} {path}). GET / and GET /openapi.json say what is served.")
}

/// Returns a 405.
pub(super) async fn wrong_method(request: Request) -> ApiError {
    let (method, path) = (request.method(), request.uri().path());
    ApiError {
        status: StatusCode::METHOD_NOT_ALLOWED,
        code: Some("method_not_supported"),
        ..ApiError::bad_request(format!(
            "Not allowed to {method} on {path}. (HINT: Perhaps you meant to use a different HTTP \
             method?)"
        ))
    }
}
