//! Queue of outputs for a client that may read slowly.
//!
//! Outputs come as fast as the engine makes them, and leave as fast as their client
//! takes them. The sender never waits. Instead, waiting outputs are charged. If there
//! is no memory for more, the reader gets an error after the waiting outputs.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use tokio::sync::mpsc;
use tonic::Status;

use crate::{
    budget::{Budget, Charge},
    reserve::Prepaid,
};

/// Bytes that may wait without a charge; a reader that keeps up is not further behind.
/// More bytes are charged in pieces of this size, so that requests seldom touch their
/// shared budget.
const PIECE: usize = 16 << 10;

/// Error: the client takes its answer too slowly for the available memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "The answer was given up: its client takes it too slowly, and the server holds as many bytes \
     of requests as --max-request-memory allows."
)]
pub struct SlowClient;

impl From<SlowClient> for Status {
    fn from(given_up: SlowClient) -> Self {
        Self::resource_exhausted(given_up.to_string())
    }
}

/// Makes a queue for the outputs of a request. Waiting outputs are charged to `budget`,
/// except as many bytes as the request has `paid` for already.
pub fn outputs<T>(budget: &Arc<Budget>, paid: Prepaid) -> (OutputSender<T>, OutputReceiver<T>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let waiting = Arc::new(QueuedBytes::default());
    let sender = OutputSender {
        outputs: sender,
        waiting: waiting.clone(),
        room: budget.charge(),
        paid,
        given_up: false,
    };
    let receiver = OutputReceiver {
        outputs: receiver,
        waiting,
    };
    (sender, receiver)
}

/// State shared by both ends.
#[derive(Debug, Default)]
struct QueuedBytes {
    bytes: AtomicUsize,
    /// Memory for outputs that the sender left behind.
    room: OnceLock<Charge>,
}

/// Sending end of a request's outputs.
#[derive(Debug)]
pub struct OutputSender<T> {
    /// Outputs, each with its bytes.
    outputs: mpsc::UnboundedSender<Result<(T, usize), SlowClient>>,
    waiting: Arc<QueuedBytes>,
    room: Charge,
    paid: Prepaid,
    given_up: bool,
}

impl<T> OutputSender<T> {
    /// Sends an output that takes `bytes`. Never waits. Only [`Self::is_closed`] shows
    /// whether the reader has left.
    ///
    /// # Errors
    /// [`SlowClient`] if there is no memory for the output, and ever after. The reader
    /// gets the same error after the waiting outputs.
    pub fn send(&mut self, output: T, bytes: usize) -> Result<(), SlowClient> {
        if self.given_up {
            return Err(SlowClient);
        }
        let waiting = self.waiting.bytes.fetch_add(bytes, Relaxed) + bytes;
        let room = self.make_room(waiting);
        self.given_up = room.is_err();
        // The send fails if the reader has left.
        let _ = self.outputs.send(room.map(|()| (output, bytes)));
        room
    }

    /// Returns true if nobody takes more.
    pub fn is_closed(&self) -> bool {
        self.given_up || self.outputs.is_closed()
    }

    /// Charges the waiting bytes, in whole pieces.
    fn make_room(&mut self, waiting: usize) -> Result<(), SlowClient> {
        let wanted = match waiting.saturating_sub(PIECE) {
            0 => 0,
            beyond => beyond
                .saturating_sub(self.paid.bytes())
                .next_multiple_of(PIECE),
        };
        let taken = self.room.bytes();
        if wanted <= taken {
            self.room.keep(wanted);
            return Ok(());
        }
        self.room.add(wanted - taken).map_err(|_| SlowClient)
    }
}

impl<T> Drop for OutputSender<T> {
    /// Waiting outputs keep their memory until the reader has left too.
    fn drop(&mut self) {
        // This cannot fail, because the memory is set only here.
        let _ = self.waiting.room.set(self.room.hand_over());
    }
}

/// Receiving end of a request's outputs.
#[derive(Debug)]
pub struct OutputReceiver<T> {
    outputs: mpsc::UnboundedReceiver<Result<(T, usize), SlowClient>>,
    waiting: Arc<QueuedBytes>,
}

impl<T> OutputReceiver<T> {
    /// Returns the next output; `None` once the sender has left. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Result<T, SlowClient>> {
        let output = self.outputs.recv().await;
        output.map(|output| self.took(output))
    }

    /// Returns the next output, if there is one.
    pub fn try_recv(&mut self) -> Option<Result<T, SlowClient>> {
        let output = self.outputs.try_recv().ok();
        output.map(|output| self.took(output))
    }

    /// [`Self::recv`] for streams.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<T, SlowClient>>> {
        let output = ready!(self.outputs.poll_recv(context));
        Poll::Ready(output.map(|output| self.took(output)))
    }

    fn took(&self, output: Result<(T, usize), SlowClient>) -> Result<T, SlowClient> {
        output.map(|(output, bytes)| {
            self.waiting.bytes.fetch_sub(bytes, Relaxed);
            output
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reserve::AnswerReservation;

    #[tokio::test]
    async fn what_waits_is_charged_until_it_is_taken() {
        let [budget, other] = [(); 2].map(|()| Budget::new(64 * PIECE));
        let room = AnswerReservation::new(&other);
        let mut paid = room.reserve(&[PIECE]).expect("there is room");
        let (mut sender, mut receiver) = outputs(&budget, paid.iter().collect());
        for (waiting, charged) in [(1, 0), (2, 0), (3, 1), (4, 2)] {
            assert_eq!(sender.send(waiting, PIECE), Ok(()));
            assert_eq!(budget.taken(), charged * PIECE, "{waiting} wait");
        }
        assert_eq!(sender.send(5, 1), Ok(()));
        assert_eq!(budget.taken(), 3 * PIECE, "whole pieces");
        for expected in [1, 2, 3] {
            assert_eq!(receiver.recv().await, Some(Ok(expected)));
        }
        assert_eq!(sender.send(6, 1), Ok(()));
        assert_eq!(budget.taken(), 0, "what waits is paid");
        assert_eq!(paid[0].came(PIECE), Ok(()));
        assert_eq!(sender.send(7, 0), Ok(()));
        assert_eq!(budget.taken(), PIECE, "there is no more room for what came");
        assert_eq!(sender.send(8, 3 * PIECE), Ok(()));
        drop(sender);
        assert_eq!(receiver.try_recv(), Some(Ok(4)));
        assert_eq!(budget.taken(), 4 * PIECE, "the rest still waits");
        for expected in [5, 6, 7, 8] {
            assert_eq!(receiver.recv().await, Some(Ok(expected)));
        }
        assert_eq!(receiver.recv().await, None);
        drop(receiver);
        assert_eq!(budget.taken(), 0);
    }

    #[tokio::test]
    async fn who_reads_too_slowly_is_given_up_behind_what_waits() {
        let budget = Budget::new(4 * PIECE);
        let (mut slow, mut reader) = outputs(&budget, Prepaid::default());
        let fits = (0..100).take_while(|number| slow.send(*number, PIECE).is_ok());
        assert_eq!(fits.count(), 5, "one is free");
        assert_eq!(slow.send(100, 0), Err(SlowClient), "ever after");
        assert!(slow.is_closed());
        let (mut quick, mut other) = outputs(&budget, Prepaid::default());
        for number in 0..100 {
            assert_eq!(quick.send(number, PIECE), Ok(()), "others go on");
            assert_eq!(other.recv().await, Some(Ok(number)));
        }
        drop(slow);
        for number in 0..5 {
            assert_eq!(reader.recv().await, Some(Ok(number)));
        }
        assert_eq!(reader.recv().await, Some(Err(SlowClient)));
        assert_eq!(reader.recv().await, None);
        assert_eq!(budget.taken(), 4 * PIECE);
        drop(reader);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn a_reader_that_left_is_noticed_and_costs_nothing() {
        let budget = Budget::new(64 * PIECE);
        let (mut sender, receiver) = outputs(&budget, Prepaid::default());
        assert_eq!(sender.send((), 3 * PIECE), Ok(()));
        assert!(!sender.is_closed());
        drop(receiver);
        assert!(sender.is_closed());
        drop(sender);
        assert_eq!(budget.taken(), 0);
    }
}
