//! What of an answer is still to be sent.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use crate::{
    budget::{Charge, OverBudget},
    reserve::{AnswerRoom, Reserved},
};

/// Handed over at a time, so that a transport that asks for more has sent most
/// of what it got.
pub(crate) const PART: usize = 64 << 10;
/// About as much of an answer as a transport has: over HTTP/1.1 it asks for the
/// next part as soon as it has less than a head may have.
pub(crate) const HANDED_OVER: usize = 3 * PART;
/// Instead of a time: the server is asked for the next part.
const ASKED: u64 = u64::MAX;

/// The client took nothing of the answer for too long.
#[derive(Debug, thiserror::Error)]
#[error("the answer was not taken in time")]
struct Untaken;

/// Bytes of an answer that came in one piece and were not handed over yet: whoever made it has no
/// part in it any more. Handlers find it in the extensions of their request.
#[derive(Debug, Clone, Default)]
pub struct Unsent(Arc<AtomicUsize>);

impl Unsent {
    /// So many, now or when the answer was given up.
    pub fn bytes(&self) -> usize {
        self.0.load(Relaxed)
    }
}

/// What a connection is to take, and since when it does not.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// When the last part was handed over, in milliseconds of the port's clock.
    handed_over: AtomicU64,
    unsent: Unsent,
    content: Mutex<Content>,
}

#[derive(Debug, Default)]
struct Content {
    /// `None` without an answer, and once it has ended or was dropped.
    body: Option<Body>,
    /// What came in one piece and is handed over in several.
    rest: Bytes,
    /// Whether a part was handed over.
    begun: bool,
    /// For what waits here; `None` where nothing is charged.
    room: Option<Charge>,
    /// Bytes of it that are for what a stream may still bring.
    reserved: Reserved,
    /// Bytes that were for all of it.
    large_as: usize,
}

impl Outgoing {
    /// Of a request that is not answered yet.
    pub(crate) fn new() -> Self {
        Self {
            handed_over: AtomicU64::new(ASKED),
            unsent: Unsent::default(),
            content: Mutex::default(),
        }
    }

    /// For whoever answers.
    pub(crate) fn unsent(&self) -> Unsent {
        self.unsent.clone()
    }

    /// Something is to be taken from the time `now` on.
    pub(crate) fn hand_over(&self, now: u64) {
        self.handed_over.store(now, Relaxed);
    }

    /// Whether something that was handed over before `time` is still not taken.
    pub(crate) fn is_untaken_since(&self, time: u64) -> bool {
        self.handed_over.load(Relaxed) < time
    }

    /// Frees what is left of the answer: who asks for more gets an error. The
    /// parts that were handed over stay where they are as long as its request.
    pub(crate) fn drop_content(&self) {
        let mut content = self.content();
        if let Some(room) = &mut content.room {
            room.keep(HANDED_OVER);
        }
        let left = (content.body.take(), std::mem::take(&mut content.rest));
        drop(content);
        drop(left);
    }

    /// Gets the answer and the room that it has, at the time `now`.
    pub(crate) fn answer(&self, body: Body, room: Option<AnswerRoom>, now: u64) {
        let streams = body.size_hint().exact().is_none();
        let mut content = self.content();
        content.body = Some(body);
        if let Some(AnswerRoom { charge, reserved }) = room {
            if streams {
                content.large_as = charge.bytes();
                content.reserved = reserved;
            }
            content.room = Some(charge);
        }
        drop(content);
        self.hand_over(now);
    }

    /// Its next part; `now` is asked for when there is one. An error's source is
    /// [`OverBudget`] where there is no room for it.
    pub(crate) fn poll_part(
        &self,
        context: &mut Context<'_>,
        now: impl Fn() -> u64,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut content = self.content();
        let part = content.poll_part(context);
        self.unsent.0.store(content.rest.len(), Relaxed);
        if part.is_ready() {
            content.begun = true;
            self.hand_over(now());
        } else {
            self.hand_over(ASKED);
        }
        part
    }

    /// An answer that has begun lasts until its end was asked for, which a
    /// transport does when it has room for more.
    pub(crate) fn is_end_stream(&self) -> bool {
        let content = self.content();
        let body = content.body.as_ref();
        !content.begun && body.is_some_and(HttpBody::is_end_stream)
    }

    /// What is left of it.
    pub(crate) fn size_hint(&self) -> SizeHint {
        let content = self.content();
        let rest = content.rest.len() as u64;
        let body = content.body.as_ref().map(HttpBody::size_hint);
        let body = body.unwrap_or_default();
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower().saturating_add(rest));
        if let Some(upper) = body.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        // The sweep needs it for a moment, once an answer is to be dropped.
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Content {
    /// Of an answer whose size nobody told before, a piece is charged as it comes.
    fn make_room(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let Some(room) = &mut self.room else {
            return Ok(());
        };
        let beyond = bytes.saturating_sub(room.bytes());
        room.add_answer(beyond, self.large_as)
    }

    /// Keeps what is reserved still, or what waits and was handed over.
    fn give_back(&mut self) {
        if let Some(room) = &mut self.room {
            room.keep(self.reserved.bytes().max(self.rest.len() + HANDED_OVER));
        }
    }

    fn poll_part(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            let Some(body) = &mut self.body else {
                let error = axum::Error::new(Untaken);
                return Poll::Ready(Some(Err(error)));
            };
            let frame = match Pin::new(body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(end) => return Poll::Ready(end),
                Poll::Pending => {
                    self.give_back();
                    return Poll::Pending;
                }
            };
            match frame.into_data() {
                Ok(data) if data.len() > PART => {
                    self.make_room(data.len()).map_err(axum::Error::new)?;
                    self.rest = data;
                }
                Ok(data) => {
                    self.give_back();
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        let part = self.rest.split_to(PART.min(self.rest.len()));
        self.give_back();
        // A copy, since a part that a transport keeps would keep the whole.
        let part = Bytes::copy_from_slice(&part);
        Poll::Ready(Some(Ok(Frame::data(part))))
    }
}
