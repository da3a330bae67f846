//! Answers of the loopback hub.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, Response, StatusCode, header};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;
use tokio::net::TcpListener;

use crate::faults::Fault;
use crate::models::{commit, is_large};
use crate::{Seen, State};

/// Bytes that are sent at a time.
const PIECE: usize = 16 << 10;

/// Pause between two bytes of a dripping answer.
const DROP: Duration = Duration::from_millis(20);

/// Serves one of the two ports.
pub(crate) async fn run(listener: std::net::TcpListener, state: Arc<State>, elsewhere: bool) {
    let routes = Router::new().fallback(move |request: Request| {
        let state = state.clone();
        async move { answer(&state, elsewhere, &request) }
    });
    if let Ok(listener) = TcpListener::from_std(listener) {
        let _ = axum::serve(listener, routes).await;
    }
}

fn answer(state: &State, elsewhere: bool, request: &Request) -> Response<Body> {
    let headers = request.headers();
    let path = request.uri().path().trim_start_matches('/');
    let parts: Vec<_> = path.split('/').collect();
    match parts.as_slice() {
        ["api", "models", owner, name, "revision", revision] => {
            list(state, headers, &format!("{owner}/{name}"), revision)
        }
        [owner, name, "resolve", _, file] => {
            file_of(state, headers, elsewhere, &format!("{owner}/{name}"), file)
        }
        _ => refusal(404, &[]),
    }
}

fn list(state: &State, headers: &HeaderMap, name: &str, revision: &str) -> Response<Body> {
    let mut inner = state.inner();
    inner.seen.push(seen(name, headers, false));
    let fault = inner.faults.next(name);
    match &fault {
        Some(Fault::Status(status, headers)) => return refusal(*status, headers),
        Some(Fault::Redirect(to)) => return redirect(to),
        _ => {}
    }
    let code = |code: &str| vec![("x-error-code", code.to_owned())];
    let Some(list) = inner.models.list(name) else {
        // Requests without a token do not learn whether the model exists.
        let status = match token(headers) {
            Some(_) => 404,
            None => 401,
        };
        return refusal(status, &code("RepoNotFound"));
    };
    match revision == "main" || revision == commit(name) {
        true => body(&Bytes::from(list.to_string()), 0, fault),
        false => refusal(404, &code("RevisionNotFound")),
    }
}

fn file_of(
    state: &State,
    headers: &HeaderMap,
    elsewhere: bool,
    name: &str,
    file: &str,
) -> Response<Body> {
    let mut inner = state.inner();
    inner.seen.push(seen(file, headers, elsewhere));
    let shown = token(headers);
    if !elsewhere && inner.token.is_some() && inner.token != shown {
        let message = format!("Access to model {name} is restricted");
        let status = if shown.is_some() { 403 } else { 401 };
        let headers = [
            ("x-error-code", "GatedRepo".to_owned()),
            ("x-error-message", message),
        ];
        return refusal(status, &headers);
    }
    if elsewhere && shown.is_some() {
        // The answer of real hubs' storage.
        return refusal(400, &[]);
    }
    let Some(content) = inner.models.file(name, file) else {
        let code = if inner.models.has(name) {
            "EntryNotFound"
        } else {
            "RepoNotFound"
        };
        return refusal(404, &[("x-error-code", code.to_owned())]);
    };
    if is_large(file) && !elsewhere {
        return redirect(&format!(
            "http://{}/{name}/resolve/main/{file}",
            state.storage
        ));
    }
    let fault = inner.faults.next(file);
    body(&content, first_byte(headers), fault)
}

/// The content from a byte on, or its faulty form.
fn body(content: &Bytes, from: usize, fault: Option<Fault>) -> Response<Body> {
    let from = if matches!(fault, Some(Fault::Whole)) {
        0
    } else {
        from
    };
    if from >= content.len() && from > 0 {
        return refusal(416, &[]);
    }
    let size = content.len();
    let mut rest = content.slice(from..).to_vec();
    let mut end = End::Whole;
    let mut says = Vec::new();
    match fault {
        Some(Fault::Status(status, headers)) => return refusal(status, &headers),
        Some(Fault::Redirect(to)) => return redirect(&to),
        Some(Fault::DropAfter(bytes)) => end = End::Broken(bytes),
        Some(Fault::StallAfter(bytes)) => end = End::Still(bytes),
        Some(Fault::Damaged) => {
            if let Some(byte) = rest.last_mut() {
                *byte ^= 1;
            }
        }
        Some(Fault::Short(bytes)) => rest.truncate(bytes),
        // Without a length, so that only counting tells the difference.
        Some(Fault::Longer) => {
            rest.push(0);
            end = End::Unsaid;
        }
        Some(Fault::Again) => rest = content.slice(..size - from).to_vec(),
        Some(Fault::Drip) => end = End::Drip,
        Some(Fault::Says(headers)) => says = headers,
        Some(Fault::Instead(other)) => rest = other,
        Some(Fault::Whole) | None => {}
    }
    let mut response = Response::builder();
    if from > 0 {
        let range = format!("bytes {from}-{}/{size}", size - 1);
        response = response
            .status(StatusCode::PARTIAL_CONTENT)
            .header(header::CONTENT_RANGE, range);
    }
    if !matches!(end, End::Unsaid) {
        response = response.header(header::CONTENT_LENGTH, rest.len());
    }
    let response = response.body(streamed(&Bytes::from(rest), &end));
    let mut response = response.unwrap_or_else(|_| refusal(500, &[]));
    for (name, value) in says {
        if let Ok(value) = value.parse() {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// End of a body.
enum End {
    Whole,
    /// The whole body, without its length told before.
    Unsaid,
    Broken(usize),
    Still(usize),
    Drip,
}

fn streamed(rest: &Bytes, end: &End) -> Body {
    let sent = match end {
        End::Whole | End::Unsaid | End::Drip => rest.len(),
        End::Broken(bytes) | End::Still(bytes) => rest.len().min(*bytes),
    };
    let pieces: Vec<_> = rest
        .slice(..sent)
        .chunks(if matches!(end, End::Drip) { 1 } else { PIECE })
        .map(|piece| Ok(Bytes::copy_from_slice(piece)))
        .collect();
    let pieces = stream::iter(pieces);
    match end {
        End::Whole | End::Unsaid => Body::from_stream(pieces),
        End::Broken(_) => {
            let broken = async {
                // Earlier bytes go out while the body is waited for.
                tokio::task::yield_now().await;
                io::Result::<Bytes>::Err(io::Error::other("broken"))
            };
            Body::from_stream(pieces.chain(stream::once(broken)))
        }
        End::Drip => Body::from_stream(pieces.then(|piece| async {
            tokio::time::sleep(DROP).await;
            piece
        })),
        End::Still(_) => Body::from_stream(pieces.chain(stream::pending())),
    }
}

fn refusal(status: u16, headers: &[(&'static str, String)]) -> Response<Body> {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, value);
    }
    response.body(Body::empty()).unwrap_or_default()
}

fn redirect(to: &str) -> Response<Body> {
    refusal(302, &[("location", to.to_owned())])
}

fn seen(what: &str, headers: &HeaderMap, elsewhere: bool) -> Seen {
    Seen {
        what: what.to_owned(),
        from: first_byte(headers) as u64,
        token: token(headers),
        elsewhere,
    }
}

fn token(headers: &HeaderMap) -> Option<String> {
    let shown = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    Some(shown.trim_start_matches("Bearer ").to_owned())
}

/// The first byte of a range `bytes=N-`.
fn first_byte(headers: &HeaderMap) -> usize {
    let range = headers
        .get(header::RANGE)
        .and_then(|range| range.to_str().ok());
    let first = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
    first.and_then(|first| first.parse().ok()).unwrap_or(0)
}
