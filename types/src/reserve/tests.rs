//! Tests of the formulae against known values, and of the exact form against all sequences of
//! steps.

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
fn known_values_of_the_paged_layout() {
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
        assert_eq!(shape.fault(), None);
        assert_eq!(
            paged::alloc_len_per_decode(&shape, page),
            alloc_len,
            "{shape:?} {page}"
        );
        let paged_reserve = |overlap| paged::alloc_reserve_per_decode(&shape, page, overlap);
        assert_eq!(paged_reserve(true), reserve);
        assert_eq!(paged_reserve(false), alloc_len);
        let extra = paged::req_to_token_extra_context_len(&shape, page, true);
        assert_eq!(extra, columns);
    }
}

#[test]
fn known_values_of_consecutive_nodes() {
    // (shape, W, L, columns beyond the context), at any page size
    let table = [
        (ReserveConfig::none(), 1, 1, 4),
        (shape(3, 4, 8), 12, 4, 16),
        (shape(3, 4, 12), 12, 4, 16),
        (shape(3, 4, 16), 16, 4, 20),
        (shape(3, 1, 4), 4, 4, 8),
        (shape(7, 1, 8), 8, 8, 16),
        (shape(1, 1, 2), 2, 2, 6),
        // A path can't be longer than the verified tokens.
        (shape(5, 1, 3), 5, 3, 8),
    ];
    for (shape, alloc_len, lag, columns) in table {
        assert_eq!(shape.fault(), None);
        assert_eq!(shape.alloc_len_per_decode(), alloc_len, "{shape:?}");
        assert_eq!(shape.commit_lag(true), lag);
        assert_eq!(shape.commit_lag(false), 0);
        assert_eq!(shape.alloc_reserve_per_decode(true), alloc_len + lag);
        assert_eq!(shape.alloc_reserve_per_decode(false), alloc_len);
        assert_eq!(shape.req_to_token_extra_context_len(true), columns);
        // A request that drafts nothing is charged as without speculation.
        let none = ReserveConfig::none();
        assert_eq!(shape.alloc_len_at(0), none.alloc_len_per_decode());
        assert_eq!(shape.max_commit_at(0), none.max_commit_per_decode());
    }
}

#[test]
fn impossible_shapes_are_refused() {
    for bad in [
        shape(0, 1, 4),
        shape(3, 1, 0),
        shape(3, 0, 4),
        shape(3, 5000, 4),
    ] {
        assert!(bad.fault().is_some_and(|why| !why.is_empty()));
    }
}

/// Returns the longest reach of a write beyond the committed length that the host knows at the
/// write's launch. The rows are those of one request, as (depth, accepted).
fn reach(shape: ReserveConfig, overlap: bool, rows: &[(u32, u32)]) -> u32 {
    let (mut device, mut host, mut furthest) = (0, 0, 0);
    let mut unseen = 0;
    for (depth, accepted) in rows {
        let width = shape.alloc_len_at(*depth);
        furthest = furthest.max(device + width - host);
        device += accepted;
        // Without overlap this step's result is seen before the next launch; with overlap the
        // result of the step before is seen.
        host += if overlap {
            std::mem::replace(&mut unseen, *accepted)
        } else {
            *accepted
        };
    }
    furthest
}

proptest! {
    /// `W + L` covers every sequence of depths and acceptances, and SGLang's
    /// reserve covers `W + L`.
    #[test]
    fn the_exact_reserve_is_enough(
        steps in 0u32..8, topk in 1u32..5, more in 0u32..9, page in 1u32..70, overlap: bool,
        rows in prop::collection::vec((any::<u32>(), any::<u32>()), 1..20),
    ) {
        let draft_tokens = if steps == 0 { 0 } else { steps + 1 + more };
        let shape = shape(steps, topk, draft_tokens);
        let rows: Vec<_> = rows.iter().map(|(depth, accepted)| {
            let depth = depth % (steps + 1);
            (depth, 1 + accepted % shape.max_commit_at(depth))
        }).collect();
        let exact = shape.alloc_reserve_per_decode(overlap);
        prop_assert!(reach(shape, overlap, &rows) <= exact);
        prop_assert!(exact <= paged::alloc_reserve_per_decode(&shape, page, overlap));
        prop_assert!(shape.req_to_token_extra_context_len(overlap) >= exact);
        // The longest text fits its row of the request-to-token table.
        let row = 1000 + shape.req_to_token_extra_context_len(overlap);
        prop_assert!(shape.tokens_for_text(1000, steps, overlap) <= u64::from(row));
        // The reserve can't be one slot smaller.
        let all = vec![(steps, shape.max_commit_per_decode()); 3];
        prop_assert_eq!(reach(shape, overlap, &all), exact);
    }

    /// A tier with fewer steps never needs more than a deeper one.
    #[test]
    fn the_largest_tier_covers_all(steps in 1u32..8, fewer in 1u32..8, topk in 1u32..5) {
        let fewer = fewer.min(steps);
        let large = shape(steps, topk, steps + 1);
        let small = shape(fewer, topk, fewer + 1);
        for overlap in [false, true] {
            let reserve = |shape: ReserveConfig| shape.alloc_reserve_per_decode(overlap);
            prop_assert!(reserve(small) <= reserve(large));
            for depth in 0..=steps {
                prop_assert!(large.alloc_len_at(depth) <= large.alloc_len_per_decode());
                prop_assert!(large.max_commit_at(depth) <= large.max_commit_per_decode());
            }
        }
    }
}
