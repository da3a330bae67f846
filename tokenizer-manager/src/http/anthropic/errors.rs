//! Errors in the form of the Messages API.

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderName, HeaderValue, Response, StatusCode, header},
    middleware::Next,
};
use serde::Serialize;

use crate::{error::ApiError, http::middleware::RequestId};

/// Path of the API, and the beginning of its other paths.
const PATH: &str = "/v1/messages";
/// Header in which this API's clients look for the request's id.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// The API's error object.
#[derive(Serialize)]
pub(super) struct ErrorBody<'a> {
    r#type: &'static str,
    error: ErrorFields<'a>,
    request_id: &'a str,
}

#[derive(Serialize)]
struct ErrorFields<'a> {
    r#type: &'static str,
    message: &'a str,
}

/// Returns the error object for an error of the request `request_id`.
pub(super) fn body<'a>(error: &'a ApiError, request_id: &'a str) -> ErrorBody<'a> {
    ErrorBody {
        r#type: "error",
        error: ErrorFields {
            r#type: kind(error.status),
            message: &error.message,
        },
        request_id,
    }
}

fn kind(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::REQUEST_TIMEOUT => "timeout_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "api_error",
    }
}

/// Gives this API's form to every error on its paths, whichever layer made it, and tells the
/// request's id in the header that its clients read.
pub(in crate::http) async fn reshape(request: Request, next: Next) -> Response<Body> {
    let rest = request.uri().path().strip_prefix(PATH);
    let is_ours = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let id = request.extensions().get::<RequestId>();
    let Some(RequestId(id)) = id.filter(|_| is_ours).cloned() else {
        return next.run(request).await;
    };
    let mut response = next.run(request).await;
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let Some(error) = response.extensions().get::<ApiError>() else {
        return response;
    };
    let text = serde_json::to_string(&body(error, &id)).unwrap_or_default();
    response.headers_mut().remove(header::CONTENT_LENGTH);
    *response.body_mut() = Body::from(text);
    response
}
