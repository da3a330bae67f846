//! Element-wise sums in rank order.

use std::ops::Range;

/// Number of elements summed over all ranks before the next ones, so that the running sum stays
/// in the first-level cache.
const BLOCK: usize = 2048;

/// Sets `out` to the element-wise sum of `part(0)`, `part(1)`, … `part(ranks - 1)`, added in
/// this order. All parts have `out`'s length.
pub(crate) fn sum_in_rank_order<'a>(
    out: &mut [f32],
    ranks: usize,
    part: impl Fn(usize) -> &'a [f32],
) {
    for start in (0..out.len()).step_by(BLOCK) {
        let end = out.len().min(start + BLOCK);
        let out = &mut out[start..end];
        let block = |rank: usize| &part(rank)[start..end];
        if ranks == 1 {
            out.copy_from_slice(block(0));
            continue;
        }
        let pairs = block(0).iter().zip(block(1));
        out.iter_mut()
            .zip(pairs)
            .for_each(|(out, (a, b))| *out = a + b);
        for rank in 2..ranks {
            out.iter_mut()
                .zip(block(rank))
                .for_each(|(out, a)| *out += a);
        }
    }
}

/// Returns the part of `length` elements that `rank` of `ranks` sums. It is whole cache lines,
/// so that ranks don't write to the same one.
pub(crate) fn share(length: usize, rank: usize, ranks: usize) -> Range<usize> {
    let each = length.div_ceil(ranks).next_multiple_of(32);
    let bound = |rank: usize| length.min(each.saturating_mul(rank));
    bound(rank)..bound(rank + 1)
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn shares_cover_everything_once() {
        for ranks in 1..=9 {
            for length in (0..500).chain([65_536, 100_003]) {
                let mut next = 0;
                for rank in 0..ranks {
                    let share = share(length, rank, ranks);
                    assert_eq!(share.start, next.min(length));
                    next = share.end;
                }
                assert_eq!(next, length, "{length} elements over {ranks} ranks");
            }
        }
    }
}
