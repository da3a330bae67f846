//! Answers. A connection works until it has sent its answers, but not for a client that
//! takes nothing.
//!
//! An HTTP/2 client can keep its connection alive and still grant a stream no window.
//! Then the transport does not ask for the answer's next part, however long it takes.
//! The answer's request would stay with its memory, its place at the engine, and a
//! drain that waits for it. So each part must be taken within a time limit, as with
//! nginx's `send_timeout`.

use std::{
    error::Error,
    pin::Pin,
    task::{Context, Poll},
};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use crate::{budget::OverBudget, places::ActiveRequest, report::Closed, reserve::AnswerMemory};

/// Body of an answer. While it exists, its connection works.
pub(crate) struct Answer(ActiveRequest);

impl Answer {
    /// Makes the body; `room` is the memory reserved for it, if it is charged.
    pub(crate) fn new(in_service: ActiveRequest, body: Body, room: Option<AnswerMemory>) -> Self {
        let now = in_service.now();
        in_service.outgoing().answer(body, room, now);
        Self(in_service)
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Self(in_service) = &*self;
        let outgoing = in_service.outgoing();
        let part = outgoing.poll_part(context, || in_service.now());
        if let Poll::Ready(Some(Err(error))) = &part
            && error
                .source()
                .is_some_and(|source| source.is::<OverBudget>())
        {
            in_service.count(Closed::OverBudget);
        }
        part
    }

    fn is_end_stream(&self) -> bool {
        self.0.outgoing().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.outgoing().size_hint()
    }
}

#[cfg(test)]
mod tests;
