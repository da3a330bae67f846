use super::*;

const OVER: Result<(), OverBudget> = Err(OverBudget::Process);

#[test]
fn large_requests_leave_room_for_small_ones() {
    let budget = Budget::new(16 * SMALL);
    let mut large = budget.charge();
    for _ in 0..12 {
        assert_eq!(large.add(SMALL), Ok(()));
    }
    assert_eq!(large.add(1), OVER, "three quarters");
    let mut small: Vec<_> = (0..4).map(|_| budget.charge()).collect();
    for charge in &mut small {
        assert_eq!(charge.add(SMALL), Ok(()));
        assert_eq!(charge.add(1), OVER, "it would be large");
    }
    assert_eq!(large.add(0), Ok(()), "it has what it needs");
    assert_eq!(budget.charge().add(1), OVER, "nothing is left");
    assert_eq!(budget.taken(), 16 * SMALL);
    drop(large);
    assert_eq!(budget.taken(), 4 * SMALL);
    let mut next = budget.charge();
    assert_eq!(next.add(usize::MAX), OVER);
    assert_eq!(next.add(8 * SMALL), Ok(()));
    drop((next, small));
    assert_eq!(budget.taken(), 0);
}

#[test]
fn answers_find_room_beside_large_requests_of_others() {
    let budget = Budget::new(16 * SMALL);
    let of = |last| budget.of_peer(Peer::from([127, 0, 0, last]));
    let mut large = [of(1).charge(), of(2).charge()];
    for charge in &mut large {
        assert_eq!(charge.add(6 * SMALL), Ok(()), "three quarters of its half");
    }
    assert_eq!(
        of(1).charge().add_answer(2 * SMALL, 0),
        Err(OverBudget::Peer)
    );
    let mut other = of(3).charge();
    assert_eq!(other.add(2 * SMALL), OVER);
    assert_eq!(
        other.add_answer(2 * SMALL, 2 * SMALL),
        OVER,
        "a large one's"
    );
    assert_eq!(other.add_answer(2 * SMALL, 0), Ok(()));
    assert_eq!(other.add_answer(2 * SMALL, SMALL), Ok(()));
    assert_eq!(other.add_answer(1, 0), OVER, "nothing is left");
    assert_eq!(other.bytes(), 4 * SMALL);
    drop((large, other));
    assert_eq!(budget.taken(), 0);
}

#[test]
fn a_peer_has_half_of_it_over_all_its_connections() {
    let budget = Budget::new(8 * SMALL);
    let address = |last: u8| Peer::from([127, 0, 0, last]);
    let [one, again] = [(); 2].map(|()| budget.of_peer(address(1)));
    let held: Vec<_> = [&one, &one, &again, &again]
        .map(|own| own.charge())
        .into_iter()
        .map(|mut charge| charge.add(SMALL).map(|()| charge))
        .collect();
    assert!(held.iter().all(Result::is_ok));
    assert_eq!(again.charge().add(1), Err(OverBudget::Peer));
    assert_eq!(budget.taken(), 4 * SMALL, "what is refused is not taken");
    let other = budget.of_peer(address(2));
    assert_eq!(other.charge().add(SMALL), Ok(()));
    let mut rest = budget.charge();
    assert_eq!(rest.add(SMALL), Ok(()));
    drop((held, one, again, rest));
    assert_eq!(budget.taken(), 0);
    let mut third = budget.of_peer(address(3)).charge();
    assert_eq!(third.add(3 * SMALL), Ok(()), "three quarters of its half");
    assert_eq!(third.add(1), Err(OverBudget::Peer));
    assert_eq!(budget.peers().len(), 2, "who left is forgotten");
}

#[test]
fn the_most_that_a_request_may_have_fits_and_no_byte_more() {
    let sizes = [
        0,
        1,
        7,
        SMALL - 1,
        SMALL,
        SMALL + 1,
        3 * SMALL,
        100 * SMALL + 5,
    ];
    for limit in sizes.map(|size| size * 8 / 3).iter().chain(&sizes) {
        let whole = Budget::new(*limit);
        let peer = Peer::from([127, 0, 0, 1]);
        for budget in [whole.clone(), whole.of_peer(peer), whole.without_key()] {
            for beside in sizes {
                let mut body = budget.charge();
                if body.add(beside).is_err() {
                    continue;
                }
                let most = body.most_beside();
                assert_eq!(budget.charge().add(most), Ok(()), "{limit} {beside}");
                assert!(budget.charge().add(most + 1).is_err(), "{limit} {beside}");
            }
        }
    }
}

#[test]
fn services_without_a_key_empty_no_more_than_their_part() {
    let budget = Budget::new(256 * SMALL);
    let open = budget.without_key();
    let mut held = Vec::new();
    for last in 1..=2 {
        let own = open.of_peer(Peer::from([127, 0, 0, last]));
        for _ in 0..8 {
            let mut charge = own.charge();
            assert_eq!(charge.add(SMALL), Ok(()));
            held.push(charge);
        }
        assert_eq!(own.charge().add(1), Err(OverBudget::Peer));
    }
    let third = open.of_peer(Peer::from([127, 0, 0, 3]));
    assert_eq!(third.charge().add(1), Err(OverBudget::WithoutKey));
    assert_eq!(third.taken(), 0);
    assert_eq!(budget.taken(), 16 * SMALL);
    assert_eq!(budget.charge().add(128 * SMALL), Ok(()));
}

#[test]
fn a_call_that_finds_no_room_hears_when_to_come_again() {
    for over in [
        OverBudget::Process,
        OverBudget::Peer,
        OverBudget::WithoutKey,
    ] {
        let status = Status::from(over);
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        let again = status.metadata().get("retry-after");
        assert_eq!(again.expect("a time"), "1", "{over}");
    }
}
