use std::net::Ipv4Addr;

use axum::body::to_bytes;
use tokio::sync::mpsc;

use super::*;
use crate::{limits::PortLimits, peer::Peer, places::Places};

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn pace(whole: u64, rate: u64) -> BodyProgress {
    BodyProgress::new(BodyLimits {
        whole: seconds(whole),
        rate,
        silence: seconds(20),
    })
}

#[test]
fn a_rate_is_asked_for_after_a_while() {
    let begin = Instant::now();
    let mut slow = pace(300, 100);
    assert_eq!(slow.deadline(begin), begin + seconds(10), "nothing comes");
    slow.came(550, begin + seconds(4));
    // The server's own time between two parts is not the client's.
    let later = begin + seconds(3600);
    let expected = later + seconds(10 + 5 - 4);
    assert_eq!(
        slow.deadline(later),
        expected,
        "550 bytes earn five seconds"
    );
    assert_eq!(slow.deadline(later + seconds(1)), expected, "waiting on");
}

#[test]
fn a_body_is_waited_for_only_so_long() {
    let begin = Instant::now();
    assert_eq!(
        pace(300, 0).deadline(begin),
        begin + seconds(300),
        "any rate"
    );
    let mut fast = pace(60, 1);
    for second in 0..60 {
        let now = begin + seconds(second);
        assert!(fast.deadline(now) > now);
        fast.came(1_000_000, now + seconds(1));
    }
    let now = begin + seconds(60);
    assert_eq!(fast.deadline(now), now, "all is used up");
}

#[test]
fn silence_is_what_is_waited_for_since_the_last_byte() {
    let begin = Instant::now();
    let mut body = pace(300, 1);
    assert_eq!(body.silent(begin), begin + seconds(20));
    body.came(1_000_000, begin + seconds(15));
    // The number of bytes so far does not matter, and the server's own time is not
    // silence.
    let later = begin + seconds(1000);
    assert_eq!(body.silent(later), later + seconds(20));
    // A part without bytes does not end the silence.
    body.came(0, later + seconds(7));
    assert_eq!(body.silent(later + seconds(9)), later + seconds(9 + 20 - 7));
    body.came(0, later + seconds(100));
    let late = later + seconds(200);
    assert_eq!(body.silent(late), late, "it has been silent for longer");
    assert!(body.deadline(late) > late);
    body.came(1, late);
    assert_eq!(body.silent(late), late + seconds(20));
}

/// A body made of the parts sent to it.
struct Parts(mpsc::UnboundedReceiver<&'static str>);

impl Body for Parts {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let part = std::task::ready!(self.0.poll_recv(context));
        Poll::Ready(part.map(|part| Ok(Frame::data(part.into()))))
    }
}

#[tokio::test]
async fn what_comes_arrives_and_what_does_not_ends_with_an_error() {
    let places = Places::new(PortLimits::for_tests(1, 1));
    let (place, _) = places.admit(Ipv4Addr::LOCALHOST.into()).expect("a place");
    let body = |parts, whole| {
        let limits = BodyLimits {
            whole,
            rate: 0,
            silence: Duration::ZERO,
        };
        let body = TimedBody::new(Parts(parts), Some(limits), None, place.clone());
        to_bytes(axum::body::Body::new(body), 100)
    };
    let (sender, parts) = mpsc::unbounded_channel();
    let (bytes, ()) = tokio::join!(body(parts, seconds(3600)), async {
        for part in ["ab", "cd"] {
            sender.send(part).expect("read");
            tokio::task::yield_now().await;
        }
        drop(sender);
    });
    assert_eq!(bytes.expect("all of it"), "abcd");

    let (sender, parts) = mpsc::unbounded_channel();
    sender.send("ab").expect("read");
    let error = body(parts, Duration::ZERO).await.expect_err("too slow");
    let status = Status::from_error(error.into());
    assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
    let closed = places.report("x").closed;
    assert!(closed.contains(&(Closed::SlowBody, 1)), "{closed:?}");
}

#[tokio::test]
async fn a_stream_of_messages_is_charged_one_at_a_time() {
    let budget = Budget::new(100);
    let places = Places::new(PortLimits::for_tests(1, 1));
    let (place, _) = places.admit(Ipv4Addr::LOCALHOST.into()).expect("a place");
    let held = RequestMemory::new(&budget, true);
    let (sender, received) = mpsc::unbounded_channel();
    // The messages have 60 bytes each, and the last one 20.
    let full = "x".repeat(60).leak();
    for _ in 0..100 {
        for part in ["\0\0\0\0\x3c", full] {
            sender.send(part).expect("read");
        }
    }
    sender.send("\0\0\0\0\x14").expect("read");
    drop(sender);
    let body = TimedBody::new(Parts(received), None, Some(held.clone()), place);
    let all = to_bytes(axum::body::Body::new(body), 100_000).await;
    assert_eq!(all.expect("within the budget").len(), 100 * 65 + 5);
    assert_eq!(budget.taken(), 60, "the largest of them");
}

#[tokio::test]
async fn what_is_over_the_budget_ends_and_gives_all_back() {
    let budget = Budget::new(100);
    let places = Places::new(PortLimits::for_tests(1, 1));
    let (place, _) = places.admit(Ipv4Addr::LOCALHOST.into()).expect("a place");
    // The bytes that messages announce in their heads count: here 60, then 120.
    let message = "\0\0\0\0\x3c";
    let full = "x".repeat(60).leak();
    for (messages, parts) in [
        (false, vec!["ab"; 51]),
        (true, vec![message, full, "\0\0\0\0\x78"]),
    ] {
        let held = RequestMemory::new(&budget, messages);
        let (sender, received) = mpsc::unbounded_channel();
        for part in parts {
            sender.send(part).expect("read");
        }
        drop(sender);
        let body = TimedBody::new(Parts(received), None, Some(held.clone()), place.clone());
        let error = to_bytes(axum::body::Body::new(body), 1000).await;
        let status = Status::from_error(error.expect_err("over the budget").into());
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        assert!(budget.taken() > 0, "until its reader is done");
        drop(held);
        assert_eq!(budget.taken(), 0);
    }
    let closed = places.report("x").closed;
    assert!(closed.contains(&(Closed::OverBudget, 2)), "{closed:?}");
}

/// Whatever its head announces: its reader refuses it, and says why.
#[test]
fn a_message_that_nobody_reads_takes_no_more_than_one_that_is_read() {
    let budget = Budget::new(4 * LARGEST_MESSAGE);
    let held = RequestMemory::new(&budget, true);
    assert_eq!(held.take(&[0, 0xff, 0xff, 0xff, 0xff]), Ok(()));
    assert_eq!(budget.taken(), LARGEST_MESSAGE);
}

/// Returns a body that begins with this part. It may not be silent if other requests
/// find no memory.
fn held_body(
    part: &'static str,
    held: &RequestMemory,
) -> (mpsc::UnboundedSender<&'static str>, TimedBody<Parts>) {
    let places = Places::new(PortLimits::for_tests(1, 1));
    let (place, _) = places.admit(Ipv4Addr::LOCALHOST.into()).expect("a place");
    let limits = BodyLimits {
        whole: seconds(3600),
        rate: 0,
        silence: Duration::ZERO,
    };
    let (sender, parts) = mpsc::unbounded_channel();
    sender.send(part).expect("read");
    let body = TimedBody::new(Parts(parts), Some(limits), Some(held.clone()), place);
    (sender, body)
}

/// Returns the size of the body's next part, or the body's error.
async fn next(body: &mut TimedBody<Parts>) -> Result<usize, BodyError> {
    let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
    let frame = tokio::time::timeout(seconds(60), frame).await;
    let frame = frame.expect("in time").expect("its sender is there")?;
    Ok(frame.data_ref().map_or(0, Bytes::len))
}

/// Returns true if the body waits for more, although it has been silent long enough.
async fn is_waited_for(body: &mut TimedBody<Parts>) -> bool {
    // The timeout comes after the body's own timer, so the body is polled once more.
    let more = tokio::time::timeout(Duration::ZERO, next(body)).await;
    more.is_err()
}

#[tokio::test]
async fn silence_ends_a_body_only_where_others_find_no_room() {
    const LARGE: usize = 300_000;
    // A silent body that holds nothing is left alone, unless its connection holds a
    // window.
    for has_window in [false, true] {
        let budget = Budget::new(1 << 20);
        let held = RequestMemory::new(&budget.of_peer(Peer::from([10, 0, 0, 1])), false);
        let (_sender, mut body) = held_body("", &held);
        body.window = has_window.then(|| Arc::new(budget.charge()));
        assert_eq!(next(&mut body).await.expect("a part"), 0);
        assert!(is_waited_for(&mut body).await, "nobody wants room");
        assert!(budget.charge().add(2 << 20).is_err());
        assert!(is_waited_for(&mut body).await, "there never was that much");
        let third = budget.of_peer(Peer::from([10, 0, 0, 3]));
        let mut filled = budget.charge();
        filled.add(700_000).expect("there is room");
        assert!(third.charge().add(LARGE).is_err());
        assert_eq!(is_waited_for(&mut body).await, !has_window);
    }
    // Once read as plain bytes, and once as a message whose head announces as many.
    let message = format!("\0\0\x04\0\0{}", "x".repeat(100));
    for (messages, part) in [(false, "x".repeat(LARGE)), (true, message)] {
        let part = part.leak();
        // An address has half of this, and its large requests three quarters of that
        // half.
        let budget = Budget::new(1 << 20);
        let [own, other] = [1, 2].map(|last| budget.of_peer(Peer::from([10, 0, 0, last])));
        let add = |part: &Arc<Budget>, bytes| part.charge().add(bytes);
        for whole in [false, true] {
            let held = RequestMemory::new(&own, messages);
            let (sender, mut body) = held_body(part, &held);
            // A request found no memory before the silence began.
            let mut filled = own.charge();
            filled.add(200_000).expect("there is room");
            assert_eq!(add(&own, LARGE), Err(OverBudget::Peer));
            drop(filled);
            assert_eq!(next(&mut body).await.expect("a part"), part.len());
            assert!(is_waited_for(&mut body).await, "nobody wants its room");
            // Another address has used its part, and a request wants more than anybody
            // may have.
            let mut others = other.charge();
            others.add(384 << 10).expect("three quarters of its half");
            assert_eq!(add(&other, LARGE), Err(OverBudget::Peer));
            assert!(add(&own, 1 << 20).is_err());
            assert!(is_waited_for(&mut body).await, "nobody wants its room");
            // A byte ends the silence.
            assert_eq!(add(&own, LARGE), Err(OverBudget::Peer));
            sender.send("x").expect("read");
            assert_eq!(next(&mut body).await.expect("a part"), 1);
            assert!(is_waited_for(&mut body).await, "of its silence");
            if whole {
                let third = budget.of_peer(Peer::from([10, 0, 0, 3]));
                assert_eq!(add(&third, LARGE), Err(OverBudget::Process));
            } else {
                assert_eq!(add(&own, LARGE), Err(OverBudget::Peer));
            }
            // A part without bytes does not end the silence.
            sender.send("").expect("read");
            assert_eq!(next(&mut body).await.expect("a part"), 0);
            let error = next(&mut body).await.expect_err("it is silent");
            assert!(matches!(error, BodyError::Silent(_)), "{error}");
            let status = Status::from_error(error.into());
            assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
            let closed = body.place.places().report("x").closed;
            assert!(closed.contains(&(Closed::SlowBody, 1)), "{closed:?}");
            drop((body, held, others));
            assert_eq!(budget.taken(), 0);
        }
    }
}
