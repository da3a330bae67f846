//! Bodies: a request's comes in time or ends with an error, an answer's keeps
//! its connection's place until it ends.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;

use crate::{
    places::{InService, Place},
    port::BodyLimits,
};

/// Before the rate counts: a client may compute what it sends, and connections
/// take a while to get fast (as in Apache's `RequestReadTimeout body=20,MinRate`).
const GRACE: Duration = Duration::from_secs(10);

/// Why a request's body ended early.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The client was too slow. gRPC takes the status from here.
    #[error("the request's body came too slowly")]
    Slow(#[source] Status),
    /// The connection broke.
    #[error(transparent)]
    Transport(#[from] hyper::Error),
}

/// A request's body that must come in time.
pub(crate) struct Paced<B = Incoming> {
    body: B,
    pace: Option<Pace>,
    /// Set while the client is waited for.
    timer: Option<Pin<Box<Sleep>>>,
    place: Arc<Place>,
}

/// What a client has brought in which time. What counts is the time for which
/// it is waited for, not the time that the server takes between parts.
struct Pace {
    limits: BodyLimits,
    received: u64,
    /// Until the last part came.
    waited: Duration,
    /// Since when the next part is waited for.
    since: Option<Instant>,
}

impl Pace {
    fn new(limits: BodyLimits) -> Self {
        Self {
            limits,
            received: 0,
            waited: Duration::ZERO,
            since: None,
        }
    }

    /// Until when the client, who is waited for at the time `now`, may go on
    /// bringing nothing.
    fn deadline(&mut self, now: Instant) -> Instant {
        let BodyLimits { whole, rate } = self.limits;
        let allowed = match self.received.checked_div(rate) {
            None => whole,
            Some(seconds) => whole.min(GRACE.saturating_add(Duration::from_secs(seconds))),
        };
        *self.since.get_or_insert(now) + allowed.saturating_sub(self.waited)
    }

    /// A part came.
    fn came(&mut self, bytes: usize, now: Instant) {
        self.received = self.received.saturating_add(bytes as u64);
        if let Some(since) = self.since.take() {
            self.waited += now.duration_since(since);
        }
    }
}

impl<B> Paced<B> {
    pub(crate) fn new(body: B, limits: Option<BodyLimits>, place: Arc<Place>) -> Self {
        Self {
            body,
            pace: limits.map(Pace::new),
            timer: None,
            place,
        }
    }
}

impl<B> Body for Paced<B>
where
    B: Body<Data = Bytes> + Unpin,
    BodyError: From<B::Error>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let frame = Pin::new(&mut this.body).poll_frame(context);
        let Some(pace) = &mut this.pace else {
            return frame.map_err(BodyError::from);
        };
        if let Poll::Ready(frame) = frame {
            if let Some(Ok(frame)) = &frame {
                pace.came(frame.data_ref().map_or(0, Bytes::len), Instant::now());
                this.timer = None;
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from)));
        }
        let deadline = || Box::pin(sleep_until(pace.deadline(Instant::now())));
        let timer = this.timer.get_or_insert_with(deadline);
        std::task::ready!(timer.as_mut().poll(context));
        this.place.places().slow_body();
        let status = Status::deadline_exceeded("the request's message came too slowly");
        Poll::Ready(Some(Err(BodyError::Slow(status))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer's body: while it lasts, its connection works.
pub(crate) struct Answer {
    pub(crate) body: axum::body::Body,
    pub(crate) _in_service: InService,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
