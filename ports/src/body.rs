//! Bodies of requests: they come in time or end with an error.

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
    messages::Messages,
    places::Place,
    port::BodyLimits,
    report::Closed,
    reserve::{Reserve, Room},
    wanted::Wanted,
};

/// Of a message, at the most: the gRPC services refuse a larger one by its head.
const LARGEST_MESSAGE: usize = 16 << 20;

/// Before the rate counts: a client may compute what it sends, and connections
/// take a while to get fast (as in Apache's `RequestReadTimeout body=20,MinRate`).
const GRACE: Duration = Duration::from_secs(10);

/// Why a request's body ended early.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The client was too slow. gRPC takes the status from here.
    #[error("the request's body came too slowly")]
    Slow(#[source] Status),
    /// The client brought nothing for too long while others found no room.
    #[error("the request's body brought nothing while others waited for memory")]
    Silent(#[source] Status),
    /// The process holds as many bytes of requests as it may, of all, of this
    /// address, or of those without a key.
    #[error("the server has no memory for the request")]
    OverBudget(#[source] Status),
    /// The connection broke.
    #[error(transparent)]
    Transport(#[from] hyper::Error),
}

/// For a client, until it is too late.
type Waiting = Pin<Box<dyn Future<Output = Late> + Send>>;

/// A request's body that must come in time.
pub(crate) struct Paced<B = Incoming> {
    body: B,
    pace: Option<Pace>,
    /// Set while the client is waited for.
    late: Option<Waiting>,
    /// Who finds no room since the last byte came; `None` until more is waited for.
    wanted: Option<Wanted>,
    held: Option<Held>,
    /// Room for what has come and was not asked for yet.
    pub(crate) window: Option<Arc<Charge>>,
    place: Arc<Place>,
}

/// What a request takes of its process's budget: until its answer begins, for its
/// body and for what is made of that; and what it reserves for the answer. Handlers
/// find it in the extensions.
#[derive(Debug, Clone)]
pub struct Held {
    body: Arc<Mutex<Holding>>,
    answer: Room,
}

#[derive(Debug)]
struct Holding {
    charge: Charge,
    /// In gRPC, whose reader makes room for a message when its head has come.
    messages: Option<Messages>,
}

impl Held {
    /// Nothing yet of a body, which has gRPC's `messages` or is read as it is.
    pub(crate) fn new(budget: &Arc<Budget>, messages: bool) -> Self {
        let body = Holding {
            charge: budget.charge(),
            messages: messages.then(Messages::default),
        };
        Self {
            body: Arc::new(Mutex::new(body)),
            answer: Room::new(budget),
        }
    }

    /// Takes `bytes` more, for what the body becomes.
    ///
    /// # Errors
    /// [`OverBudget`], and nothing more is taken.
    pub fn charge(&self, bytes: usize) -> Result<(), OverBudget> {
        self.holding().charge.add(bytes)
    }

    /// Takes room for what choices will bring, for each so many bytes. It is the
    /// answer's from when that begins.
    ///
    /// # Errors
    /// [`OverBudget`] where there is no room for all; nothing is taken then.
    pub fn reserve(&self, choices: &[usize]) -> Result<Vec<Reserve>, OverBudget> {
        self.answer.reserve(choices)
    }

    /// The most bytes that it could reserve, if nobody else had any.
    pub fn most(&self) -> usize {
        self.holding().charge.most_beside()
    }

    /// Who finds no room from now on that this may hold.
    fn wanted(&self) -> Wanted {
        self.holding().charge.wanted()
    }

    /// What is reserved.
    pub(crate) fn room(&self) -> Room {
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

    fn holding(&self) -> MutexGuard<'_, Holding> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a client has brought in which time. What counts is the time for which
/// it is waited for, not the time that the server takes between parts.
struct Pace {
    limits: BodyLimits,
    received: u64,
    /// Until the last part came.
    waited: Duration,
    /// Of that, until the last byte came: a part may have none.
    heard: Duration,
    /// Since when the next part is waited for.
    since: Option<Instant>,
}

impl Pace {
    fn new(limits: BodyLimits) -> Self {
        Self {
            limits,
            received: 0,
            waited: Duration::ZERO,
            heard: Duration::ZERO,
            since: None,
        }
    }

    /// Until when the client, who is waited for at the time `now`, may go on
    /// bringing nothing.
    fn deadline(&mut self, now: Instant) -> Instant {
        let BodyLimits { whole, rate, .. } = self.limits;
        let allowed = match self.received.checked_div(rate) {
            None => whole,
            Some(seconds) => whole.min(GRACE.saturating_add(Duration::from_secs(seconds))),
        };
        *self.since.get_or_insert(now) + allowed.saturating_sub(self.waited)
    }

    /// From when on the client, who is waited for at the time `now`, has brought nothing
    /// for too long where others find no room.
    fn silent(&mut self, now: Instant) -> Instant {
        let silence = self.waited - self.heard;
        *self.since.get_or_insert(now) + self.limits.silence.saturating_sub(silence)
    }

    /// A part came.
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

/// How a client is too late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Late {
    Slow,
    Silent,
}

/// Ready at the `deadline`, and from the time `silent` on once room is `wanted`.
async fn late(deadline: Instant, silent: Instant, wanted: Option<Wanted>) -> Late {
    let in_the_way = async {
        sleep_until(silent).await;
        match wanted {
            Some(wanted) => wanted.told().await,
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

impl<B> Paced<B> {
    pub(crate) fn new(
        body: B,
        limits: Option<BodyLimits>,
        held: Option<Held>,
        place: Arc<Place>,
    ) -> Self {
        Self {
            body,
            pace: limits.map(Pace::new),
            late: None,
            wanted: None,
            held,
            window: None,
            place,
        }
    }
}

impl<B> Paced<B> {
    /// Ready when the client has been waited for long enough.
    fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<Late> {
        let Some(pace) = &mut self.pace else {
            return Poll::Pending;
        };
        if self.wanted.is_none() {
            // Who holds nothing is in nobody's way.
            let has_window = self.window.is_some();
            let held = self.held.as_ref();
            let held = held.filter(|held| has_window || held.holding().charge.bytes() > 0);
            self.wanted = held.map(Held::wanted);
        }
        let waiting = || -> Waiting {
            let now = Instant::now();
            let wanted = self.wanted.clone();
            Box::pin(late(pace.deadline(now), pace.silent(now), wanted))
        };
        let late = self.late.get_or_insert_with(waiting);
        late.as_mut().poll(context)
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
                this.wanted = None;
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
