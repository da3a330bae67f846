//! Errors as clients see them, the same on every surface.

use axum::{
    body::Body,
    http::{HeaderValue, Response, StatusCode, header},
};
use lockstep_ports::OverBudget;
use lockstep_types::request::{ErrorKind, RequestError};
use lockstep_types::sampling::InvalidField;
use serde::Serialize;

/// Seconds after which a client may try again, if no better number is known.
const RETRY_AFTER_S: u32 = 1;

/// Maximum bytes of a message. A message may repeat text that a client sent, and over
/// gRPC it is a header. Most clients accept 16 KiB of headers in all.
const LONGEST_MESSAGE: usize = 1024;
/// Maximum bytes of a field's name. The name may be a key that the client chose.
const LONGEST_PARAM: usize = 256;

/// One refusal: an HTTP status with OpenAI's error object, or the matching gRPC status. A
/// response keeps its error as an extension, for the access log and for APIs whose errors have
/// another form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// The HTTP status.
    pub status: StatusCode,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// OpenAI's `code`.
    pub code: Option<&'static str>,
    /// The problem, and the advice how to solve it.
    pub message: String,
    /// The request field at fault.
    pub param: Option<String>,
    /// Seconds after which the client may try again.
    pub retry_after_s: Option<u32>,
}

/// Shorthand for results whose error a client may see.
pub type ApiResult<T> = Result<T, ApiError>;

/// OpenAI's error object.
#[derive(Serialize)]
pub struct ErrorBody<'a> {
    error: ErrorFields<'a>,
}

#[derive(Serialize)]
struct ErrorFields<'a> {
    message: &'a str,
    r#type: &'a str,
    param: Option<&'a str>,
    code: Option<&'a str>,
}

impl ApiError {
    /// An error without a field at fault.
    pub fn new(
        status: StatusCode,
        kind: &'static str,
        code: Option<&'static str>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            status,
            kind,
            code,
            message: shortened(message.into(), LONGEST_MESSAGE),
            param: None,
            retry_after_s: None,
        }
    }

    /// Returns a 400: the value of the field `param` is invalid.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            param: Some(shortened(param.into(), LONGEST_PARAM)),
            ..Self::bad_request(message)
        }
    }

    /// Returns a 400 that names no field.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "invalid_request_error",
            None,
            message,
        )
    }

    /// Returns a 400 for a feature of OpenAI's API that this version does not support.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: Some("unsupported_parameter"),
            ..Self::invalid(param, message)
        }
    }

    /// Returns a 503: the server is starting, draining or without a scheduler.
    pub fn unavailable(message: impl Into<String>) -> Self {
        RequestError::new(ErrorKind::Unavailable, message).into()
    }

    /// Returns a 500.
    pub fn internal(message: impl Into<String>) -> Self {
        RequestError::new(ErrorKind::Internal, message).into()
    }

    /// Returns the error of a request that was aborted, by its id or with all others.
    pub fn aborted() -> Self {
        Self {
            code: Some("request_aborted"),
            ..Self::bad_request("The request was aborted, by its id or by an operator.")
        }
    }

    /// Returns OpenAI's `code`, or the `type` if there is no code. Operators search
    /// logs for it.
    pub fn code(&self) -> &'static str {
        self.code.unwrap_or(self.kind)
    }

    /// OpenAI's error object for this error.
    pub fn body(&self) -> ErrorBody<'_> {
        ErrorBody {
            error: ErrorFields {
                message: &self.message,
                r#type: self.kind,
                param: self.param.as_deref(),
                code: self.code,
            },
        }
    }

    /// The error object as JSON text.
    pub fn json(&self) -> String {
        serde_json::to_string(&self.body()).unwrap_or_default()
    }

    /// The whole HTTP response.
    pub fn into_http(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.json()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        if self.status == StatusCode::UNAUTHORIZED {
            // RFC 9110, section 11.6.1: a 401 names the scheme that it requires.
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(self);
        response
    }

    /// The gRPC status; `retry-after` and the field at fault travel as metadata.
    pub fn into_status(self) -> tonic::Status {
        let code = match self.status {
            StatusCode::BAD_REQUEST if self.code == Some("request_aborted") => tonic::Code::Aborted,
            StatusCode::UNAUTHORIZED => tonic::Code::Unauthenticated,
            StatusCode::NOT_FOUND => tonic::Code::NotFound,
            StatusCode::CONFLICT => tonic::Code::FailedPrecondition,
            StatusCode::REQUEST_TIMEOUT => tonic::Code::DeadlineExceeded,
            StatusCode::TOO_MANY_REQUESTS => tonic::Code::ResourceExhausted,
            StatusCode::SERVICE_UNAVAILABLE => tonic::Code::Unavailable,
            status if status.is_client_error() => tonic::Code::InvalidArgument,
            _ => tonic::Code::Internal,
        };
        let mut status = tonic::Status::new(code, self.message);
        let metadata = status.metadata_mut();
        if let Some(seconds) = self.retry_after_s {
            metadata.insert("retry-after", seconds.into());
        }
        if let Some(param) = self.param.and_then(|param| param.parse().ok()) {
            metadata.insert("param", param);
        }
        status
    }
}

/// Shortens `text` to about `most` bytes. Keeps the start, and the end, where a message
/// gives advice.
pub fn shortened(text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let start = text.floor_char_boundary(most - most / 4);
    let end = text.ceil_char_boundary(text.len() - most / 4);
    format!("{}…{}", &text[..start], &text[end..])
}

/// The only mapping from the scheduler's errors to the errors that clients see.
impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        let (status, kind, code) = match error.kind {
            ErrorKind::Invalid => (StatusCode::BAD_REQUEST, "invalid_request_error", None),
            ErrorKind::Overloaded => (
                StatusCode::TOO_MANY_REQUESTS,
                "rate_limit_error",
                Some("rate_limit_exceeded"),
            ),
            ErrorKind::Unavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "server_error",
                Some("service_unavailable"),
            ),
            ErrorKind::Timeout => (
                StatusCode::REQUEST_TIMEOUT,
                "timeout_error",
                Some("request_timeout"),
            ),
            ErrorKind::Internal => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "server_error",
                Some("internal_error"),
            ),
            ErrorKind::NotFound => (
                StatusCode::NOT_FOUND,
                "invalid_request_error",
                Some("model_not_found"),
            ),
            ErrorKind::Conflict => (StatusCode::CONFLICT, "invalid_request_error", None),
        };
        let retry = matches!(error.kind, ErrorKind::Overloaded | ErrorKind::Unavailable);
        let param = |param| shortened(param, LONGEST_PARAM);
        Self {
            param: error.param.map(param),
            retry_after_s: retry.then(|| error.retry_after_s.unwrap_or(RETRY_AFTER_S)),
            ..Self::new(status, kind, code, error.message)
        }
    }
}

impl From<OverBudget> for ApiError {
    fn from(over: OverBudget) -> Self {
        RequestError::new(ErrorKind::Overloaded, over.to_string()).into()
    }
}

impl From<InvalidField> for ApiError {
    fn from(error: InvalidField) -> Self {
        let InvalidField { field, message } = error;
        Self::invalid(field, format!("Invalid value for '{field}': {message}."))
    }
}

impl axum::response::IntoResponse for ApiError {
    fn into_response(self) -> axum::response::Response {
        self.into_http()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_http_and_grpc_status() {
        for (kind, status, code, retry) in [
            (ErrorKind::Invalid, 400, tonic::Code::InvalidArgument, None),
            (
                ErrorKind::Overloaded,
                429,
                tonic::Code::ResourceExhausted,
                Some(1),
            ),
            (
                ErrorKind::Unavailable,
                503,
                tonic::Code::Unavailable,
                Some(1),
            ),
            (ErrorKind::Timeout, 408, tonic::Code::DeadlineExceeded, None),
            (ErrorKind::Internal, 500, tonic::Code::Internal, None),
            (ErrorKind::NotFound, 404, tonic::Code::NotFound, None),
            (
                ErrorKind::Conflict,
                409,
                tonic::Code::FailedPrecondition,
                None,
            ),
        ] {
            let error = ApiError::from(RequestError::new(kind, "why"));
            assert_eq!(
                (error.status.as_u16(), error.retry_after_s),
                (status, retry)
            );
            assert_eq!(error.into_status().code(), code);
        }
    }

    #[test]
    fn the_field_at_fault_is_told_whoever_finds_it() {
        let error = ApiError::from(RequestError {
            param: Some("seed".to_owned()),
            ..RequestError::new(ErrorKind::Invalid, "why")
        });
        assert!(error.json().contains(r#""param":"seed""#), "{error:?}");
        let status = error.into_status();
        assert_eq!(status.metadata().get("param").expect("a field"), "seed");
    }

    #[test]
    fn long_texts_keep_their_start_and_their_end() {
        for text in ["", "short", "just 16 bytes…"] {
            assert_eq!(shortened(text.to_owned(), 16), text);
        }
        assert_eq!(shortened("a".repeat(9) + "bcdefghi", 8), "aaaaaa…hi");
        assert_eq!(shortened("ä€𝄞".repeat(9), 8), "ä€…");
        let error = ApiError::invalid("k".repeat(9999), "ä".repeat(9999) + "!");
        let param = error.param.as_deref().unwrap_or_default();
        assert!(error.message.len() <= 1027 && param.len() <= 259);
        assert!(error.message.ends_with('!'));
    }

    #[test]
    fn the_error_object_has_all_four_keys() {
        let error = ApiError::bad_request("no \"quotes\" lost");
        assert_eq!(
            error.json(),
            r#"{"error":{"message":"no \"quotes\" lost","type":"invalid_request_error","param":null,"code":null}}"#
        );
    }
}
