//! The formulae against known values, and the exact form against all that can
//! happen.

use super::*;
use proptest::prelude::*;

const fn shape(steps: u32, topk: u32, draft_tokens: u32) -> ReserveConfig {
    ReserveConfig {
        steps,
        topk,
        draft_tokens,
    }
}

#[test]
fn known_values() {
    // (shape, page, W, 2W, columns beyond the context)
    let table = [
        (ReserveConfig::none(), 1, 1, 2, 4),
        (ReserveConfig::none(), 64, 1, 2, 4),
        (shape(3, 4, 8), 64, 512, 1024, 1024 + 63),
        (shape(3, 4, 12), 1, 12, 24, 24),
        (shape(3, 4, 8), 1, 12, 24, 24),
        (shape(3, 1, 4), 64, 4, 8, 8 + 63),
        (shape(3, 1, 4), 1, 4, 8, 8),
        (shape(5, 8, 64), 16, 256, 512, 512 + 15),
        (shape(7, 1, 8), 16, 8, 16, 16 + 15),
        (shape(1, 1, 2), 1, 2, 4, 6),
    ];
    for (shape, page, alloc_len, reserve, columns) in table {
        assert!(shape.validate().is_ok());
        assert_eq!(
            shape.alloc_len_per_decode(page),
            alloc_len,
            "{shape:?} {page}"
        );
        assert_eq!(shape.alloc_reserve_per_decode(page, true), reserve);
        assert_eq!(shape.alloc_reserve_per_decode(page, false), alloc_len);
        assert_eq!(shape.req_to_token_extra_context_len(page, true), columns);
    }
    // A tree on pages needs half of what doubling keeps.
    assert_eq!(shape(3, 4, 8).exact_reserve_per_decode(64, true), 512 + 4);
}

#[test]
fn impossible_shapes_are_refused() {
    for bad in [
        shape(0, 1, 4),
        shape(3, 1, 0),
        shape(3, 0, 4),
        shape(3, 5000, 4),
    ] {
        assert!(matches!(bad.validate(), Err(PlannerError::Config { .. })));
    }
}

/// All ways in which `steps` steps can go: how far a write reaches beyond the
/// committed length that the host knows at its launch.
fn reach(shape: ReserveConfig, page: u32, overlap: bool, accepted: &[u32]) -> u32 {
    let width = shape.alloc_len_per_decode(page);
    let (mut device, mut host, mut furthest) = (0, 0, 0);
    let mut unseen = 0;
    for accepted in accepted {
        furthest = furthest.max(device + width - host);
        device += accepted;
        // Without overlap this step's result is seen before the next launch,
        // with overlap the one before it.
        host += if overlap {
            std::mem::replace(&mut unseen, *accepted)
        } else {
            *accepted
        };
    }
    furthest
}

proptest! {
    /// `W + L` covers every sequence of acceptances, and `2W` covers `W + L`.
    #[test]
    fn the_exact_reserve_is_enough(
        steps in 0u32..8, topk in 1u32..5, more in 0u32..9, page in 1u32..70, overlap: bool,
        accepted in prop::collection::vec(any::<u32>(), 1..20),
    ) {
        let draft_tokens = if steps == 0 { 0 } else { steps + 1 + more };
        let shape = shape(steps, topk, draft_tokens);
        let most = shape.max_commit_per_decode();
        let accepted: Vec<u32> = accepted.iter().map(|any| 1 + any % most).collect();
        let exact = shape.exact_reserve_per_decode(page, overlap);
        prop_assert!(reach(shape, page, overlap, &accepted) <= exact);
        prop_assert!(exact <= shape.alloc_reserve_per_decode(page, overlap));
        prop_assert!(shape.req_to_token_extra_context_len(page, overlap) >= exact);
        // Not one slot less would do.
        let all = vec![most; 3];
        prop_assert_eq!(reach(shape, page, overlap, &all), exact);
    }

    /// A tier with fewer steps never needs more than a deeper one.
    #[test]
    fn the_largest_tier_covers_all(
        steps in 1u32..8, fewer in 1u32..8, topk in 1u32..5, page in 1u32..70,
    ) {
        let fewer = fewer.min(steps);
        let large = shape(steps, topk, steps + 1);
        let small = shape(fewer, topk, fewer + 1);
        for overlap in [false, true] {
            prop_assert!(
                small.exact_reserve_per_decode(page, overlap)
                    <= large.exact_reserve_per_decode(page, overlap)
            );
        }
    }
}
