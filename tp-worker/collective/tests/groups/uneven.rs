//! Parts of different lengths that ranks bring and get.

use std::ops::Range;

use lockstep_collective::{Collective, Owners};
use proptest::prelude::*;

use crate::support::{Case, Members, bits, on_threads};

/// Lengths that ranks bring and get, by rank.
#[derive(Debug, Clone)]
pub struct Split {
    /// Number of elements that each rank brings to an all-gather.
    counts: Vec<usize>,
    /// Elements of a sum that each rank gets. Some ranks get the same elements, some none.
    ranges: Vec<Range<usize>>,
    /// Number of elements of each rank's part of the sum.
    length: usize,
    /// Numbers of columns, and ranges of rows, of a gather.
    widths: Vec<usize>,
    rows: Vec<Range<usize>>,
}

/// Makes splits for up to 8 ranks.
pub fn splits() -> impl Strategy<Value = Split> {
    let count = || prop_oneof![Just(0), 1..50_usize, 0..3_000_usize];
    let counts = prop::collection::vec(count(), 8);
    let widths = prop::collection::vec(prop_oneof![Just(0), 1..300_usize], 8);
    let rows = (0..12_usize).prop_flat_map(ranges);
    let sums = count().prop_flat_map(|length| (Just(length), ranges(length)));
    (counts, sums, widths, rows).prop_map(|(counts, (length, ranges), widths, rows)| Split {
        counts,
        ranges,
        length,
        widths,
        rows,
    })
}

/// Makes ranges up to `end`, for every rank.
fn ranges(end: usize) -> impl Strategy<Value = Vec<Range<usize>>> {
    let range = (0..=end, 0..=end).prop_map(|(a, b)| a.min(b)..a.max(b));
    prop::collection::vec(prop_oneof![Just(0..0), range, Just(0..end)], 8)
}

/// Runs all operations twice in the group, and once in a group of some of its ranks.
pub fn check_against_oracle(split: &Split, members: Members) {
    on_threads(members, |mut member| {
        check_operations(split, &mut *member);
        check_operations(split, &mut *member);
        let color = member.rank() as u32 / 2;
        let mut some = member.split(color).expect("split");
        check_operations(split, &mut *some);
        check_operations(split, &mut *member);
    });
}

fn check_operations(split: &Split, member: &mut dyn Collective) {
    check_all_gather(split, member);
    check_reduce_scatter(split, member);
    check_gather(split, member);
}

fn check_all_gather(split: &Split, member: &mut dyn Collective) {
    let (rank, size) = (member.rank(), member.size());
    let counts = &split.counts[..size];
    let longest = counts.iter().copied().max().unwrap_or(0);
    let data = Case::new(size, longest, 3).data;
    let expected: Vec<f32> = { data.iter().zip(counts) }
        .flat_map(|(data, &count)| &data[..count])
        .copied()
        .collect();
    let mut all = vec![f32::NAN; expected.len()];
    let own = &data[rank][..counts[rank]];
    member
        .all_gather(own, counts, &mut all)
        .expect("all_gather");
    assert!(bits(&all) == bits(&expected), "all_gather on rank {rank}");
}

fn check_reduce_scatter(split: &Split, member: &mut dyn Collective) {
    let (rank, size) = (member.rank(), member.size());
    let (ranges, length) = (&split.ranges[..size], split.length);
    let case = Case::new(size, length, 7);
    let range = ranges[rank].clone();
    let expected = bits(&case.sum()[range.clone()]);
    let mut own = vec![f32::NAN; range.len()];
    let data = &case.data[rank];
    member
        .reduce_scatter_sum(data, ranges, &mut own)
        .expect("reduce_scatter");
    assert!(bits(&own) == expected, "reduce_scatter on rank {rank}");
    if length <= member.parts_capacity() {
        let buffer = member.sum_buffer(length).expect("it has room");
        buffer.copy_from_slice(data);
        let parts = member.reduce_scatter_parts(length, ranges).expect("parts");
        assert_eq!(parts.by_rank().len(), size);
        let mut found = parts.by_rank()[0].to_vec();
        for part in &parts.by_rank()[1..] {
            assert_eq!(part.len(), range.len());
            found.iter_mut().zip(*part).for_each(|(sum, x)| *sum += x);
        }
        assert!(bits(&found) == expected, "parts of a sum on rank {rank}");
    }
}

fn check_gather(split: &Split, member: &mut dyn Collective) {
    let (rank, size) = (member.rank(), member.size());
    let owners = Owners {
        widths: &split.widths[..size],
        rows: &split.rows[..size],
    };
    let height = owners.rows.iter().map(|rows| rows.end).max().unwrap_or(0);
    let columns = |rank: usize| {
        let width = owners.widths[rank];
        let value = move |at: usize| (rank * 1_000_000 + at) as f32;
        (0..height * width).map(value).collect::<Vec<_>>()
    };
    let mine = owners.rows[rank].clone();
    let expected: Vec<f32> = (0..size)
        .flat_map(|from| {
            let width = owners.widths[from];
            columns(from)[mine.start * width..mine.end * width].to_vec()
        })
        .collect();
    let (send, mut recv) = (columns(rank), vec![f32::NAN; expected.len()]);
    member.gather(&send, owners, &mut recv).expect("gather");
    assert!(bits(&recv) == bits(&expected), "gather on rank {rank}");
    let widest = owners.widths.iter().copied().max().unwrap_or(0);
    if widest * height <= member.parts_capacity() {
        let parts = member.gather_parts(&send, owners).expect("gather");
        let found = parts.by_rank().concat();
        assert!(bits(&found) == bits(&expected), "parts on rank {rank}");
    }
}
