//! Groups over TCP on the loopback interface.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use lockstep_collective::{
    AbortHandle, Collective, CollectiveError, Options, Tcp, TcpListenerHandle,
};
use proptest::prelude::*;

use crate::attached;
use crate::support::{self, Case, Members, check_against_oracle};
use crate::uneven::{self, splits};

pub const SECRET: &[u8] = b"a secret of the tests";

pub fn bind(size: usize) -> (Vec<TcpListenerHandle>, Vec<SocketAddr>) {
    let handles = (0..size).map(|_| Tcp::bind("127.0.0.1:0").expect("bind"));
    let handles: Vec<_> = handles.collect();
    let addresses = handles.iter().map(TcpListenerHandle::address).collect();
    (handles, addresses)
}

fn group(size: usize, options: &Options) -> Members {
    joined(size, options, &|handle| handle)
}

/// Forms a group whose ports `prepare` has prepared, and returns its members.
pub fn joined(
    size: usize,
    options: &Options,
    prepare: &dyn Fn(TcpListenerHandle) -> TcpListenerHandle,
) -> Members {
    formed(bind(size).0, options, prepare)
}

/// Forms the group of these ports, and returns its members.
fn formed(
    handles: Vec<TcpListenerHandle>,
    options: &Options,
    prepare: &dyn Fn(TcpListenerHandle) -> TcpListenerHandle,
) -> Members {
    let addresses: Vec<_> = handles.iter().map(TcpListenerHandle::address).collect();
    thread::scope(|scope| {
        let addresses = &addresses;
        let join = |(rank, handle): (usize, TcpListenerHandle)| {
            let handle = prepare(handle);
            scope.spawn(move || {
                handle
                    .connect_with(rank, addresses, "group", SECRET, options)
                    .expect("connect")
            })
        };
        let ranks: Vec<_> = handles.into_iter().enumerate().map(join).collect();
        let member = |rank: thread::ScopedJoinHandle<'_, Tcp>| {
            Box::new(rank.join().expect("a rank panicked")) as Box<dyn Collective>
        };
        ranks.into_iter().map(member).collect()
    })
}

/// Ranks on other machines do not crowd this machine's cores.
#[test]
fn a_machine_is_crowded_by_its_own_ranks() {
    let cores = thread::available_parallelism().expect("there is a core");
    let options = Options {
        threads_per_rank: cores.get(),
        ..support::patient()
    };
    for (second, crowded) in [("127.0.0.1:0", true), ("127.0.0.2:0", false)] {
        let ports = ["127.0.0.1:0", second].map(|port| Tcp::bind(port).expect("bind"));
        let members = formed(ports.into(), &options, &|handle| handle);
        assert!(members.iter().all(|member| member.is_crowded() == crowded));
    }
}

/// The rank that leaves first is seen without an operation, whatever the others do then.
pub fn who_leaves_is_seen(mut members: Members, leave: impl FnOnce(Box<dyn Collective>)) {
    let handles: Vec<_> = members.iter().map(|member| member.abort_handle()).collect();
    assert!(handles.iter().all(|handle| handle.departed().is_none()));
    leave(members.remove(1));
    let seen = |handle: &AbortHandle| {
        while handle.departed().is_none() {
            thread::yield_now();
        }
        handle.departed()
    };
    for rank in [0, 2] {
        assert_eq!(seen(&handles[rank]), Some(1));
    }
    drop(members.remove(0));
    // This rank has closed its side, and still knows which rank left before.
    assert_eq!([0, 2].map(|rank| seen(&handles[rank])), [Some(1); 2]);
}

#[test]
fn a_rank_that_leaves_is_seen() {
    who_leaves_is_seen(group(3, &Options::default()), drop);
    who_leaves_is_seen(group(3, &Options::default()), |member| {
        // The rank leaves after words that no rank has read.
        thread::scope(|scope| {
            let abort = member.abort_handle();
            let mut member = member;
            scope.spawn(move || member.barrier().expect_err("it is aborted"));
            abort.abort();
        });
    });
}

/// A rank that leaves without having looked still knows which rank left before it.
#[test]
fn who_left_before_is_told_after_leaving() {
    let mut members = group(3, &Options::default());
    let handles = [0, 2].map(|rank: usize| members[rank].abort_handle());
    drop(members.remove(1));
    while handles[1].departed().is_none() {
        thread::yield_now();
    }
    drop(members.remove(0));
    assert_eq!(handles[0].departed(), Some(1));
}

/// A rank that leaves sees all its connections closed. It takes none of them for a peer's.
#[test]
fn a_rank_that_leaves_sees_nobody_leave() {
    let mut members = group(2, &Options::default());
    let handle = members[0].abort_handle();
    drop(members.remove(0));
    assert_eq!(handle.departed(), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..Default::default() })]

    #[test]
    fn equals_the_plain_sum(case in support::cases(100_000), capacity in 1_usize..70_000) {
        let max_elements = capacity.max(case.longest() / 16);
        check_against_oracle(&case, group(case.size, &Options { max_elements, ..Options::default() }));
    }

    #[test]
    fn uneven_parts_equal_plain_loops(
        split in splits(), size in 1_usize..=4, capacity in 64_usize..4_000,
    ) {
        let options = Options { max_elements: capacity, ..Options::default() };
        uneven::check_against_oracle(&split, group(size, &options));
    }

    #[test]
    fn words_arrive_with_what_they_were_attached_to(
        script in attached::scripts(), size in 1_usize..5, capacity in 100_usize..3_000,
    ) {
        let options = Options { max_elements: capacity, ..Options::default() };
        attached::equals_the_account(&script, group(size, &options));
    }
}

#[test]
fn both_sides_may_send_more_than_the_sockets_hold() {
    let options = Options {
        max_elements: 8 << 20,
        ..Options::default()
    };
    check_against_oracle(&Case::new(2, 4 << 20, 7), group(2, &options));
}

support::failure_tests!(group);

/// Lets a rank 1 with another setting try to join, then a right one. Returns the error of the
/// wrong one.
fn refused(group_id: &str, secret: &[u8], max_elements: usize) -> CollectiveError {
    let (handles, addresses) = bind(3);
    let [first, wrong, right] = handles.try_into().expect("three");
    let addresses = &addresses[..2];
    let join = |handle: TcpListenerHandle, rank| {
        let options = support::patient();
        let member = handle.connect_with(rank, addresses, "group", SECRET, &options);
        member.expect("connect").barrier().expect("barrier");
    };
    thread::scope(|scope| {
        let first = scope.spawn(|| join(first, 0));
        let options = Options {
            max_elements,
            ..support::patient()
        };
        let error = wrong.connect_with(1, addresses, group_id, secret, &options);
        join(right, 1);
        first.join().expect("rank 0 panicked");
        error.expect_err("refused")
    })
}

#[test]
fn ranks_that_do_not_belong_are_refused() {
    let elements = support::patient().max_elements;
    for (group_id, secret, max_elements, reason) in [
        (
            "group",
            &b"another secret"[..],
            elements,
            "the secrets differ",
        ),
        ("group", b"", elements, "the secrets differ"),
        ("another", SECRET, elements, "the group ids differ"),
        ("group", SECRET, elements + 1, "max_elements differ"),
    ] {
        let text = refused(group_id, secret, max_elements).to_string();
        assert!(
            text.contains(reason) && text.contains("rank 1 cannot join"),
            "{text}"
        );
    }
}

#[test]
fn a_rank_that_never_connects_is_named() {
    let (mut handles, addresses) = bind(2);
    let options = Options {
        join_timeout: Duration::from_millis(100),
        ..support::patient()
    };
    let first = handles.swap_remove(0);
    let error = first.connect_with(0, &addresses, "group", SECRET, &options);
    let text = error.expect_err("nobody comes").to_string();
    assert!(text.contains("rank 1 did not connect within"), "{text}");
}

#[test]
fn a_stranger_does_not_hide_that_secrets_differ() {
    let (handles, addresses) = bind(2);
    let [first, wrong] = handles.try_into().expect("two");
    let options = Options {
        join_timeout: Duration::from_secs(3),
        ..support::patient()
    };
    let error = thread::scope(|scope| {
        let first = scope.spawn(|| first.connect_with(0, &addresses, "group", SECRET, &options));
        let refused = wrong.connect_with(1, &addresses, "group", b"another", &options);
        assert!(refused.is_err());
        drop(std::net::TcpStream::connect(addresses[0]).expect("connect"));
        first.join().expect("rank 0 panicked")
    });
    let text = error.expect_err("rank 1 is refused").to_string();
    assert!(text.contains("the secrets differ"), "{text}");
}

#[test]
fn strangers_on_the_port_do_not_disturb() {
    use std::io::Write;
    let (handles, addresses) = bind(3);
    for (address, noise) in addresses
        .iter()
        .zip([&b""[..], b"GET / HTTP/1.1\r\n\r\n", &[0; 4096]])
    {
        let mut stranger = std::net::TcpStream::connect(address).expect("connect");
        stranger.write_all(noise).expect("write");
    }
    let ranks: Vec<_> = handles
        .into_iter()
        .enumerate()
        .map(|(rank, handle)| {
            let (addresses, options) = (addresses.clone(), support::patient());
            thread::spawn(move || {
                let member = handle.connect_with(rank, &addresses, "group", SECRET, &options);
                member.expect("connect").barrier().expect("barrier");
            })
        })
        .collect();
    ranks
        .into_iter()
        .for_each(|rank| rank.join().expect("a rank panicked"));
}

/// Some strangers say nothing, others say a byte now and then. If they were heard one after the
/// other, for two seconds each or for each byte, they would take longer than ranks may take to
/// join.
#[test]
fn silent_and_slow_strangers_do_not_keep_a_group_from_forming() {
    use std::{io::Write, net::TcpStream, sync::mpsc};
    let (mut handles, addresses) = bind(2);
    let (last, first) = (handles.pop().expect("two"), handles.pop().expect("two"));
    let stranger = |_| TcpStream::connect(addresses[0]).expect("connect");
    let silent: Vec<_> = (0..100).map(stranger).collect();
    let mut slow: Vec<_> = (0..3).map(stranger).collect();
    let (formed, forming) = mpsc::channel::<()>();
    let options = Options {
        join_timeout: Duration::from_secs(10),
        ..support::patient()
    };
    let join = |handle: TcpListenerHandle, rank| {
        let member = handle.connect_with(rank, &addresses, "group", SECRET, &options);
        member.and_then(|mut member| member.barrier())
    };
    thread::scope(|scope| {
        scope.spawn(move || {
            let pause = Duration::from_millis(500);
            while forming.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout) {
                // Writing to a connection that was closed fails.
                slow.iter_mut()
                    .for_each(|stream| drop(stream.write_all(b"x")));
            }
        });
        let joined = scope.spawn(|| join(first, 0));
        let last = join(last, 1);
        let first = joined.join().expect("rank 0 panicked");
        drop(formed);
        last.expect("rank 1 joins");
        first.expect("rank 0 joins");
    });
    drop(silent);
}

#[test]
fn ranks_out_of_range_are_refused() {
    let (mut handles, addresses) = bind(1);
    let handle = handles.pop().expect("one");
    let error = handle
        .connect(1, &addresses, "group", SECRET)
        .expect_err("rank 1 of 1");
    assert!(
        matches!(error, CollectiveError::Join { rank: 1, .. }),
        "{error}"
    );
    // More than there may be.
    let (mut handles, addresses) = bind(1);
    let options = Options {
        join_timeout: Duration::ZERO,
        ..support::patient()
    };
    let handle = handles.pop().expect("one");
    let error = handle.connect_with(0, &[addresses[0]; 65], "group", SECRET, &options);
    let error = error.map(drop).expect_err("65 ranks").to_string();
    assert!(error.contains("1 to 64"), "{error}");
}
