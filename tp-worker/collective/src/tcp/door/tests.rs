use std::net::SocketAddr;

use super::*;

/// Returns a port, and an identity that takes rank 1 of 2 for a rank.
fn port() -> (TcpListener, Identity<'static>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    (listener, Identity::new(0, 2, 100, "group", b"secret"))
}

fn call(listener: &TcpListener) -> TcpStream {
    let address = listener.local_addr().expect("it is bound");
    TcpStream::connect(address).expect("connect")
}

fn addresses<'a>(streams: impl IntoIterator<Item = &'a TcpStream>) -> Vec<SocketAddr> {
    let address = |stream: &TcpStream| stream.local_addr().expect("it is connected");
    streams.into_iter().map(address).collect()
}

/// Waits at the door until `last` has been let in. Returns the callers that are heard then, in
/// their order.
fn heard(door: &mut Door<'_>, identity: &Identity<'_>, last: &TcpStream) -> Vec<SocketAddr> {
    let peer = |caller: &Caller| caller.link.socket().peer_addr().expect("it is connected");
    let last = last.local_addr().expect("it is connected");
    loop {
        let found = door.next(identity, |_| true, Duration::from_secs(10));
        assert!(found.expect("the port is open").is_none());
        if door.callers.iter().map(peer).any(|caller| caller == last) {
            return door.callers.iter().map(peer).collect();
        }
    }
}

#[test]
fn who_came_first_goes_first_where_many_come() {
    let (listener, identity) = port();
    let mut door = Door::open(&listener, None).expect("open");
    let strangers: Vec<_> = (0..MOST).map(|_| call(&listener)).collect();
    let expected = addresses(&strangers);
    assert_eq!(heard(&mut door, &identity, &strangers[MOST - 1]), expected);
    // A rank, which is still to answer, is among the callers that come later.
    let mut rank = call(&listener);
    let more: Vec<_> = (0..3).map(|_| call(&listener)).collect();
    let last = [&rank].into_iter().chain(&more);
    let expected = addresses(strangers[4..].iter().chain(last));
    assert_eq!(heard(&mut door, &identity, &more[2]), expected);
    let (found, connected) = std::thread::scope(|scope| {
        let own = Identity::new(1, 2, 100, "group", b"secret");
        let connects = scope.spawn(move || own.connect(&mut rank, 0));
        let mut found = None;
        while found.is_none() && !connects.is_finished() {
            let next = door.next(&identity, |_| true, Duration::from_millis(50));
            found = next.expect("the port is open").map(|(rank, _)| rank);
        }
        (found, connects.join().expect("no panic"))
    });
    connected.expect("it is the rank that was expected");
    assert_eq!(found, Some(1));
}

/// The reason for refusing a rank is kept before the reason for refusing another caller,
/// whichever came first.
#[test]
fn a_refused_rank_is_remembered_before_any_stranger() {
    let (listener, identity) = port();
    for rank in 0..3 {
        let mut door = Door::open(&listener, None).expect("open");
        for caller in 0..3 {
            let mut stream = call(&listener);
            heard(&mut door, &identity, &stream);
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let wrong = Identity::new(1, 2, 100, "group", b"another secret");
                    if caller == rank {
                        wrong.connect(&mut stream, 0).expect_err("refused");
                    }
                });
                while !door.callers.is_empty() {
                    let found = door.next(&identity, |_| true, Duration::from_secs(10));
                    assert!(found.expect("the port is open").is_none());
                }
            });
        }
        let told = door.refused.expect("all were refused").to_string();
        assert!(told.contains("the secrets differ"), "{rank}: {told}");
    }
}

/// A caller that spoke as ranks do tells more than one that has left or said nothing.
#[test]
fn what_tls_refused_is_remembered_before_any_stranger() {
    let (listener, _) = port();
    let failure = |kind, text: &str| Failure::Connection(io::Error::new(kind, text));
    for tells in 0..3 {
        let mut door = Door::open(&listener, None).expect("open");
        for caller in 0..3 {
            door.note(match caller == tells {
                true => failure(ErrorKind::InvalidData, "no certificate"),
                false => failure(ErrorKind::UnexpectedEof, "gone"),
            });
        }
        let told = door.refused.expect("all were refused").to_string();
        assert_eq!(told, "no certificate");
    }
}

/// A caller that says nothing goes after a while, but a crowd does not make callers go at once.
#[test]
fn callers_are_heard_for_a_while() {
    let (listener, identity) = port();
    let mut door = Door::open(&listener, None).expect("open");
    let strangers: Vec<_> = (0..MOST).map(|_| call(&listener)).collect();
    heard(&mut door, &identity, &strangers[MOST - 1]);
    let now = Instant::now();
    let long_ago = now.checked_sub(PATIENCE).expect("the machine is up");
    let next = |door: &mut Door<'_>| {
        let found = door.next(&identity, |_| true, Duration::ZERO);
        assert!(found.expect("the port is open").is_none());
        let peers = door.callers.iter();
        let peers = peers.map(|caller| caller.link.socket().peer_addr().expect("connected"));
        peers.collect::<Vec<_>>()
    };
    // The callers seem to have come a moment ago, however long the test takes.
    for caller in &mut door.callers {
        caller.came = now + PATIENCE;
    }
    let last = call(&listener);
    assert_eq!(next(&mut door), addresses(&strangers));
    // Callers that have had their time go, and a caller that waits outside comes in.
    for caller in &mut door.callers[..2] {
        caller.came = long_ago;
    }
    let left = addresses(strangers[2..].iter().chain([&last]));
    assert_eq!(next(&mut door), left);
    assert!(
        door.refused
            .expect("two were")
            .to_string()
            .contains("timed out")
    );
}
