//! Bodies of requests. Each must come in time or ends with an error.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, sleep_until};
use tonic::Status;

use crate::{
    budget::{Budget, Charge, OverBudget},
    limits::BodyLimits,
    memory_pressure::MemoryPressure,
    messages::Messages,
    places::Place,
    report::Closed,
    reserve::{AnswerReservation, Reservation},
};

/// Maximum bytes of a message that are charged: the gRPC services refuse a larger one
/// by its head.
const LARGEST_MESSAGE: usize = 16 << 20;

/// Time before the minimum rate counts. A client may compute its data, and connections
/// take a while to get fast (as in Apache's `RequestReadTimeout body=20,MinRate`).
const GRACE: Duration = Duration::from_secs(10);

/// Reason why a request's body ended early.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The client was too slow. gRPC takes the status from here.
    #[error("the request's body came too slowly")]
    Slow(#[source] Status),
    /// The client sent nothing for too long while other requests found no memory.
    #[error("the request's body brought nothing while others waited for memory")]
    Silent(#[source] Status),
    /// The process holds as many bytes as it may, of all requests, of this address's,
    /// or of requests without a key.
    #[error("the server has no memory for the request")]
    OverBudget(#[source] Status),
    /// The connection broke.
    #[error(transparent)]
    Transport(#[from] hyper::Error),
}

/// A wait for the client, until it is too late.
type LateFuture = Pin<Box<dyn Future<Output = Late> + Send>>;

/// Body of a request that must come in time.
pub(crate) struct TimedBody<B = Incoming> {
    body: B,
    pace: Option<BodyProgress>,
    /// Set while the body waits for the client.
    late: Option<LateFuture>,
    /// Notices requests that find no memory since the last byte came; `None` until the
    /// body waits again.
    pressure: Option<MemoryPressure>,
    held: Option<RequestMemory>,
    /// Memory for bytes that have come and were not asked for yet.
    pub(crate) window: Option<Arc<Charge>>,
    place: Arc<Place>,
}

/// Memory of a request in its process's budget. Until the answer begins, this is the
/// memory of the body and of everything made of the body, and the memory reserved for
/// the answer. Handlers find the value in the request's extensions.
#[derive(Debug, Clone)]
pub struct RequestMemory {
    body: Arc<Mutex<BodyMemory>>,
    answer: AnswerReservation,
}

#[derive(Debug)]
struct BodyMemory {
    charge: Charge,
    /// Reads along with gRPC's messages; gRPC's reader allocates a message once its
    /// head has come.
    messages: Option<Messages>,
}

impl RequestMemory {
    /// Makes an empty charge for a body. With `messages`, the body has gRPC's messages;
    /// otherwise all its bytes are kept.
    pub(crate) fn new(budget: &Arc<Budget>, messages: bool) -> Self {
        let body = BodyMemory {
            charge: budget.charge(),
            messages: messages.then(Messages::default),
        };
        Self {
            body: Arc::new(Mutex::new(body)),
            answer: AnswerReservation::new(budget),
        }
    }

    /// Takes `bytes` more, for values made of the body.
    ///
    /// # Errors
    /// [`OverBudget`], and nothing more is taken.
    pub fn charge(&self, bytes: usize) -> Result<(), OverBudget> {
        self.holding().charge.add(bytes)
    }

    /// Reserves memory for the output of choices, the given number of bytes for each.
    /// It belongs to the answer once the answer begins.
    ///
    /// # Errors
    /// [`OverBudget`] if there is no memory for all; then nothing is taken.
    pub fn reserve(&self, choices: &[usize]) -> Result<Vec<Reservation>, OverBudget> {
        self.answer.reserve(choices)
    }

    /// Returns the most bytes that could be reserved if no other request held any.
    pub fn most(&self) -> usize {
        self.holding().charge.most_beside()
    }

    /// Returns a notice for requests that find no memory from now on, in the budgets of
    /// this request's memory.
    fn pressure(&self) -> MemoryPressure {
        self.holding().charge.pressure()
    }

    /// Returns the memory reserved for the answer.
    pub(crate) fn room(&self) -> AnswerReservation {
        self.answer.clone()
    }

    fn take(&self, data: &[u8]) -> Result<(), OverBudget> {
        let mut holding = self.holding();
        let bytes = match &mut holding.messages {
            // The reader of a stream holds one of its messages at a time.
            Some(messages) => {
                let announced = messages.announced(data).min(LARGEST_MESSAGE);
                announced.saturating_sub(holding.charge.bytes())
            }
            None => data.len(),
        };
        holding.charge.add(bytes)
    }

    fn holding(&self) -> MutexGuard<'_, BodyMemory> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The client's progress. Only the time in which the server waits for the client
/// counts, not the server's own time between parts.
struct BodyProgress {
    limits: BodyLimits,
    received: u64,
    /// Waiting time until the last part came.
    waited: Duration,
    /// Waiting time until the last byte came; a part may have none.
    heard: Duration,
    /// Time since which the next part is awaited.
    since: Option<Instant>,
}

impl BodyProgress {
    fn new(limits: BodyLimits) -> Self {
        Self {
            limits,
            received: 0,
            waited: Duration::ZERO,
            heard: Duration::ZERO,
            since: None,
        }
    }

    /// Returns the time until which the client may go on sending nothing, if the body
    /// waits since the time `now` or before.
    fn deadline(&mut self, now: Instant) -> Instant {
        let BodyLimits { whole, rate, .. } = self.limits;
        let allowed = match self.received.checked_div(rate) {
            None => whole,
            Some(seconds) => whole.min(GRACE.saturating_add(Duration::from_secs(seconds))),
        };
        *self.since.get_or_insert(now) + allowed.saturating_sub(self.waited)
    }

    /// Returns the time from which the client has been silent for too long if other
    /// requests find no memory.
    fn silent(&mut self, now: Instant) -> Instant {
        let silence = self.waited - self.heard;
        *self.since.get_or_insert(now) + self.limits.silence.saturating_sub(silence)
    }

    /// Records a part of `bytes` bytes.
    fn came(&mut self, bytes: usize, now: Instant) {
        self.received = self.received.saturating_add(bytes as u64);
        if let Some(since) = self.since.take() {
            self.waited += now.duration_since(since);
        }
        if bytes > 0 {
            self.heard = self.waited;
        }
    }
}

/// The ways in which a client is too late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Late {
    Slow,
    Silent,
}

/// Completes at the `deadline`. After the time `silent` it also completes once memory
/// is short, by `pressure`.
async fn late(deadline: Instant, silent: Instant, pressure: Option<MemoryPressure>) -> Late {
    let in_the_way = async {
        sleep_until(silent).await;
        match pressure {
            Some(pressure) => pressure.noticed().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = sleep_until(deadline) => Late::Slow,
        () = in_the_way => Late::Silent,
    }
}

impl From<Late> for BodyError {
    fn from(late: Late) -> Self {
        match late {
            Late::Slow => Self::Slow(Status::deadline_exceeded(
                "the request's message came too slowly",
            )),
            Late::Silent => Self::Silent(Status::deadline_exceeded(
                "nothing of the request's message came for too long while others waited for \
                 memory; send it without such a pause",
            )),
        }
    }
}

impl<B> TimedBody<B> {
    pub(crate) fn new(
        body: B,
        limits: Option<BodyLimits>,
        held: Option<RequestMemory>,
        place: Arc<Place>,
    ) -> Self {
        Self {
            body,
            pace: limits.map(BodyProgress::new),
            late: None,
            pressure: None,
            held,
            window: None,
            place,
        }
    }
}

impl<B> TimedBody<B> {
    /// Completes when the body has waited for the client long enough.
    fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<Late> {
        let Some(pace) = &mut self.pace else {
            return Poll::Pending;
        };
        if self.pressure.is_none() {
            // A body without memory is in no request's way.
            let has_window = self.window.is_some();
            let held = self.held.as_ref();
            let held = held.filter(|held| has_window || held.holding().charge.bytes() > 0);
            self.pressure = held.map(RequestMemory::pressure);
        }
        let waiting = || -> LateFuture {
            let now = Instant::now();
            let pressure = self.pressure.clone();
            Box::pin(late(pace.deadline(now), pace.silent(now), pressure))
        };
        let late = self.late.get_or_insert_with(waiting);
        late.as_mut().poll(context)
    }
}

impl<B> Body for TimedBody<B>
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
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) else {
            let late = std::task::ready!(this.poll_late(context));
            this.place.places().count(Closed::SlowBody);
            return Poll::Ready(Some(Err(late.into())));
        };
        this.late = None;
        if let Some(Ok(frame)) = &frame {
            let data = frame.data_ref().map_or(&[][..], |data| data);
            if let Some(pace) = &mut this.pace {
                pace.came(data.len(), Instant::now());
            }
            if !data.is_empty() {
                this.pressure = None;
            }
            if let Some(held) = &this.held
                && let Err(over) = held.take(data)
            {
                this.place.places().count(Closed::OverBudget);
                return Poll::Ready(Some(Err(BodyError::OverBudget(over.into()))));
            }
        }
        Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from)))
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
