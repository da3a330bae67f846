//! Server-sent events: `data: <json>` and an empty line, in some APIs after `event: <name>`.

use std::{convert::Infallible, pin::Pin, sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderValue, Response, header},
};
use bytes::{BufMut, Bytes, BytesMut};
use futures::{Stream, StreamExt};
use serde::Serialize;
use tokio::time::{Instant, Sleep};

use crate::{error::ApiError, request_stats::RequestStats};

/// Frames that are sent in one write.
#[derive(Debug)]
pub(super) struct Frames {
    bytes: BytesMut,
    stats: Option<Arc<RequestStats>>,
}

impl Frames {
    /// Makes an empty write for the request whose statistics are `stats`.
    fn new(stats: Option<Arc<RequestStats>>) -> Self {
        Self {
            bytes: BytesMut::new(),
            stats,
        }
    }

    /// Adds an event that has a name.
    pub(super) fn named<T: Serialize>(&mut self, name: &'static str, value: &T) {
        self.bytes.put_slice(b"event: ");
        self.bytes.put_slice(name.as_bytes());
        self.bytes.put_slice(b"\n");
        self.event(value);
    }

    /// Adds an event.
    pub(super) fn event<T: Serialize>(&mut self, value: &T) {
        self.bytes.put_slice(b"data: ");
        let start = self.bytes.len();
        if let Err(error) = serde_json::to_writer((&mut self.bytes).writer(), value) {
            // Answers are plain structs, which always serialise; report it if one does
            // not.
            self.bytes.truncate(start);
            let error = ApiError::internal(format!("The answer could not be written: {error}"));
            self.failed(&error);
            self.bytes.put_slice(error.json().as_bytes());
        }
        self.bytes.put_slice(b"\n\n");
    }

    /// Adds the error that ends a stream, in OpenAI's form.
    pub(super) fn error(&mut self, error: &ApiError) {
        self.failed(error);
        self.event(&error.body());
    }

    /// Records the error for the access log. An API with a form of its own for errors adds the
    /// event itself.
    pub(super) fn failed(&self, error: &ApiError) {
        if let Some(stats) = &self.stats {
            stats.failed(error.code());
        }
    }

    /// Adds a comment, which clients skip.
    fn comment(&mut self) {
        self.bytes.put_slice(b": keep-alive\n\n");
    }

    /// Adds OpenAI's final event.
    pub(super) fn done(&mut self) {
        self.bytes.put_slice(b"data: [DONE]\n\n");
    }

    /// Takes the bytes, if there are any.
    pub(super) fn take(&mut self) -> Option<Bytes> {
        (!self.bytes.is_empty()).then(|| self.bytes.split().freeze())
    }
}

/// Turns deltas into frames.
pub(super) trait Framer: Send + 'static {
    /// Type of the stream's items.
    type Item: Send;

    /// Adds the frames of one item, or none; returns `false` if the stream ends with it, as
    /// after an error.
    fn item(&mut self, item: Self::Item, frames: &mut Frames) -> bool;

    /// Adds the frames after the last item.
    fn end(&mut self, frames: &mut Frames);
}

/// Maximum silence of a stream. Proxies close connections that are silent for longer,
/// often after a minute.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Measures the silence of a stream. Its timer is reset only when it fires, not for
/// every event.
struct Silence {
    limit: Duration,
    last: Instant,
    timer: Pin<Box<Sleep>>,
}

impl Silence {
    fn new(limit: Duration) -> Self {
        Self {
            limit,
            last: Instant::now(),
            timer: Box::pin(tokio::time::sleep(limit)),
        }
    }

    /// Restarts the silence: something was sent.
    fn broken(&mut self) {
        self.last = Instant::now();
    }

    /// Waits until nothing was sent for the whole limit.
    async fn lasts(&mut self) {
        loop {
            self.timer.as_mut().await;
            let now = Instant::now();
            let due = self.last + self.limit;
            if due <= now {
                self.timer.as_mut().reset(now + self.limit);
                return;
            }
            self.timer.as_mut().reset(due);
        }
    }
}

/// Answers with events, and with comments during silence. When the client leaves,
/// `items` is dropped.
pub(super) fn response<F>(
    items: impl Stream<Item = F::Item> + Send + Unpin + 'static,
    framer: F,
) -> Response<Body>
where
    F: Framer,
{
    let bytes = frames(items, framer, KEEP_ALIVE);
    let mut response = Response::new(Body::from_stream(bytes));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Asks nginx not to buffer the stream.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Returns the bytes of a stream, one item per write.
fn frames<F: Framer>(
    items: impl Stream<Item = F::Item> + Send + Unpin + 'static,
    framer: F,
    keep_alive: Duration,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    let frames = Frames::new(RequestStats::current());
    let state = (items, framer, frames, Silence::new(keep_alive), false);
    futures::stream::unfold(
        state,
        |(mut items, mut framer, mut frames, mut silence, over)| async move {
            if over {
                return None;
            }
            loop {
                let item = tokio::select! {
                    biased;
                    item = items.next() => Some(item),
                    () = silence.lasts() => None,
                };
                let over = match item {
                    Some(Some(item)) => !framer.item(item, &mut frames),
                    Some(None) => {
                        framer.end(&mut frames);
                        true
                    }
                    None => {
                        frames.comment();
                        false
                    }
                };
                match frames.take() {
                    Some(bytes) => {
                        silence.broken();
                        return Some((Ok(bytes), (items, framer, frames, silence, over)));
                    }
                    None if over => return None,
                    None => {}
                }
            }
        },
    )
}

#[cfg(test)]
mod tests {
    use futures::channel::mpsc;

    use super::*;

    struct Words;

    impl Framer for Words {
        type Item = &'static str;

        fn item(&mut self, word: &'static str, frames: &mut Frames) -> bool {
            frames.event(&word);
            true
        }

        fn end(&mut self, frames: &mut Frames) {
            frames.done();
        }
    }

    #[test]
    fn names_stand_before_the_data() {
        let mut frames = Frames::new(None);
        frames.named("ping", &1);
        frames.event(&2);
        let bytes = frames.take().expect("two events");
        assert_eq!(&*bytes, b"event: ping\ndata: 1\n\ndata: 2\n\n");
    }

    /// A framer that shows none of its items.
    struct Silent;

    impl Framer for Silent {
        type Item = ();

        fn item(&mut self, (): (), _: &mut Frames) -> bool {
            true
        }

        fn end(&mut self, _: &mut Frames) {}
    }

    #[tokio::test]
    async fn items_without_frames_do_not_break_the_silence() {
        // An item is always ready, so the timer is looked at only between items.
        let items = futures::stream::unfold((), |()| async {
            tokio::task::yield_now().await;
            Some(((), ()))
        });
        let mut stream = Box::pin(frames(Box::pin(items), Silent, Duration::from_millis(1)));
        let bytes = stream.next().await.expect("open").expect("bytes");
        assert_eq!(&*bytes, b": keep-alive\n\n");
    }

    #[test]
    fn what_can_not_be_written_has_failed() {
        // JSON allows only texts as keys of objects.
        let unwritable = std::collections::BTreeMap::from([((), 1)]);
        let stats = Arc::new(RequestStats::default());
        let mut frames = Frames::new(Some(stats.clone()));
        frames.event(&"a");
        assert_eq!(stats.error(), None);
        frames.event(&unwritable);
        assert_eq!(stats.error(), Some("internal_error"));
        let bytes = frames.take().expect("two events");
        let text = String::from_utf8(bytes.to_vec()).expect("text");
        let error = "data: \"a\"\n\ndata: {\"error\":{\"message\":\"The answer could not";
        assert!(text.starts_with(error) && text.ends_with("}\n\n"), "{text}");
    }

    #[tokio::test]
    async fn silence_is_broken_by_comments_that_are_no_events() {
        let (send, words) = mpsc::unbounded();
        let mut stream = Box::pin(frames(words, Words, Duration::from_millis(1)));
        let mut comments = 0;
        // Each comment is awaited: comments go on until an event comes.
        while comments < 3 {
            let bytes = stream.next().await.expect("open").expect("bytes");
            assert_eq!(&*bytes, b": keep-alive\n\n");
            comments += 1;
        }
        send.unbounded_send("a").expect("open");
        drop(send);
        let mut rest = Vec::new();
        while let Some(bytes) = stream.next().await {
            rest.extend_from_slice(&bytes.expect("bytes"));
        }
        let text = String::from_utf8(rest).expect("text");
        let events: Vec<_> = text
            .split_terminator("\n\n")
            .filter(|event| !event.starts_with(':'))
            .collect();
        assert_eq!(events, [r#"data: "a""#, "data: [DONE]"]);
    }
}
