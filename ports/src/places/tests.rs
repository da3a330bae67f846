use std::{net::Ipv4Addr, time::Duration};

use super::*;

/// Returns `connections` places, of which an address gets `per_peer`.
fn places(connections: usize, per_peer: usize) -> Arc<Places> {
    Places::new(PortLimits::for_tests(connections, per_peer))
}

fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, last).into()
}

type Admitted = (Arc<Place>, oneshot::Receiver<Closed>);

fn admit(places: &Arc<Places>, from: u8) -> Admitted {
    places.admit(address(from)).expect("a place")
}

fn ended((_, end): &mut Admitted) -> Option<Closed> {
    end.try_recv().ok()
}

#[test]
fn who_waits_longest_gives_way_and_who_works_stays() {
    let places = places(3, 3);
    let mut working = admit(&places, 1);
    let request = working.0.enter();
    let mut oldest = admit(&places, 2);
    let mut newer = admit(&places, 3);
    let mut newest = admit(&places, 4);
    assert_eq!(ended(&mut oldest), Some(Closed::Evicted));
    assert!(newest.0.full.is_none());
    // After its request ends, a connection waits anew, so it has waited the shortest
    // time.
    let again = newer.0.enter();
    drop(again);
    let last = admit(&places, 5);
    assert_eq!(ended(&mut newest), Some(Closed::Evicted));
    assert_eq!((ended(&mut newer), ended(&mut working)), (None, None));
    assert!(last.0.full.is_none());
    drop(request);
    assert_eq!(places.report("x").open, 3);
    drop((working, oldest, newer, newest, last));
    assert_eq!(places.report("x").open, 0);
}

#[test]
fn a_peer_beyond_its_share_pays_itself() {
    let places = places(8, 2);
    let mut other = admit(&places, 1);
    let mut first = admit(&places, 2);
    let second = admit(&places, 2);
    let third = admit(&places, 2);
    assert_eq!(ended(&mut first), Some(Closed::Evicted));
    assert_eq!(ended(&mut other), None);
    // If all connections of a peer work, the peer gets no place, although there is
    // room.
    let requests = [second.0.enter(), third.0.enter()];
    assert_eq!(admit(&places, 2).0.full, Some(Full::Peer));
    assert_eq!(admit(&places, 3).0.full, None);
    drop(requests);
    assert!(admit(&places, 2).0.full.is_none());
}

#[test]
fn probes_have_places_of_their_own() {
    let places = places(1, 1);
    let working = admit(&places, 1);
    let request = working.0.enter();
    let mut probes = Vec::new();
    for _ in 0..=PROBES {
        probes.push(admit(&places, 2));
    }
    assert!(probes.iter().all(|probe| probe.0.full == Some(Full::Port)));
    assert_eq!(ended(&mut probes[0]), Some(Closed::Evicted));
    // None of the remaining connections waits, so the next one is refused.
    let requests: Vec<_> = probes.iter().map(|probe| probe.0.enter()).collect();
    assert!(places.admit(address(3)).is_none());
    let report = places.report("x");
    assert_eq!(
        (report.open, report.accepted),
        (1 + PROBES as u64, 3 + PROBES as u64)
    );
    let of = |reason| {
        report
            .closed
            .iter()
            .find(|(closed, _)| *closed == reason)
            .map(|row| row.1)
    };
    assert_eq!(
        (of(Closed::Evicted), of(Closed::Refused)),
        (Some(1), Some(1))
    );
    drop((request, requests));
    drop(working);
    assert!(admit(&places, 1).0.full.is_none());
}

#[test]
fn a_probes_place_has_the_limits_of_others() {
    let places = places(1, 1);
    let working = admit(&places, 1);
    let _request = working.0.enter();
    let [mut silent, mut untaken] = [2, 3].map(|from| admit(&places, from));
    assert_eq!(silent.0.full, Some(Full::Port));
    let answer = untaken.0.enter();
    answer.hand_over();
    places.sweep(Instant::now() + Duration::from_secs(9 * 3600));
    assert_eq!(ended(&mut silent), Some(Closed::Silent));
    assert_eq!(ended(&mut untaken), Some(Closed::Stalled));
}

#[test]
fn who_goes_on_waits_from_then_on() {
    let places = places(2, 2);
    let mut first = admit(&places, 1);
    let mut second = admit(&places, 2);
    // Its first bytes have come, which those of the second have not.
    first.0.detected(false);
    let third = admit(&places, 3);
    assert_eq!(ended(&mut second), Some(Closed::Evicted));
    assert_eq!(ended(&mut first), None);
    drop(first.0.enter());
    drop(third.0.enter());
    // The first byte of a head after an answer.
    assert!(first.0.heard());
    let fourth = admit(&places, 4);
    assert_eq!((ended(&mut first), fourth.0.full), (None, None));
}

#[test]
fn every_wait_has_its_limit() {
    let places = places(8, 8);
    let hours = |hours: u64| Instant::now() + Duration::from_secs(hours * 3600);
    // Time limits: first bytes one hour, a head two, a request four.
    let mut silent = admit(&places, 1);
    let mut begun = admit(&places, 1);
    begun.0.detected(false);
    let mut idle = admit(&places, 1);
    idle.0.detected(true);
    let mut working = admit(&places, 1);
    working.0.detected(false);
    let request = working.0.enter();
    let mut after = |time| {
        places.sweep(time);
        [&mut silent, &mut begun, &mut idle].map(ended)
    };
    assert_eq!(after(Instant::now()), [None, None, None]);
    assert_eq!(after(hours(1)), [Some(Closed::Silent), None, None]);
    assert_eq!(after(hours(2)), [None, Some(Closed::SlowHead), None]);
    assert_eq!(after(hours(4)), [None, None, Some(Closed::Idle)]);
    places.sweep(hours(1000));
    assert_eq!(ended(&mut working), None);
    // After its request the connection is idle, until a byte begins another head.
    drop(request);
    places.sweep(hours(3));
    assert_eq!(ended(&mut working), None);
    working.0.heard();
    places.sweep(hours(2));
    assert_eq!(ended(&mut working), Some(Closed::SlowHead));
}

#[test]
fn calls_without_an_end_keep_no_place() {
    let places = places(1, 1);
    let mut watching = admit(&places, 1);
    let watches = [watching.0.enter_endless(), watching.0.enter_endless()];
    drop(watching.0.enter());
    let mut working = admit(&places, 2);
    assert_eq!(ended(&mut watching), Some(Closed::Evicted));
    drop(watches);
    // With a watch beside a request that works, the request counts.
    let _watch = working.0.enter_endless();
    let request = working.0.enter();
    assert!(!places.evict());
    drop(request);
    assert!(places.evict());
    assert_eq!(ended(&mut working), Some(Closed::Evicted));
}

#[test]
fn what_is_left_beside_a_stalled_answer_waits_where_it_has_no_end() {
    let places = places(1, 1);
    let mut watching = admit(&places, 1);
    let _watch = watching.0.enter_endless();
    let request = watching.0.enter();
    request.hand_over();
    places.sweep(Instant::now() + Duration::from_secs(9 * 3600));
    assert_eq!(ended(&mut watching), None, "there is the watch");
    assert!(places.evict());
}

#[test]
fn an_ipv6_host_is_its_network() {
    let of = |text: &str| peer::of(text.parse().expect("an address"));
    assert_eq!(of("2001:db8:1:2::3"), of("2001:db8:1:2:ffff::"));
    assert_ne!(of("2001:db8:1:2::3"), of("2001:db8:1:3::3"));
    assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
}
