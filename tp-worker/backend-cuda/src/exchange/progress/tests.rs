use super::*;

/// The track of a rank that has begun sums of `sums` floats, one after the other.
fn of(axis: Axis, sums: &[usize]) -> Track {
    let mut track = Track::new();
    let all = sums.iter().filter_map(|len| Exchanged::sum(axis, *len));
    all.for_each(|one| track.begin(&one));
    let shown = track.shown();
    assert_eq!(Progress::from_words(&shown.to_words()), shown);
    track
}

/// Peers 1, 2, …, each of which has begun the sums of one list.
fn peers(axis: Axis, all: &[&[usize]]) -> Vec<Peer> {
    let peer = |(at, sums): (usize, &&[usize])| Peer {
        rank: at + 1,
        near: true,
        shown: of(axis, sums).shown(),
    };
    all.iter().enumerate().map(peer).collect()
}

/// The stall that a rank finds after sums of 4, 6 and 8 floats.
fn found(all: &[&[usize]]) -> Stall {
    of(Axis::World, &[4, 6, 8]).stall(&peers(Axis::World, all))
}

#[test]
fn who_is_behind_is_missing() {
    assert_eq!(found(&[&[4, 6, 8], &[4, 6, 8]]), Stall::Unknown);
    for (all, behind, count) in [
        (&[&[4, 6, 8, 2][..], &[4, 6], &[4]][..], 3, 1),
        (&[&[4, 6], &[4, 6, 8]], 1, 2),
        (&[&[4, 6, 8], &[]], 2, 0),
    ] {
        let stall = found(all);
        let Stall::Missing {
            peer,
            theirs,
            ours,
            last,
        } = &stall
        else {
            panic!("{stall}");
        };
        assert_eq!((*peer, *theirs, *ours), (behind, count, 3));
        assert_eq!(last, "an all-reduce of 8 f32 of all ranks");
    }
}

/// Cases: another sum, the same sums in another order, one sum less, a first sum that differs,
/// and a peer that is further than this rank.
#[test]
fn who_has_begun_something_else_has_diverged() {
    for (sums, last) in [
        (&[4, 6, 9][..], 9),
        (&[6, 4, 8], 8),
        (&[4, 8], 8),
        (&[5], 5),
        (&[4, 6, 8, 3], 3),
    ] {
        let stall = found(&[&[4, 6, 8], sums]);
        let Stall::Diverged {
            peer,
            ours,
            theirs,
            last: own,
            their_last,
        } = &stall
        else {
            panic!("{stall}");
        };
        assert_eq!((*peer, *ours, *theirs), (2, 3, sums.len() as u64));
        assert_eq!(own, "an all-reduce of 8 f32 of all ranks");
        assert_eq!(
            *their_last,
            format!("an all-reduce of {last} f32 of all ranks")
        );
    }
    // A peer that does something else matters more than a peer that waits for it.
    let stall = found(&[&[4, 6], &[4, 8]]);
    assert!(matches!(stall, Stall::Diverged { peer: 2, .. }), "{stall}");
}

/// Peers further back than a rank remembers count as late.
#[test]
fn what_is_long_ago_is_forgotten() {
    let many = vec![4; 3 * REMEMBERED];
    let own = of(Axis::World, &many);
    for (behind, other) in [(0, true), (REMEMBERED - 1, true), (REMEMBERED, false)] {
        let mut sums = many[behind..].to_vec();
        sums[7] = 5;
        let stall = own.stall(&peers(Axis::World, &[&sums]));
        assert_eq!(
            matches!(stall, Stall::Diverged { .. }),
            other,
            "{behind}: {stall}"
        );
    }
}

#[test]
fn other_dp_ranks_exchange_other_things_among_themselves() {
    let own = of(Axis::Attention, &[4]);
    let mut other = peers(Axis::Attention, &[&[6]]);
    let stall = own.stall(&other);
    assert!(matches!(stall, Stall::Diverged { peer: 1, .. }), "{stall}");
    other[0].near = false;
    assert_eq!(own.stall(&other), Stall::Unknown);
}

#[test]
fn who_gives_up_says_for_whom() {
    let mut track = of(Axis::World, &[4]);
    assert_eq!(track.shown().blames(), None);
    track.blame(0);
    track.beat();
    let shown = track.shown();
    assert_eq!((shown.blames(), shown.beats()), (Some(0), 1));
    assert_eq!(Progress::from_words(&shown.to_words()), shown);
}
