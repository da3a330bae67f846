//! Clients that take nothing of a streamed answer.
//!
//! An HTTP/2 client can keep its connection alive and still grant a stream no
//! window. The transport then does not ask for the answer's next part, however
//! long it takes, and with the answer its request would stay: its memory, its
//! place at the scheduler, and a drain that waits for it.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use futures::Stream;
use tokio::{task::AbortHandle, time::Instant};

/// A client that takes nothing for so long is cut off: it holds a connection
/// and the answer's memory.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(120);

/// An answer that is dropped once nobody has asked for its next part for too
/// long. Then `last` says so to a client that wakes up.
#[derive(Debug)]
pub struct Guarded<S: Stream> {
    shared: Arc<Mutex<Shared<S>>>,
    last: Option<fn() -> S::Item>,
    watch: AbortHandle,
}

#[derive(Debug)]
struct Shared<S> {
    answer: Option<S>,
    /// Since when the next part is not asked for; `None` while it is awaited.
    idle: Option<Instant>,
}

impl<S> Guarded<S>
where
    S: Stream + Send + Unpin + 'static,
{
    /// Guards `answer`. Needs a tokio runtime.
    pub fn new(answer: S, limit: Duration, last: fn() -> S::Item) -> Self {
        let shared = Arc::new(Mutex::new(Shared {
            answer: Some(answer),
            idle: Some(Instant::now()),
        }));
        Self {
            watch: tokio::spawn(watch(shared.clone(), limit)).abort_handle(),
            shared,
            last: Some(last),
        }
    }
}

/// Drops the answer when it has been idle for `limit`.
async fn watch<S>(shared: Arc<Mutex<Shared<S>>>, limit: Duration) {
    loop {
        let until = {
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            match shared.idle {
                Some(idle) if idle.elapsed() >= limit => {
                    tracing::debug!("a client takes nothing of its answer: it is dropped");
                    shared.answer = None;
                    return;
                }
                Some(idle) => idle + limit,
                None => Instant::now() + limit,
            }
        };
        tokio::time::sleep_until(until).await;
    }
}

impl<S> Stream for Guarded<S>
where
    S: Stream + Unpin,
{
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = {
            // Nobody else holds it but the watch, and that for a moment.
            let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            let next = shared
                .answer
                .as_mut()
                .map(|answer| Pin::new(answer).poll_next(context));
            shared.idle = match next {
                Some(Poll::Pending) => None,
                _ => Some(Instant::now()),
            };
            next
        };
        match next {
            Some(Poll::Ready(None)) => {
                self.last = None;
                Poll::Ready(None)
            }
            Some(next) => next,
            None => Poll::Ready(self.last.take().map(|last| last())),
        }
    }
}

impl<S: Stream> Drop for Guarded<S> {
    fn drop(&mut self) {
        self.watch.abort();
        // The watch's task may outlive this by a moment; the answer must not.
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.answer = None;
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt, stream};
    use tokio::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    /// Endless numbers; the receiver ends when they are dropped.
    fn numbers() -> (impl Stream<Item = i32> + Send + Unpin, mpsc::Receiver<()>) {
        let (held, dropped) = mpsc::channel(1);
        let numbers = stream::iter(0..).map(move |number| {
            let _ = &held;
            number
        });
        (numbers, dropped)
    }

    #[tokio::test]
    async fn an_answer_that_nobody_takes_is_dropped() {
        let (answer, mut dropped) = numbers();
        let mut guarded = Guarded::new(answer, Duration::from_millis(5), || -1);
        assert_eq!(dropped.recv().await, None, "dropped by the watch");
        assert_eq!(guarded.next().await, Some(-1));
        assert_eq!(guarded.next().await, None);
    }

    #[tokio::test]
    async fn an_answer_that_is_awaited_or_taken_stays() {
        let (sender, parts) = mpsc::channel(1);
        let parts = tokio_stream::wrappers::ReceiverStream::new(parts);
        let mut guarded = Guarded::new(parts, Duration::from_millis(1), || -1);
        // Awaited from the first poll on: however long the engine takes, the
        // client is not to blame.
        let (first, ()) = tokio::join!(guarded.next(), async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            sender.send(7).await.expect("still there");
        });
        assert_eq!(first, Some(7));

        let (answer, mut dropped) = numbers();
        let mut guarded = Guarded::new(answer, LONG, || -1);
        assert_eq!(guarded.next().await, Some(0));
        assert_eq!(guarded.next().await, Some(1));
        drop(guarded);
        assert_eq!(dropped.recv().await, None, "with the guard");
    }

    #[tokio::test]
    async fn an_answer_ends_without_the_last_word() {
        let mut guarded = Guarded::new(stream::iter([1]), LONG, || -1);
        assert_eq!(guarded.next().await, Some(1));
        assert_eq!(guarded.next().await, None);
    }
}
