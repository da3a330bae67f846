//! `/console`: a page for operators that shows the server's figures and requests, and
//! has a place to try a chat.
//!
//! The page's files are compiled into the program and hold nothing of the server. They
//! are served without a key, since a browser sends none when it opens a page. The
//! page's own requests need the key that its reader types, like any other client's.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use lockstep_types::WebConfig;

use super::not_found::wrong_method;
use crate::app::App;

/// Path of the page. Also the label of all its files in metrics.
pub(super) const PATH: &str = "/console";
/// Redirect target for a path with a slash at its end. It is relative, so it also works
/// behind a proxy that serves the whole server below a path of its own.
const WITHOUT_SLASH: &str = "../console";

/// A file of the page.
struct File {
    path: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

macro_rules! files {
    ($($path:literal $kind:literal $file:literal;)*) => {
        &[$(File {
            path: $path,
            kind: $kind,
            bytes: include_bytes!(concat!("console/", $file)),
        }),*]
    };
}

/// All files that are served, each under its whole path. No path is derived from a
/// request.
const FILES: &[File] = files! {
    "/console" "text/html; charset=utf-8" "index.html";
    "/console/console.css" "text/css; charset=utf-8" "console.css";
    "/console/main.js" "text/javascript; charset=utf-8" "main.js";
    "/console/api.js" "text/javascript; charset=utf-8" "api.js";
    "/console/metrics.js" "text/javascript; charset=utf-8" "metrics.js";
    "/console/charts.js" "text/javascript; charset=utf-8" "charts.js";
    "/console/overview.js" "text/javascript; charset=utf-8" "overview.js";
    "/console/speculation.js" "text/javascript; charset=utf-8" "speculation.js";
    "/console/requests.js" "text/javascript; charset=utf-8" "requests.js";
    "/console/chat.js" "text/javascript; charset=utf-8" "chat.js";
    "/console/answer.js" "text/javascript; charset=utf-8" "answer.js";
    "/console/page.js" "text/javascript; charset=utf-8" "page.js";
    "/console/icon.svg" "image/svg+xml" "icon.svg";
};

/// Headers of every file. The page may run, show and request nothing but this server's
/// own files. No other page may show it in a frame, where its reader could be led to
/// abort requests unknowingly. No referrer is sent to others. A browser may cache a
/// file but must revalidate it each time, so that after an upgrade no page mixes two
/// versions.
const HEADERS: [(HeaderName, &str); 8] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("permissions-policy"),
        "camera=(), microphone=(), geolocation=()",
    ),
    (header::CACHE_CONTROL, "no-cache"),
];

/// Returns the routes of the console; none if the console is off.
pub(super) fn router(web: &WebConfig) -> Router<Arc<App>> {
    let mut router = Router::new();
    if !web.console {
        return router;
    }
    for file in FILES {
        let tag = tag(file.bytes);
        let route = get(async move |headers: HeaderMap| answer(file, &tag, &headers));
        router = router.route(file.path, route);
    }
    let moved = || async {
        (
            StatusCode::PERMANENT_REDIRECT,
            [(header::LOCATION, WITHOUT_SLASH)],
        )
    };
    router
        .route("/console/", get(moved))
        .method_not_allowed_fallback(wrong_method)
}

/// Returns true for the paths of the console.
pub(super) fn has(path: &str) -> bool {
    let rest = path.strip_prefix(PATH);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the file, or 304 if the browser has it already.
fn answer(file: &File, tag: &HeaderValue, asked: &HeaderMap) -> Response {
    let had = asked
        .get(header::IF_NONE_MATCH)
        .and_then(|list| list.to_str().ok());
    let known = had.is_some_and(|list| {
        let tags = list
            .split(',')
            .map(|one| one.trim().trim_start_matches("W/"));
        tags.into_iter().any(|one| one.as_bytes() == tag.as_bytes())
    });
    let mut response = match known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => Response::new(Body::from(file.bytes)),
    };
    let headers = response.headers_mut();
    if !known {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.kind));
    }
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(header::ETAG, tag.clone());
    response
}

/// Returns a file's entity tag (RFC 9110, section 8.8.3), which differs for each
/// content.
fn tag(bytes: &[u8]) -> HeaderValue {
    let mut hasher = DefaultHasher::new();
    (env!("CARGO_PKG_VERSION"), bytes).hash(&mut hasher);
    let tag = format!("\"{:016x}\"", hasher.finish());
    // Hexadecimal digits are always a valid header value; an empty tag would match
    // nothing.
    HeaderValue::from_str(&tag).unwrap_or(HeaderValue::from_static(""))
}
