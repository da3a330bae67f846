use std::os::unix::net::UnixStream;
use std::thread;

use super::*;

fn identity(rank: usize) -> Identity<'static> {
    Identity::new(rank, 4, 100, "group", b"secret")
}

/// Runs a handshake, in which `theirs` takes the other for `meant`. Returns both results.
fn meet(
    ours: &Identity<'_>,
    theirs: &Identity<'_>,
    meant: usize,
    free: bool,
) -> [Result<usize, Refusal>; 2] {
    let (mut here, mut there) = UnixStream::pair().expect("a pair");
    let told = |told: Result<usize, Failure>| {
        told.map_err(|failure| match failure {
            Failure::Refused(refusal) => refusal,
            Failure::Connection(error) => panic!("{error}"),
        })
    };
    thread::scope(|scope| {
        let connects = scope.spawn(move || theirs.connect(&mut there, meant).map(|()| meant));
        let nonce = Identity::greet(&mut here).expect("it is heard");
        let answer = read(&mut here).expect("an answer");
        let judged = ours.judge(&mut here, &nonce, &answer, |_| free);
        let connected = connects.join().expect("no panic");
        [told(judged), told(connected)]
    })
}

#[test]
fn both_sides_are_told_who_fits() {
    let ours = identity(1);
    let with =
        |rank, size, capacity, group, secret| Identity::new(rank, size, capacity, group, secret);
    for (theirs, meant, free, refusal) in [
        (identity(2), 1, true, None),
        (identity(3), 1, true, None),
        // The rank has come already, or looks for another one.
        (identity(2), 1, false, Some(Refusal::Rank)),
        (identity(2), 0, true, Some(Refusal::Rank)),
        // Lower ranks do not call, a rank does not call itself, and there is no rank 4.
        (identity(0), 1, true, Some(Refusal::Rank)),
        (identity(1), 1, true, Some(Refusal::Rank)),
        (identity(4), 1, true, Some(Refusal::Rank)),
        (
            with(2, 3, 100, "group", b"secret"),
            1,
            true,
            Some(Refusal::Settings),
        ),
        (
            with(2, 5, 100, "group", b"secret"),
            1,
            true,
            Some(Refusal::Settings),
        ),
        (
            with(2, 4, 101, "group", b"secret"),
            1,
            true,
            Some(Refusal::Settings),
        ),
        (
            with(2, 4, 100, "other", b"secret"),
            1,
            true,
            Some(Refusal::Group),
        ),
        (
            with(2, 4, 100, "group", b"other"),
            1,
            true,
            Some(Refusal::Secret),
        ),
        // Who does not know the secret is told nothing of the group.
        (
            with(2, 4, 100, "other", b"other"),
            1,
            true,
            Some(Refusal::Secret),
        ),
        (
            with(2, 5, 100, "group", b"other"),
            1,
            true,
            Some(Refusal::Secret),
        ),
        (
            with(2, 4, 100, "group", b"other"),
            1,
            false,
            Some(Refusal::Secret),
        ),
    ] {
        let found = meet(&ours, &theirs, meant, free);
        let expected = match refusal {
            None => [Ok(theirs.rank), Ok(meant)],
            Some(refusal) => [Err(refusal); 2],
        };
        assert_eq!(found, expected, "rank {} for {meant}", theirs.rank);
    }
}

/// A listener that has heard an answer can't use it again.
#[test]
fn an_answer_proves_the_nonce_that_it_was_asked_for() {
    let (mut here, mut there) = UnixStream::pair().expect("a pair");
    // A side that fails closes its end, so that the other one waits no more.
    thread::scope(move |scope| {
        scope.spawn(move || identity(2).connect(&mut there, 1).expect_err("refused"));
        let ours = identity(1);
        let nonce = Identity::greet(&mut here).expect("it is heard");
        let answer = read(&mut here).expect("an answer");
        let mut said = Vec::new();
        let judge = |said: &mut Vec<u8>, nonce| ours.judge(said, nonce, &answer, |_| true);
        let again = judge(&mut said, &[7; NONCE]).expect_err("it was asked otherwise");
        assert!(
            matches!(again, Failure::Refused(Refusal::Secret)),
            "{again}"
        );
        assert_eq!(judge(&mut said, &nonce).expect("it was asked this"), 2);
        here.write_all(&said).expect("it listens");
    });
}

/// An acceptor that does not know the secret claims success.
#[test]
fn the_acceptor_has_to_prove_itself_too() {
    let (mut here, mut there) = UnixStream::pair().expect("a pair");
    thread::scope(|scope| {
        let connects = scope.spawn(move || identity(2).connect(&mut there, 1));
        Identity::greet(&mut here).expect("it is heard");
        let _: [u8; ANSWER] = read(&mut here).expect("an answer");
        here.write_all(&[0; 1 + PROOF]).expect("it listens");
        let refused = connects.join().expect("no panic").expect_err("no proof");
        assert!(
            matches!(refused, Failure::Refused(Refusal::Secret)),
            "{refused}"
        );
    });
}
