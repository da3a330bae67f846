//! The access log: one line per request, under the target `access`, once the answer is
//! sent or the client has left. Successful answers to health checks and Prometheus are
//! logged at level DEBUG.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    body::{Body, HttpBody},
    extract::Request,
    http::Response,
    middleware::Next,
};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use lockstep_ports::UnsentBytes;
use lockstep_traces::names;
use tokio::time::Instant;

use super::middleware::RequestId;
use crate::{error::ApiError, request_stats::RequestStats, request_trace::RequestTrace};

/// nginx's status for a client that left before it got an answer.
const CLIENT_LEFT: u16 = 499;
/// Maximum bytes of a path in the log. Every route fits. A stranger may send a much
/// longer path, and such lines would fill the log.
const PATH: usize = 256;
/// Maximum bytes of a method in the log. A method may be any word.
const METHOD: usize = 16;

/// Paths that health checks and Prometheus request every few seconds.
const POLLED: [&str; 4] = ["/health", "/ping", "/health_generate", "/metrics"];

/// Logs the request once it is finished.
pub(super) async fn log(request: Request, next: Next) -> Response<Body> {
    let id = request.extensions().get::<RequestId>();
    let unsent = request.extensions().get::<UnsentBytes>();
    let mut line = Line {
        request: id.map(|id| Arc::clone(&id.0)),
        method: beginning(request.method().as_str(), METHOD).to_owned(),
        path: beginning(request.uri().path(), PATH).to_owned(),
        started: Instant::now(),
        stats: Arc::default(),
        status: CLIENT_LEFT,
        code: None,
        complete: false,
        unsent: unsent.cloned(),
    };
    let response = Arc::clone(&line.stats).scope(next.run(request)).await;
    line.status = response.status().as_u16();
    line.code = response.extensions().get().map(ApiError::code);
    response.map(|body| Body::new(Logged { body, line }))
}

/// Returns the first `most` bytes of a text, or all of a shorter one.
fn beginning(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// The log line of a request, written on drop.
struct Line {
    request: Option<Arc<str>>,
    method: String,
    path: String,
    started: Instant,
    stats: Arc<RequestStats>,
    status: u16,
    code: Option<&'static str>,
    /// True if the whole answer was taken and no error ended it.
    complete: bool,
    /// Counts the unsent bytes of a body that was handed over whole.
    unsent: Option<UnsentBytes>,
}

impl Drop for Line {
    fn drop(&mut self) {
        let (prompt_tokens, completion_tokens) = self.stats.tokens();
        let ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let code = self.code.or(self.stats.error());
        let trace = self.stats.trace();
        if let Some(trace) = trace {
            trace.set(names::HTTP_RESPONSE_STATUS_CODE, i64::from(self.status));
            if let Some(code) = code {
                trace.set(names::ERROR_TYPE, code);
            }
        }
        // The level of a line must be a constant.
        macro_rules! finished {
            ($level:ident) => {
                tracing::$level!(
                    target: "access",
                    request = self.request.as_deref(),
                    trace = trace.map(RequestTrace::id),
                    method = self.method,
                    path = self.path,
                    status = self.status,
                    code,
                    complete = self.complete && code.is_none(),
                    prompt_tokens,
                    completion_tokens,
                    ms,
                    "finished"
                )
            };
        }
        if self.status < 400 && POLLED.contains(&self.path.as_str()) {
            finished!(debug);
        } else {
            finished!(info);
        }
    }
}

/// The body of an answer, with the line to log.
struct Logged {
    body: Body,
    line: Line,
}

impl HttpBody for Logged {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) {
            self.line.complete = true;
        }
        frame
    }

    // A server need not ask for another frame once this returns true.
    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        self.line.complete |= self.body.is_end_stream();
        let unsent = self.line.unsent.as_ref();
        self.line.complete &= unsent.is_none_or(|unsent| unsent.bytes() == 0);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{self, Write},
        sync::Mutex,
    };

    use axum::{
        Router,
        middleware::from_fn,
        routing::{get, post},
    };
    use http_body_util::BodyExt;
    use lockstep_ports::{Budget, Port, Protocol};
    use lockstep_types::ConnectionLimits;
    use tokio::net::{TcpListener, TcpStream};
    use tokio_util::sync::CancellationToken;
    use tower::ServiceExt;
    use tracing_subscriber::fmt::MakeWriter;

    use super::*;
    use crate::error::ApiResult;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("unpoisoned").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Lines {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    impl Lines {
        fn take(&self) -> Vec<serde_json::Value> {
            let text = std::mem::take(&mut *self.0.lock().expect("unpoisoned"));
            let lines = serde_json::Deserializer::from_slice(&text).into_iter();
            lines.map(|line| line.expect("json")).collect()
        }
    }

    async fn generate() -> &'static str {
        let stats = RequestStats::current().expect("within a request");
        stats.prompt(5);
        stats.completion(3);
        "abc"
    }

    async fn fail() -> ApiResult<()> {
        Err(ApiError::unsupported("lora", "no"))
    }

    /// An answer whose stream ends with an error.
    async fn break_off() -> &'static str {
        let stats = RequestStats::current().expect("within a request");
        stats.failed("internal_error");
        "data: {}"
    }

    async fn hang() {
        std::future::pending::<()>().await;
    }

    fn router() -> Router {
        Router::new()
            .route("/ok", get(generate))
            .route("/bad", post(fail))
            .route("/hang", get(hang))
            .route("/broken", get(break_off))
            .route("/health", get(generate).post(fail))
            .layer(from_fn(log))
    }

    /// Serves `/large`, an answer of `bytes` bytes, and returns the address.
    async fn serving(bytes: usize) -> std::net::SocketAddr {
        let limits = ConnectionLimits {
            per_port: 9,
            per_peer: 9,
            streams: 1,
            first_byte_s: 60,
            head_s: 60,
            body_s: 60,
            body_rate: 0,
            send_s: 60,
            keep_alive_s: 60,
        };
        let protocol = Protocol::Http {
            head_bytes: 96 << 10,
            refusal: |message| Response::new(message.into()),
            over_budget: |over| Response::new(over.to_string().into()),
            probes: &[],
        };
        let port = Port::public("x", protocol, &limits, Budget::new(1 << 30), None);
        let answer = get(async move || vec![b'x'; bytes]);
        let router = Router::new().route("/large", answer).layer(from_fn(log));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(port.serve(listener, router, CancellationToken::new()));
        address
    }

    /// The answer is larger than the system's send buffer. One client reads its first
    /// part, the other all.
    #[tokio::test]
    async fn what_a_client_did_not_wait_for_is_not_complete() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        const LARGE: usize = 64 << 20;
        let lines = Lines::default();
        let subscriber = tracing_subscriber::fmt().json().with_writer(lines.clone());
        let _guard = tracing::subscriber::set_default(subscriber.finish());
        let address = serving(LARGE).await;
        for (taken, complete) in [(64 << 10, false), (LARGE, true)] {
            let mut client = TcpStream::connect(address).await.expect("served");
            let request = b"GET /large HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            client.write_all(request).await.expect("sent");
            let mut taken = vec![0; taken];
            client.read_exact(&mut taken).await.expect("so much");
            if complete {
                client.read_to_end(&mut taken).await.expect("the rest");
            }
            drop(client);
            let line = loop {
                if let Some(line) = lines.take().pop() {
                    break line;
                }
                tokio::task::yield_now().await;
            };
            assert_eq!(line["fields"]["status"], 200, "{line}");
            assert_eq!(line["fields"]["complete"], complete, "{line}");
        }
    }

    #[tokio::test]
    async fn every_request_has_one_line_when_it_is_finished() {
        let lines = Lines::default();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .with_max_level(tracing::Level::DEBUG)
            .with_writer(lines.clone())
            .finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        let router = router();
        let send = |method: &str, path: &str| {
            let request = Request::builder().method(method).uri(path);
            let request = request.body(Body::empty()).expect("a request");
            router.clone().oneshot(request)
        };

        let response = send("GET", "/ok").await.expect("answered");
        assert!(lines.take().is_empty(), "the answer is not sent yet");
        response.into_body().collect().await.expect("body");
        let line = &lines.take()[0];
        assert_eq!(line["target"], "access");
        assert_eq!(line["level"], "INFO");
        for (field, value) in [
            ("method", serde_json::json!("GET")),
            ("path", "/ok".into()),
            ("status", 200.into()),
            ("complete", true.into()),
            ("prompt_tokens", 5.into()),
            ("completion_tokens", 3.into()),
        ] {
            assert_eq!(line["fields"][field], value, "{line}");
        }
        assert!(line["fields"].get("code").is_none(), "{line}");

        let long = format!("/{}", "x".repeat(60_000));
        drop(send("GET", &long).await.expect("answered"));
        assert_eq!(lines.take()[0]["fields"]["path"], long[..256]);

        drop(send(&"A".repeat(5000), "/ok").await.expect("answered"));
        assert_eq!(lines.take()[0]["fields"]["method"], "A".repeat(16));

        drop(send("POST", "/bad").await.expect("answered"));
        let fields = &lines.take()[0]["fields"];
        assert_eq!(fields["status"], 400);
        assert_eq!(fields["code"], "unsupported_parameter");
        assert_eq!(fields["complete"], false);

        let response = send("GET", "/broken").await.expect("answered");
        response.into_body().collect().await.expect("body");
        let fields = &lines.take()[0]["fields"];
        assert_eq!(
            (&fields["status"], &fields["code"]),
            (&200.into(), &"internal_error".into())
        );
        assert_eq!(fields["complete"], false, "{fields}");

        for (method, level) in [("GET", "DEBUG"), ("POST", "INFO")] {
            drop(send(method, "/health").await.expect("answered"));
            assert_eq!(lines.take()[0]["level"], level, "{method}");
        }

        let mut hanging = Box::pin(send("GET", "/hang"));
        assert!(futures::poll!(&mut hanging).is_pending());
        drop(hanging);
        assert_eq!(lines.take()[0]["fields"]["status"], 499);
    }
}
