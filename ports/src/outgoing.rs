//! The unsent rest of an answer.

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
    reserve::{AnswerMemory, ReservedBytes},
};

/// Bytes handed over at a time. A transport asks for more once most of the last part is sent.
pub(crate) const PART: usize = 64 << 10;
/// Approximate bytes of an answer that a transport holds. Over HTTP/1.1, the transport asks for
/// the next part as soon as it holds less than a head may have.
pub(crate) const HANDED_OVER: usize = 3 * PART;
/// Stands in place of a time: the server was asked for the next part.
const ASKED: u64 = u64::MAX;

/// Error: the client took nothing of the answer for too long.
#[derive(Debug, thiserror::Error)]
#[error("the answer was not taken in time")]
struct AnswerTimeout;

/// Number of bytes of an answer that came in one piece and are not handed over yet. The code that
/// made the answer no longer sees them. Handlers find this in the extensions of their request.
#[derive(Debug, Clone, Default)]
pub struct UnsentBytes(Arc<AtomicUsize>);

impl UnsentBytes {
    /// Number of bytes now, or when the answer was given up.
    pub fn bytes(&self) -> usize {
        self.0.load(Relaxed)
    }
}

/// Data for a connection, and the time since which the connection has taken nothing.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Time at which the last part was handed over, in milliseconds of the port's clock.
    handed_over: AtomicU64,
    unsent: UnsentBytes,
    content: Mutex<Content>,
}

#[derive(Debug, Default)]
struct Content {
    /// Body of the answer; `None` before the answer, and once it has ended or was dropped.
    body: Option<Body>,
    /// Data that came in one piece and is handed over in several parts.
    rest: Bytes,
    /// True if a part was handed over.
    begun: bool,
    /// Memory for data that waits here; `None` if nothing is charged.
    room: Option<Charge>,
    /// Bytes of `room` reserved for data that a stream may still bring.
    reserved: ReservedBytes,
    /// Bytes that were reserved for the whole answer.
    large_as: usize,
}

impl Outgoing {
    /// Makes the state of a request that is not answered yet.
    pub(crate) fn new() -> Self {
        Self {
            handed_over: AtomicU64::new(ASKED),
            unsent: UnsentBytes::default(),
            content: Mutex::default(),
        }
    }

    /// Returns the count of unsent bytes, for the code that answers.
    pub(crate) fn unsent(&self) -> UnsentBytes {
        self.unsent.clone()
    }

    /// Records that something must be taken from the time `now` on.
    pub(crate) fn hand_over(&self, now: u64) {
        self.handed_over.store(now, Relaxed);
    }

    /// Returns true if something that was handed over before `time` is not taken yet.
    pub(crate) fn is_untaken_since(&self, time: u64) -> bool {
        self.handed_over.load(Relaxed) < time
    }

    /// Frees the rest of the answer; asking for more gives an error from then on. Parts handed
    /// over earlier stay as long as the request.
    pub(crate) fn drop_content(&self) {
        let mut content = self.content();
        if let Some(room) = &mut content.room {
            room.keep(HANDED_OVER);
        }
        let left = (content.body.take(), std::mem::take(&mut content.rest));
        drop(content);
        drop(left);
    }

    /// Stores the answer and its memory, at the time `now`.
    pub(crate) fn answer(&self, body: Body, room: Option<AnswerMemory>, now: u64) {
        let streams = body.size_hint().exact().is_none();
        let mut content = self.content();
        content.body = Some(body);
        if let Some(AnswerMemory { charge, reserved }) = room {
            if streams {
                content.large_as = charge.bytes();
                content.reserved = reserved;
            }
            content.room = Some(charge);
        }
        drop(content);
        self.hand_over(now);
    }

    /// Returns the next part; `now` is called when there is one. If there is no memory for it,
    /// the error's source is [`OverBudget`].
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

    /// Returns true if the answer has ended. An answer that has begun lasts until its end was
    /// asked for. A transport asks once it has room for more.
    pub(crate) fn is_end_stream(&self) -> bool {
        let content = self.content();
        let body = content.body.as_ref();
        !content.begun && body.is_some_and(HttpBody::is_end_stream)
    }

    /// Returns the size of the unsent rest.
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
        // The sweep locks it for a moment, when an answer is to be dropped.
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Content {
    /// Charges a piece of an answer whose size was not known before.
    fn make_room(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let Some(room) = &mut self.room else {
            return Ok(());
        };
        let beyond = bytes.saturating_sub(room.bytes());
        room.add_answer(beyond, self.large_as)
    }

    /// Keeps memory for the reserved bytes, or for the bytes that wait or were handed over, and
    /// gives back the rest.
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
                let error = axum::Error::new(AnswerTimeout);
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
        // The part is copied, since a transport that keeps a slice would keep the whole
        // allocation.
        let part = Bytes::copy_from_slice(&part);
        Poll::Ready(Some(Ok(Frame::data(part))))
    }
}
