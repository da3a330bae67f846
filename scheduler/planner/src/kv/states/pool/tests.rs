//! Tests of holders and of the order of eviction.

use super::*;

/// Takes a copy that would save more than all others.
fn take(pool: &mut StatePool) -> Option<u32> {
    pool.take_copy(pool.credit(1 << 20))
}

/// Caches a copy at the end of `blocks`, which are 16 tokens each.
fn cache(pool: &mut StatePool, blocks: &[u32]) -> u32 {
    let state = take(pool).expect("there is one");
    pool.cache(state, blocks, blocks.len() as u32 * 16);
    state
}

/// Evicts by taking a copy. Returns the state that was taken, which nobody has any more.
fn evicted(pool: &mut StatePool) -> u32 {
    let state = take(pool).expect("one is evicted");
    pool.release(state);
    state
}

#[test]
fn states_are_set_aside_for_slots() {
    let mut pool = StatePool::new(4, 3, 9);
    let copy = take(&mut pool).unwrap();
    assert_eq!(take(&mut pool), None, "three are for the slots");
    let live: Vec<_> = (0..3).map(|_| pool.take_live().unwrap()).collect();
    assert_eq!((pool.held(), pool.cached()), (4, 0));
    pool.cache(copy, &[1, 2], 32);
    assert_eq!((pool.held(), pool.cached()), (3, 1));
    // A cached state makes room, here for a copy.
    let copy = take(&mut pool).unwrap();
    assert_eq!((pool.of_block(2), pool.cached()), (None, 0));
    pool.release(copy);
    live.into_iter().for_each(|state| pool.release(state));
    assert_eq!((pool.held(), pool.cached()), (0, 0));
    pool.check(&[0; 4], &[0; 4], |_| false).unwrap();
}

/// The ends of three prompts, and the end of an answer behind the first. The figures are the
/// credits: tokens saved, and the credit of the last evicted state.
#[test]
fn the_state_that_saves_least_goes_first_and_those_below_it_gain() {
    let mut pool = StatePool::new(4, 0, 99);
    let long: Vec<u32> = (1..=10).collect();
    let first = cache(&mut pool, &long[..3]); // 48
    let answer = cache(&mut pool, &long); // 112, without the 48 tokens of the first
    let other = cache(&mut pool, &[21, 22, 23, 24]); // 64
    let short = cache(&mut pool, &[31]); // 16
    assert_eq!(evicted(&mut pool), short);
    let short = cache(&mut pool, &[31]); // 16 + 16
    assert_eq!(evicted(&mut pool), short);
    assert_eq!(pool.cached[answer as usize].credit, 112);
    let short = cache(&mut pool, &[31]); // 32 + 16, and used later than the first
    assert_eq!(evicted(&mut pool), first);
    // The answer's state saves all 160 tokens now.
    assert_eq!(pool.cached[answer as usize].credit, 160);
    cache(&mut pool, &[41, 42, 43, 44, 45, 46, 47, 48, 49]); // 48 + 144
    pool.touch(&[31]); // 48 + 16, and used later than the other
    assert_eq!(evicted(&mut pool), other);
    assert!(pool.is_cached(short) && pool.is_cached(answer));
}

/// An old state that saves much goes when newer ones have come often enough.
#[test]
fn old_states_age() {
    let mut pool = StatePool::new(2, 0, 2000);
    let blocks: Vec<u32> = (1..=20).collect();
    let old = cache(&mut pool, &blocks); // 320
    let mut rounds = 0;
    loop {
        cache(&mut pool, &[100 + rounds]);
        if pool.of_block(20).is_none() {
            break;
        }
        rounds += 1;
    }
    assert_eq!(rounds, 320 / 16);
    assert!(!pool.is_cached(old) || pool.cached[old as usize].block != 20);
}

#[test]
fn a_block_keeps_its_state_and_takes_it_along() {
    let mut pool = StatePool::new(3, 0, 99);
    let own = cache(&mut pool, &[1, 2]);
    let second = cache(&mut pool, &[1, 2]);
    assert_eq!((pool.of_block(2), pool.cached()), (Some(own), 1));
    assert_eq!(pool.holders[second as usize], Holder::Free);
    pool.move_block(2, 7);
    assert_eq!((pool.of_block(2), pool.of_block(7)), (None, Some(own)));
    let copies = [0; 3];
    pool.check(&copies, &copies, |block| block == 7).unwrap();
    pool.check(&copies, &copies, |_| false).unwrap_err();
    pool.uncache(7);
    pool.uncache(8);
    assert_eq!((pool.cached(), pool.held()), (0, 0));
    pool.release(own);
    pool.check(&copies, &copies, |_| true).unwrap_err();
    pool.reset();
    let all: Vec<_> = std::iter::from_fn(|| take(&mut pool)).collect();
    assert_eq!(all, [0, 1, 2]);
}

/// A copy that saves less than all cached states is left out, until enough such copies have come.
#[test]
fn a_copy_takes_the_place_of_none_that_saves_more() {
    let mut pool = StatePool::new(2, 1, 99);
    let long = cache(&mut pool, &[1, 2, 3, 4]); // 64
    let live = pool.take_live().unwrap();
    for _ in 0..3 {
        assert_eq!(pool.take_copy(pool.credit(16)), None);
    }
    assert_eq!(pool.of_block(4), Some(long));
    let copy = pool.take_copy(pool.credit(16));
    assert_eq!((copy, pool.of_block(4)), (Some(long), None));
    pool.release(long);
    pool.release(live);
}
