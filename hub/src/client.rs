//! Requests to a hub. Redirects are followed, and refusals told apart.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderMap};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;

use crate::connect::{Tcp, connector};
use crate::minimum_rate::MinimumRate;
use crate::{Settings, Token, TransferLimits};

/// The most bytes of a redirect's target.
const LONGEST_TARGET: usize = 16 << 10;

/// The most redirects of one request.
const MOST_REDIRECTS: usize = 8;

/// A client of one hub, for one user.
#[derive(Clone)]
pub(crate) struct Client {
    http: legacy::Client<HttpsConnector<Tcp>, Empty<Bytes>>,
    token: Option<Token>,
    limits: TransferLimits,
}

/// The body of an answer, behind its head.
pub(crate) struct Body {
    incoming: Incoming,
    stall: Duration,
    minimum_rate: MinimumRate,
}

/// The reason why an answer did not come, or only in part.
#[derive(Debug)]
pub(crate) enum Failure {
    /// No connection.
    Away(String),
    /// The connection broke or stood still, or the answer asks for another try.
    Broken(String),
    /// The hub asks for a pause, of this length if it says so.
    Busy(Option<Duration>),
    /// An answer with another status than success.
    Status(Refusal),
    /// A failure that no retry can mend.
    Wrong(String),
}

/// An answer that says no.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    /// The hub's `X-Error-Code`: `GatedRepo`, `RepoNotFound`, `RevisionNotFound`.
    pub(crate) code: String,
    /// The hub's `X-Error-Message`.
    pub(crate) message: String,
}

impl Client {
    pub(crate) fn new(settings: &Settings) -> io::Result<Self> {
        let limits = settings.limits;
        let connector = connector(limits.stall)?;
        Ok(Self {
            http: legacy::Client::builder(TokioExecutor::new()).build(connector),
            token: settings.token.clone(),
            limits,
        })
    }

    /// Returns a copy of this client with another patience.
    pub(crate) fn with(&self, limits: TransferLimits) -> Self {
        Self {
            limits,
            ..self.clone()
        }
    }

    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Requests the content at `address` from byte `from` on. The status is 200, or 206 for
    /// a part.
    pub(crate) async fn get(
        &self,
        address: &str,
        from: u64,
    ) -> Result<Response<Incoming>, Failure> {
        let window = self.limits.window;
        let late = || {
            Failure::Broken(format!(
                "the answer did not begin within {window:?}, redirects and all"
            ))
        };
        let answer = timeout(window, self.follow(address, from)).await;
        answer.map_err(|_| late())?
    }

    /// Follows redirects for [`Self::get`], without a time limit.
    async fn follow(&self, address: &str, from: u64) -> Result<Response<Incoming>, Failure> {
        let wrong = |why: &str| Failure::Wrong(format!("{why}: {address}"));
        let home: Uri = address.parse().map_err(|_| wrong("no address"))?;
        let mut uri = home.clone();
        for _ in 0..=MOST_REDIRECTS {
            let answer = self.ask(&uri, from, is_same_origin(&uri, &home)).await?;
            let status = answer.status();
            if !status.is_redirection() {
                return checked(answer);
            }
            let next = target(answer.headers()).and_then(|target| redirected(&uri, target));
            uri = next.ok_or_else(|| wrong("a redirect that leads nowhere"))?;
        }
        Err(wrong("redirects without an end"))
    }

    /// Sends one request. The token is for the hub alone, and no other host sees it.
    async fn ask(
        &self,
        uri: &Uri,
        from: u64,
        is_home: bool,
    ) -> Result<Response<Incoming>, Failure> {
        let mut request = Request::get(uri)
            .header(
                header::USER_AGENT,
                concat!("lockstep/", env!("CARGO_PKG_VERSION")),
            )
            .header(header::ACCEPT_ENCODING, "identity");
        if from > 0 {
            request = request.header(header::RANGE, format!("bytes={from}-"));
        }
        if let Some(token) = self.token.as_ref().filter(|_| is_home) {
            request = request.header(header::AUTHORIZATION, token.header());
        }
        let request = request.body(Empty::new());
        let request = request.map_err(|error| Failure::Wrong(error.to_string()))?;
        let stall = self.limits.stall;
        match timeout(stall, self.http.request(request)).await {
            Ok(Err(error)) if error.is_connect() => Err(Failure::Away(causes(&error))),
            Ok(answer) => answer.map_err(|error| Failure::Broken(causes(&error))),
            Err(_) => Err(stalled(stall)),
        }
    }

    /// The body behind the head of an answer; its time counts from now on.
    pub(crate) fn body(&self, answer: Response<Incoming>) -> Body {
        Body {
            incoming: answer.into_body(),
            stall: self.limits.stall,
            minimum_rate: MinimumRate::new(self.limits),
        }
    }

    /// A whole answer of at most `most` bytes.
    pub(crate) async fn read(&self, address: &str, most: usize) -> Result<Vec<u8>, Failure> {
        let too_large = || Failure::Wrong(format!("the answer has more than {most} bytes"));
        let answer = self.get(address, 0).await?;
        // The length in the head, or 0 without one.
        if answer.body().size_hint().lower() > most as u64 {
            return Err(too_large());
        }
        let mut body = self.body(answer);
        let mut bytes = Vec::new();
        while let Some(piece) = body.next().await? {
            bytes.extend_from_slice(&piece);
            if bytes.len() > most {
                return Err(too_large());
            }
        }
        Ok(bytes)
    }
}

impl Body {
    /// The next bytes; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            let frame = timeout(self.stall, self.incoming.frame()).await;
            let frame = match frame.map_err(|_| stalled(self.stall))? {
                None => return Ok(None),
                Some(frame) => frame.map_err(|error| Failure::Broken(causes(&error)))?,
            };
            // Frames without data are trailers.
            if let Ok(data) = frame.into_data() {
                self.minimum_rate.add(data.len()).map_err(Failure::Broken)?;
                return Ok(Some(data));
            }
        }
    }
}

fn stalled(stall: Duration) -> Failure {
    Failure::Broken(format!("nothing came for {stall:?}"))
}

/// Separates answers with content from refusals.
fn checked(answer: Response<Incoming>) -> Result<Response<Incoming>, Failure> {
    let (status, headers) = (answer.status(), answer.headers());
    match status {
        StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(answer),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            match (status, pause(headers)) {
                (StatusCode::SERVICE_UNAVAILABLE, None) => Err(Failure::Broken(status.to_string())),
                (_, pause) => Err(Failure::Busy(pause)),
            }
        }
        StatusCode::REQUEST_TIMEOUT => Err(Failure::Broken(status.to_string())),
        _ if status.is_server_error() => Err(Failure::Broken(status.to_string())),
        _ => Err(Failure::Status(Refusal {
            status,
            code: text(headers, "x-error-code"),
            message: text(headers, "x-error-message"),
        })),
    }
}

/// The pause that the hub asks for: the seconds of `Retry-After`, or the seconds until the
/// window of `RateLimit: "api";r=0;t=55` begins anew.
fn pause(headers: &HeaderMap) -> Option<Duration> {
    let retry: Option<u64> = text(headers, "retry-after").trim().parse().ok();
    let window = || {
        let limit = text(headers, "ratelimit");
        let mut parts = limit.split([';', ',']);
        parts.find_map(|part| part.trim().strip_prefix("t=")?.parse().ok())
    };
    retry.or_else(window).map(Duration::from_secs)
}

/// Target of a redirect, unshortened: addresses of storage carry signatures.
fn target(headers: &HeaderMap) -> Option<&str> {
    let target = headers.get(header::LOCATION)?.to_str().ok()?;
    (target.len() <= LONGEST_TARGET).then_some(target)
}

/// The value of a header, or an empty text unless it has only visible characters of ASCII.
fn text(headers: &HeaderMap, name: &str) -> String {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}

/// The address of a redirect from `uri`; `None` for one from `https` to `http`.
fn redirected(uri: &Uri, target: &str) -> Option<Uri> {
    let (scheme, authority) = (uri.scheme_str()?, uri.authority()?);
    let target: Uri = if target.starts_with("//") {
        format!("{scheme}:{target}").parse().ok()?
    } else if target.starts_with('/') {
        format!("{scheme}://{authority}{target}").parse().ok()?
    } else {
        target.parse().ok()?
    };
    match (scheme, target.scheme_str()?) {
        (_, "https") | ("http", "http") => Some(target),
        _ => None,
    }
}

fn is_same_origin(a: &Uri, b: &Uri) -> bool {
    let port = |uri: &Uri| {
        uri.port_u16().unwrap_or(match uri.scheme_str() {
            Some("https") => 443,
            _ => 80,
        })
    };
    let host = |uri: &Uri| uri.host().map(str::to_ascii_lowercase);
    a.scheme() == b.scheme() && host(a) == host(b) && port(a) == port(b)
}

/// An error with its causes, as one text.
fn causes(error: &dyn std::error::Error) -> String {
    let mut all = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !all.ends_with(&cause_text) {
            all = format!("{all}: {cause_text}");
        }
        next = cause.source();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().expect("an address")
    }

    #[test]
    fn redirects_lead_to_addresses() {
        for (from, target, expected) in [
            ("https://a/x", "/y", Some("https://a/y")),
            ("http://a:1/x", "/y?z", Some("http://a:1/y?z")),
            ("https://a/x", "https://b/y", Some("https://b/y")),
            ("https://a/x", "//b/y", Some("https://b/y")),
            ("http://a/x", "https://a/x", Some("https://a/x")),
            ("https://a/x", "http://a/x", None),
            ("https://a/x", "file:///etc/passwd", None),
            ("https://a/x", "", None),
        ] {
            let found = redirected(&uri(from), target);
            assert_eq!(found, expected.map(uri), "{from} {target}");
        }
    }

    #[test]
    fn targets_are_read_whole_or_not_at_all() {
        for (length, whole) in [(2_000, true), (9_000, true), (20_000, false)] {
            let target = format!("https://a/{}", "x".repeat(length));
            let mut headers = HeaderMap::new();
            headers.insert("location", target.parse().expect("a value"));
            let found = super::target(&headers);
            assert_eq!(found, whole.then_some(target.as_str()), "{length}");
        }
    }

    #[test]
    fn origins_are_scheme_host_and_port() {
        for (a, b, same) in [
            ("https://a/x", "https://A:443/y", true),
            ("http://a", "http://a:80/", true),
            ("https://a", "http://a", false),
            ("http://a:1", "http://a:2", false),
            ("https://a", "https://a.b", false),
        ] {
            assert_eq!(is_same_origin(&uri(a), &uri(b)), same, "{a} {b}");
        }
    }

    #[test]
    fn pauses_are_read_from_either_header() {
        for (name, value, seconds) in [
            ("retry-after", "7", Some(7)),
            ("ratelimit", "\"resolvers\";r=0;t=55", Some(55)),
            ("ratelimit", "api;r=3", None),
            ("retry-after", "soon", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().expect("a value"));
            assert_eq!(pause(&headers), seconds.map(Duration::from_secs), "{value}");
        }
    }
}
