//! Request bodies: JSON within limits, and errors that name the field.

mod encoding;
mod explain;
mod structure;

use std::{error::Error, sync::Arc};

use axum::{
    body::Body,
    extract::{FromRequest, Request},
    http::{HeaderMap, StatusCode, header},
};
use encoding::Encoding;
use explain::explain;
use http_body_util::BodyExt as _;
use lockstep_ports::{BodyError, RequestMemory};
use lockstep_types::request::{ErrorKind, RequestError};
use serde::de::DeserializeOwned;
use structure::Structure;

use super::json::Object;
use crate::{
    app::App,
    error::{ApiError, ApiResult},
    text::{LARGE, most_counted},
};

/// Bodies up to this size in bytes are parsed on the caller's thread. That takes about
/// a tenth of a millisecond.
const INLINE_BYTES: usize = 64 * 1024;

/// A JSON body of type `T`.
pub(super) struct Json<T>(pub T);

impl<T: DeserializeOwned + Send + 'static> FromRequest<Arc<App>> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> ApiResult<Self> {
        read_json(request, app, |body| parse(body).map(Self)).await
    }
}

/// Reads a JSON body within the limits and applies `parse` to it. Large bodies are
/// parsed on a thread of their own.
pub(super) async fn read_json<T: Send + 'static>(
    request: Request,
    app: &App,
    parse: impl FnOnce(&[u8]) -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    is_json(request.headers())?;
    let encoding = Encoding::of(request.headers())?;
    let limits = &app.config.server.limits;
    let most = limits.body_bytes;
    let held = request.extensions().get::<RequestMemory>().cloned();
    let body = read(request, most).await?;
    let structure = Structure {
        depth: limits.json_depth,
        // A client may send as many values as it may have counted by `tokenize`.
        plain: most_counted(&app.config.server),
    };
    let body = match encoding {
        Encoding::Identity => body,
        Encoding::Gzip => {
            let held = held.clone();
            // The decoded size is not known in advance. It is charged as it grows, so
            // decoding waits for no turn.
            let decode = move || encoding.decode(body, most, held.as_ref());
            app.text.pool.run(LARGE, decode).await??
        }
    };
    let bytes = body.len();
    let parse = move || {
        let becomes = structure.check(&body)?;
        if let Some(held) = &held {
            held.charge(becomes)?;
        }
        parse(&body)
    };
    if bytes <= INLINE_BYTES {
        return parse();
    }
    app.text.pool.run(bytes, parse).await?
}

/// Checks the content type. A missing type is taken for JSON; any type but JSON is
/// refused.
fn is_json(headers: &HeaderMap) -> ApiResult<()> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return Ok(());
    };
    let media = value.to_str().unwrap_or_default();
    let media = media.split(';').next().unwrap_or_default().trim();
    let json = media.eq_ignore_ascii_case("application/json")
        || media.to_ascii_lowercase().ends_with("+json");
    if json || media.is_empty() {
        return Ok(());
    }
    Err(ApiError {
        status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
        ..ApiError::bad_request(format!(
            "Unsupported Content-Type {media:?}: send the body as 'application/json'."
        ))
    })
}

/// Reads the whole body. Memory grows as bytes arrive: bytes that are announced but not
/// sent take none.
async fn read(request: Request, limit: usize) -> ApiResult<Vec<u8>> {
    let announced = request
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|bytes| bytes > limit) {
        return Err(too_large(limit));
    }
    let mut body: Body = request.into_body();
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        // Trailers are ignored.
        let Ok(data) = frame.map_err(|error| unreadable(&error))?.into_data() else {
            continue;
        };
        if data.len() > limit - all.len() {
            return Err(too_large(limit));
        }
        all.extend_from_slice(&data);
    }
    Ok(all)
}

fn unreadable(error: &axum::Error) -> ApiError {
    match cause::<BodyError>(error) {
        Some(BodyError::Slow(_)) => {
            RequestError::new(ErrorKind::Timeout, "The request's body came too slowly.").into()
        }
        Some(BodyError::Silent(_)) => RequestError::new(
            ErrorKind::Timeout,
            "Nothing of the request's body came for too long while other requests waited for \
             memory: send it without such a pause.",
        )
        .into(),
        Some(BodyError::OverBudget(status)) => {
            RequestError::new(ErrorKind::Overloaded, status.message()).into()
        }
        _ => ApiError::bad_request(format!("The request's body could not be read: {error}")),
    }
}

fn too_large(limit: usize) -> ApiError {
    ApiError {
        status: StatusCode::PAYLOAD_TOO_LARGE,
        code: Some("request_too_large"),
        ..ApiError::bad_request(format!(
            "The request's body is larger than the limit of {limit} bytes."
        ))
    }
}

/// Returns the first of an error's causes that is an `E`.
fn cause<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.into_iter().find_map(|error| error.downcast_ref())
}

/// Parses a body, which must be an object; the error names the field at fault.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> ApiResult<T> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let Object(value) = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        explain(body, &path, error.inner())
    })?;
    deserializer
        .end()
        .map_err(|error| explain(body, ".", &error))?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Sample {
        a: Option<i64>,
        b: Vec<u32>,
    }

    #[test]
    fn errors_name_the_field() {
        let case = |body: &str| {
            let error = parse::<Sample>(body.as_bytes()).expect_err("faulty");
            (error.param, error.code)
        };
        let param = |name: &str| Some(name.to_owned());
        assert_eq!(
            case(r#"{"a": 1.5, "b": []}"#),
            (param("a"), Some("invalid_type"))
        );
        assert_eq!(case(r#"{"b": [1, -1]}"#), (param("b[1]"), None));
        assert_eq!(case("{}"), (param("b"), Some("missing_required_parameter")));
        for broken in [
            "",
            "{",
            "[]x",
            " [null, [1]]",
            r#"{"b": []} {}"#,
            r#"{"a": 1e999, "b": []}"#,
        ] {
            assert_eq!(case(broken).0, None, "{broken}");
        }
        let ok = parse::<Sample>(br#"{"b": [1], "unknown": {}}"#);
        assert_eq!(
            ok,
            Ok(Sample {
                a: None,
                b: vec![1]
            })
        );
    }
}
