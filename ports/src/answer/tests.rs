use std::{future::poll_fn, net::Ipv4Addr, sync::Arc, time::Duration};

use tokio::{sync::mpsc, sync::oneshot, time::Instant};

use super::*;
use crate::{
    budget::{Budget, Charge},
    limits::PortLimits,
    outgoing::{HANDED_OVER, PART},
    places::{Place, Places},
    reserve::{AnswerReservation, Reservation},
};

type Connection = (Arc<Places>, Arc<Place>, oneshot::Receiver<Closed>);

/// Returns a connection whose answers' parts must be taken within eight hours.
fn connection() -> Connection {
    let places = Places::new(PortLimits::for_tests(1, 1));
    let (place, end) = places.admit(Ipv4Addr::LOCALHOST.into()).expect("a place");
    (places, place, end)
}

/// A body made of the parts sent to it. The sender notices when the body is dropped.
struct Parts(mpsc::Receiver<usize>);

impl HttpBody for Parts {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let part = std::task::ready!(self.0.poll_recv(context));
        Poll::Ready(part.map(|bytes| Ok(Frame::data(vec![0; bytes].into()))))
    }
}

fn answer(place: &Arc<Place>) -> (mpsc::Sender<usize>, Answer) {
    let (sender, parts) = mpsc::channel(9);
    (
        sender,
        Answer::new(place.enter(), Body::new(Parts(parts)), None),
    )
}

async fn next(answer: &mut Answer) -> Option<Result<usize, axum::Error>> {
    let frame = poll_fn(|context| Pin::new(&mut *answer).poll_frame(context)).await?;
    Some(frame.map(|frame| frame.data_ref().map_or(0, Bytes::len)))
}

fn is_pending(answer: &mut Answer) -> bool {
    let mut context = Context::from_waker(std::task::Waker::noop());
    Pin::new(answer).poll_frame(&mut context).is_pending()
}

fn in_nine_hours() -> Instant {
    Instant::now() + Duration::from_secs(9 * 3600)
}

#[tokio::test]
async fn a_large_answer_is_handed_over_in_parts() {
    let (_, place, _) = connection();
    for bytes in [0, 1, PART, PART + 1, 5 * PART - 1] {
        let in_service = place.enter();
        let unsent = in_service.outgoing().unsent();
        let mut answer = Answer::new(in_service, vec![7; bytes].into(), None);
        assert_eq!(answer.is_end_stream(), bytes == 0);
        let mut left = bytes;
        while let Some(part) = next(&mut answer).await {
            let part = part.expect("a part");
            assert!(part <= PART, "{part}");
            left -= part;
            assert_eq!(answer.size_hint().exact(), Some(left as u64));
            assert_eq!(unsent.bytes(), left);
            assert!(!answer.is_end_stream(), "its end is not asked for yet");
        }
        assert_eq!(left, 0, "of {bytes}");
    }
}

#[tokio::test]
async fn an_answer_that_is_not_taken_is_dropped_alone() {
    let (places, place, mut end) = connection();
    let (sender, mut untaken) = answer(&place);
    let (awaited_sender, mut awaited) = answer(&place);
    for bytes in [PART + 1, 1] {
        sender.send(bytes).await.expect("read");
    }
    assert_eq!(next(&mut untaken).await.expect("a part").ok(), Some(PART));
    // The engine may take as long as it likes.
    assert!(is_pending(&mut awaited));
    places.sweep(Instant::now());
    assert!(!sender.is_closed());
    places.sweep(in_nine_hours());
    assert!(sender.is_closed(), "what it held is free again");
    assert!(end.try_recv().is_err(), "the other answer is awaited");
    assert!(next(&mut untaken).await.expect("a part").is_err());
    drop(untaken);

    awaited_sender.send(1).await.expect("it stays");
    assert_eq!(next(&mut awaited).await.expect("a part").ok(), Some(1));
    assert!(is_pending(&mut awaited), "taken and asked for more");
    places.sweep(in_nine_hours());
    assert!(end.try_recv().is_err());
    let closed = places.report("x").closed;
    assert!(closed.contains(&(Closed::Stalled, 1)), "{closed:?}");
}

#[tokio::test]
async fn a_connection_ends_with_its_last_answer_that_is_not_taken() {
    let (places, place, mut end) = connection();
    // Nothing is asked for even once, as with a peer that grants no window.
    let answers = [answer(&place), answer(&place)];
    places.sweep(in_nine_hours());
    assert_eq!(end.try_recv(), Ok(Closed::Stalled));
    assert!(answers.iter().all(|(sender, _)| sender.is_closed()));
    drop(answers);
    let report = places.report("x");
    assert!(report.closed.contains(&(Closed::Stalled, 1)), "{report:?}");
    assert_eq!(report.open, 0);
}

#[tokio::test]
async fn what_waits_is_charged_and_what_is_taken_or_dropped_given_back() {
    let (places, place, _end) = connection();
    let budget = Budget::new(100 * PART);
    let answer = |room: Charge| {
        let (sender, parts) = mpsc::channel(9);
        let body = Body::new(Parts(parts));
        (sender, Answer::new(place.enter(), body, Some(room.into())))
    };
    let (parts, mut streamed) = answer(budget.charge());
    parts.send(10).await.expect("open");
    assert_eq!(next(&mut streamed).await.expect("a part").ok(), Some(10));
    assert_eq!(budget.taken(), 0, "handed over at once");
    parts.send(5 * PART).await.expect("open");
    assert_eq!(next(&mut streamed).await.expect("a part").ok(), Some(PART));
    assert_eq!(budget.taken(), 5 * PART);
    for left in (0..4).rev() {
        assert_eq!(next(&mut streamed).await.expect("a part").ok(), Some(PART));
        let held = (left * PART + HANDED_OVER).min(5 * PART);
        assert_eq!(budget.taken(), held, "{left} parts are left");
    }
    parts.send(5 * PART).await.expect("open");
    assert_eq!(next(&mut streamed).await.expect("a part").ok(), Some(PART));
    assert_eq!(budget.taken(), 5 * PART);
    let (_parts, other) = answer(budget.charge());
    places.sweep(in_nine_hours());
    assert_eq!(budget.taken(), HANDED_OVER, "what a transport may have");
    drop((streamed, other));
    assert_eq!(budget.taken(), 0);
    let (parts, mut refused) = answer(budget.charge());
    parts.send(80 * PART).await.expect("open");
    assert!(next(&mut refused).await.expect("an end").is_err());
    assert_eq!(budget.taken(), 0);
    let closed = places.report("x").closed;
    assert!(closed.contains(&(Closed::OverBudget, 1)), "{closed:?}");
}

#[tokio::test]
async fn what_was_reserved_is_a_streams_to_its_end() {
    let (_places, place, _end) = connection();
    let budget = Budget::new(100 * PART);
    let mut room = budget.charge();
    assert_eq!(room.add(6 * PART), Ok(()));
    let (sender, parts) = mpsc::channel(9);
    let mut streamed = Answer::new(place.enter(), Body::new(Parts(parts)), Some(room.into()));
    for (bytes, taken) in [(10, 6), (5 * PART, 6), (8 * PART, 8), (2 * PART, 6)] {
        sender.send(bytes).await.expect("open");
        let first = next(&mut streamed).await.expect("a part").ok();
        assert_eq!(first, Some(bytes.min(PART)));
        assert_eq!(budget.taken(), taken * PART, "of {bytes} bytes");
        for _ in 1..bytes.div_ceil(PART) {
            assert_eq!(next(&mut streamed).await.expect("a part").ok(), Some(PART));
        }
    }
    assert_eq!(budget.taken(), 6 * PART);
    drop(streamed);
    assert_eq!(budget.taken(), 0);
}

#[tokio::test]
async fn what_outgrows_its_reserve_counts_as_large_as_that() {
    let (_places, place, _end) = connection();
    let budget = Budget::new(100 * PART);
    let mut others = budget.charge();
    others.add(72 * PART).expect("nearly three quarters");
    for (reserved, fits) in [(0, true), (PART, true), (2 * PART, false)] {
        let mut room = budget.of_peer(Ipv4Addr::LOCALHOST.into()).charge();
        room.add(reserved).expect("there is room");
        let (sender, parts) = mpsc::channel(9);
        let mut answer = Answer::new(place.enter(), Body::new(Parts(parts)), Some(room.into()));
        sender.send(5 * PART).await.expect("open");
        let part = next(&mut answer).await.expect("a part or an error");
        assert_eq!(part.is_ok(), fits, "{reserved}");
    }
}

#[tokio::test]
async fn what_a_stream_gives_back_leaves_with_its_next_part_or_none() {
    let (_places, place, _end) = connection();
    let budget = Budget::new(100 * PART);
    let room = AnswerReservation::new(&budget);
    let parts = room
        .reserve(&[10 * PART, 10 * PART])
        .expect("there is room");
    let [mut first, second]: [Reservation; 2] = parts.try_into().expect("two");
    let (sender, parts) = mpsc::channel(9);
    let body = Body::new(Parts(parts));
    let mut streamed = Answer::new(place.enter(), body, Some(room.hand_over()));
    first.went(4 * PART);
    assert_eq!(budget.taken(), 20 * PART, "nobody has asked for more");
    assert!(is_pending(&mut streamed));
    assert_eq!(budget.taken(), 16 * PART);
    drop(second);
    sender.send(10).await.expect("open");
    assert_eq!(next(&mut streamed).await.expect("a part").ok(), Some(10));
    assert_eq!(budget.taken(), 6 * PART);
    // A part that came at once keeps its reserved room until the part is taken.
    first.went(6 * PART);
    sender.send(6 * PART).await.expect("open");
    for left in (0..6).rev() {
        assert_eq!(next(&mut streamed).await.expect("a part").ok(), Some(PART));
        let held = (left * PART + HANDED_OVER).min(6 * PART);
        assert_eq!(budget.taken(), held, "{left} parts are left");
    }
    drop((streamed, first, room));
    assert_eq!(budget.taken(), 0);
}
