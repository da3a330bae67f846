use super::*;
use crate::limits::Wait;

#[test]
fn a_peer_keeps_its_share_of_fewer_places() {
    for (all, own, most, expected) in [
        (4096, 3072, 1984, 1488),
        (4096, 4096, 1984, 1984),
        (4096, 1, 1984, 1),
        (8, 7, 1, 1),
    ] {
        let mut limits = PortLimits::for_tests(all, own);
        limits.shrink(most);
        let got = (limits.connections, limits.per_peer);
        assert_eq!(got, (most, expected), "{own} of {all}");
    }
}

#[tokio::test]
async fn a_refusal_names_the_limit_that_was_met() {
    let port = Port::for_tests(PortLimits::for_tests(8, 2), None, None);
    for (full, expected) in [
        (
            Full::Port,
            "serves 8 connections already (--max-connections)",
        ),
        (
            Full::Peer,
            "serves 2 connections of this address already (--max-connections-per-peer)",
        ),
    ] {
        let body = port.refusal(full).into_body();
        let body = axum::body::to_bytes(body, 1000).await.expect("short");
        let text = String::from_utf8_lossy(&body);
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn limits_are_those_of_the_configuration() {
    let given = ConnectionLimits {
        per_port: 9,
        per_peer: 8,
        streams: 7,
        first_byte_s: 1,
        head_s: 2,
        body_s: 3,
        body_rate: 4,
        send_s: 5,
        keep_alive_s: 6,
    };
    let protocol = Protocol::Grpc { head_bytes: 1 };
    let public = Port::public("x", protocol, &given, Budget::new(1), None);
    let nodes = Port::nodes("x", 4, &given, None);
    for port in [&public, &nodes] {
        let waits = [Wait::FirstBytes, Wait::Head, Wait::Request];
        let waits = waits.map(|wait| port.limits.of(wait).as_secs());
        assert_eq!(waits, [1, 2, 6]);
        assert_eq!(port.limits.send.as_secs(), 5);
    }
    let limits = &public.limits;
    assert_eq!(
        (limits.connections, limits.per_peer, limits.streams),
        (9, 8, 7)
    );
    let body = limits.body.expect("it has to come in time");
    assert_eq!((body.whole.as_secs(), body.rate), (3, 4));
    assert!(nodes.limits.body.is_none(), "it lasts as long as they live");
}

#[test]
fn calls_that_last_keep_no_place_and_a_check_of_health_needs_none() {
    let grpc = Protocol::Grpc { head_bytes: 1 };
    let grpc = Port::new("x", grpc, PortLimits::for_tests(1, 1), None, None);
    let http = Port::for_tests(PortLimits::for_tests(1, 1), None, None);
    for (path, endless, probe) in [
        ("/grpc.health.v1.Health/Check", false, true),
        ("/grpc.health.v1.Health/Watch", true, false),
        (
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            true,
            false,
        ),
        (
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            true,
            false,
        ),
        ("/lockstep.v1.Inference/Generate", false, false),
    ] {
        let found = (grpc.is_endless(path), grpc.is_probe(path));
        assert_eq!(found, (endless, probe), "{path}");
        let found = (http.is_endless(path), http.is_probe(path));
        assert_eq!(found, (false, false), "{path}: it is a path like others");
    }
}

#[test]
fn services_without_a_key_share_a_part_of_each_address() {
    const PIECE: usize = 64 << 10;
    for path in [
        "/grpc.health.v1.Health/Check",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ] {
        // A sixteenth of it, of which an address has half.
        let budgets = Budgets::new(Budget::new(256 * PIECE));
        let [one, other] = [1, 2].map(|last| budgets.of_peer(Peer::from([10, 0, 0, last])));
        let take = |budgets: &Budgets, path, bytes| {
            let mut charge = budgets.of_path(path).charge();
            charge.add(bytes).map(|()| charge)
        };
        let held: Vec<_> = (0..8).map(|_| take(&one, path, PIECE)).collect();
        assert!(held.iter().all(Result::is_ok), "{path}");
        let over = take(&one, path, 1).expect_err("all is taken");
        assert_eq!(over, OverBudget::Peer, "{path}");
        assert!(take(&other, path, PIECE).is_ok(), "{path}");
        let with_key = take(&one, "/lockstep.v1.Inference/Generate", 16 * PIECE);
        assert!(with_key.is_ok(), "{path}");
    }
}
