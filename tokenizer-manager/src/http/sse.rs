//! Server-sent events: `data: <json>` and an empty line.

use std::{convert::Infallible, sync::Arc};

use axum::{
    body::Body,
    http::{HeaderValue, Response, header},
};
use bytes::{BufMut, Bytes, BytesMut};
use futures::{Stream, StreamExt};
use serde::Serialize;

use crate::{
    error::ApiError,
    request_stats::RequestStats,
    stall::{Guarded, STALL_TIMEOUT},
};

/// Frames of one write.
#[derive(Debug)]
pub(super) struct Frames {
    bytes: BytesMut,
    stats: Option<Arc<RequestStats>>,
}

impl Frames {
    /// None yet, for the request that the caller works for.
    fn new(stats: Option<Arc<RequestStats>>) -> Self {
        Self {
            bytes: BytesMut::new(),
            stats,
        }
    }

    /// Adds an event.
    pub(super) fn event<T: Serialize>(&mut self, value: &T) {
        self.bytes.put_slice(b"data: ");
        let start = self.bytes.len();
        if let Err(error) = serde_json::to_writer((&mut self.bytes).writer(), value) {
            // Answers are plain structs, which always serialise; say so if one does not.
            self.bytes.truncate(start);
            let error = ApiError::internal(format!("The answer could not be written: {error}"));
            self.bytes.put_slice(error.json().as_bytes());
        }
        self.bytes.put_slice(b"\n\n");
    }

    /// Adds the error that ends a stream.
    pub(super) fn error(&mut self, error: &ApiError) {
        if let Some(stats) = &self.stats {
            stats.failed(error.code());
        }
        self.event(&error.body());
    }

    /// Adds OpenAI's last event.
    pub(super) fn done(&mut self) {
        self.bytes.put_slice(b"data: [DONE]\n\n");
    }

    /// The bytes, if any.
    pub(super) fn take(&mut self) -> Option<Bytes> {
        (!self.bytes.is_empty()).then(|| self.bytes.split().freeze())
    }
}

/// What turns deltas into frames.
pub(super) trait Framer: Send + 'static {
    /// What comes in.
    type Item: Send;

    /// Frames for one item; `false` after the last one, which is an error.
    fn item(&mut self, item: Self::Item, frames: &mut Frames) -> bool;

    /// Frames after the last item.
    fn end(&mut self, frames: &mut Frames);
}

/// Answers with events. The client leaving drops `items`.
pub(super) fn response<F>(
    items: impl Stream<Item = F::Item> + Send + Unpin + 'static,
    framer: F,
) -> Response<Body>
where
    F: Framer,
{
    let state = (items, framer, Frames::new(RequestStats::current()), false);
    let bytes = futures::stream::unfold(
        state,
        |(mut items, mut framer, mut frames, over)| async move {
            if over {
                return None;
            }
            loop {
                let over = match items.next().await {
                    Some(item) => !framer.item(item, &mut frames),
                    None => {
                        framer.end(&mut frames);
                        true
                    }
                };
                match frames.take() {
                    Some(bytes) => {
                        return Some((Ok::<_, Infallible>(bytes), (items, framer, frames, over)));
                    }
                    None if over => return None,
                    None => {}
                }
            }
        },
    );
    let bytes = Guarded::new(bytes.boxed(), STALL_TIMEOUT, || {
        let mut frames = Frames::new(None);
        frames.error(&ApiError::stalled());
        Ok(frames.take().unwrap_or_default())
    });
    let mut response = Response::new(Body::from_stream(bytes));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Asks nginx not to collect the stream before passing it on.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
