//! Words that ranks show each other without an operation.

use lockstep_collective::{Collective, Shown, Single, local_group};

#[test]
fn ranks_that_share_memory_see_what_others_show() {
    let mut ranks = local_group(3);
    let handles: Vec<_> = ranks.iter().map(Collective::abort_handle).collect();
    let words = |rank: u64| -> Shown { std::array::from_fn(|at| rank << 60 | at as u64) };
    assert_eq!(handles[0].shown(1), Some(Shown::default()));
    for (rank, handle) in handles.iter().enumerate() {
        handle.show(&words(7));
        handle.show(&words(rank as u64));
    }
    for handle in &handles {
        for rank in 0..3 {
            assert_eq!(handle.shown(rank), Some(words(rank as u64)));
        }
        assert_eq!(handle.shown(3), None);
    }
    // Words that a rank has shown stay when it has left.
    drop(ranks.pop());
    assert_eq!(handles[0].shown(2), Some(words(2)));
}

#[test]
fn a_rank_alone_sees_nobody() {
    let handle = Single::new().abort_handle();
    handle.show(&[1; 10]);
    assert_eq!(handle.shown(0), None);
}
