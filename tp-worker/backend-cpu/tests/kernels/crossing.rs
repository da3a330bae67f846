//! Gathers of all ranks' rows, and sums of which each rank takes some rows.

use std::ops::Range;

use lockstep_backend::{
    Axis, Exchange as _, Linear, Memory as _, Ops as _, Owners, RmsNorm, RowParallel, Scatter,
};
use lockstep_backend_cpu::CpuBackend;
use lockstep_collective::{Collective, Options, local_group_with};

use crate::collectives::options;
use crate::machine::{Values, bits, matrix, tensor};

const IN: usize = 24;
const WIDTH: usize = 40;
const EPS: f32 = 1e-5;

/// The rows that each rank takes: rows of its own, the same rows, none, or all.
fn splits(rows: usize) -> Vec<Vec<Range<usize>>> {
    let (one, two) = (rows / 3, rows / 2);
    let none = Range::default();
    vec![
        vec![0..rows, none.clone()],
        vec![0..one, one..rows],
        vec![none.clone(), none.clone()],
        vec![0..two, 0..two, two..rows],
        vec![none, 0..rows, 0..rows],
    ]
}

/// Runs `work` on every rank of groups with room for all rows, for some rows at a time, and
/// for less than one row.
fn on_groups(ranks: usize, work: impl Fn(Box<dyn Collective>) + Sync) {
    for max_elements in [1 << 20, 130, 7] {
        let options = Options {
            max_elements,
            ..Options::default()
        };
        std::thread::scope(|scope| {
            for group in local_group_with(ranks, &options) {
                let work = &work;
                scope.spawn(move || work(Box::new(group)));
            }
        });
    }
}

/// Compares a rank's rows of a fused sum with the same rows of the whole sum, computed by
/// separate operations.
fn scattered_both_ways(group: Box<dyn Collective>, rows: usize, split: &[Range<usize>]) {
    let rank = group.rank();
    let mut backend = CpuBackend::new(options(2), group).unwrap();
    let mut own = Values::new(rank as u64 + 1);
    let x = tensor(&mut backend, &own.floats(rows * IN), IN);
    let w = matrix(&mut backend, &own.floats(WIDTH * IN), IN);
    let mut shared = Values::new(99);
    let bias = backend.load_vector(&shared.floats(WIDTH)).unwrap();
    let bias = (rank == 0).then_some(&bias);
    let weight = backend.load_vector(&shared.floats(WIDTH)).unwrap();
    let (start, space) = (shared.floats(rows * WIDTH), vec![f32::NAN; rows * WIDTH]);
    let taken = split[rank].start * WIDTH..split[rank].end * WIDTH;

    let [mut residual, mut delta, mut out] =
        [&start, &space, &space].map(|values| tensor(&mut backend, values, WIDTH));
    backend.matmul(&x, Linear { weight: &w, bias }, &mut delta);
    backend.all_reduce(Axis::World, &mut delta).unwrap();
    let norm = RmsNorm {
        weight: &weight,
        eps: EPS,
    };
    backend.end_block(&mut residual, Some(&delta), norm.into(), &mut out);
    let expected = [&residual, &out].map(|all| bits(&all.values()[taken.clone()]));

    for _ in 0..2 {
        let mut residual = tensor(&mut backend, &start[taken.clone()], WIDTH);
        let mut out = tensor(&mut backend, &space[taken.clone()], WIDTH);
        let mut product = tensor(&mut backend, &space, WIDTH);
        let scatter = Scatter {
            rows: split,
            product: &mut product,
        };
        let linear = RowParallel {
            axis: Axis::World,
            part: Linear { weight: &w, bias },
        };
        let norm = RmsNorm {
            weight: &weight,
            eps: EPS,
        };
        backend
            .matmul_scatter_end_block(&x, linear, scatter, &mut residual, norm.into(), &mut out)
            .unwrap();
        let found = [&residual, &out].map(|own| bits(own.values()));
        assert_eq!(found, expected, "{split:?} on rank {rank}");
    }
}

#[test]
fn rows_of_a_scattered_sum_have_the_bits_of_the_whole_one() {
    for rows in [1, 7, 411] {
        for split in splits(rows) {
            on_groups(split.len(), |group| {
                scattered_both_ways(group, rows, &split);
            });
        }
    }
}

#[test]
fn gathered_rows_are_everybodys_in_order() {
    for counts in [&[3, 0][..], &[0, 0], &[2, 5], &[1, 300, 4]] {
        on_groups(counts.len(), |group| {
            let rank = group.rank();
            let mut backend = CpuBackend::new(options(2), group).unwrap();
            // Each rank brings rows behind its first `rank` ones, and keeps another.
            let value = |rank: usize| {
                (0..(counts[rank] + rank + 1) * WIDTH).map(move |i| (rank * 100_000 + i) as f32)
            };
            let own: Vec<f32> = value(rank).collect();
            let x = tensor(&mut backend, &own, WIDTH);
            let expected: Vec<f32> = (0..counts.len())
                .flat_map(|rank| value(rank).skip(rank * WIDTH).take(counts[rank] * WIDTH))
                .collect();
            let mut all = tensor(&mut backend, &vec![f32::NAN; expected.len()], WIDTH);
            backend
                .all_gather_rows(Axis::World, &x, rank, counts, &mut all)
                .unwrap();
            assert_eq!(all.values(), expected, "{counts:?} on rank {rank}");
        });
    }
}

#[test]
fn columns_come_together_where_their_rows_belong() {
    for rows in [1, 7, 40] {
        for split in splits(rows) {
            let widths = [16, 3, 5];
            on_groups(split.len(), |group| {
                let (rank, widths) = (group.rank(), &widths[..group.size()]);
                let mut backend = CpuBackend::new(options(2), group).unwrap();
                let height = split.iter().map(|rows| rows.end).max().unwrap();
                let value = |rank: usize, row: usize| {
                    (0..widths[rank]).map(move |column| (rank * 1000 + row * 20 + column) as f32)
                };
                let own: Vec<f32> = (0..height).flat_map(|row| value(rank, row)).collect();
                let x = tensor(&mut backend, &own, widths[rank]);
                let expected: Vec<f32> = split[rank]
                    .clone()
                    .flat_map(|row| (0..widths.len()).flat_map(move |rank| value(rank, row)))
                    .collect();
                let owners = Owners {
                    widths,
                    rows: &split,
                };
                let mut space = Vec::new();
                for _ in 0..2 {
                    let found = backend.gather_to_host(Axis::World, &x, owners, &mut space);
                    assert_eq!(found.unwrap(), expected, "{split:?} on rank {rank}");
                }
            });
        }
    }
}
