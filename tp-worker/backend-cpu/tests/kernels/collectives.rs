//! Collectives through the backend, and construction of a backend.

use std::ops::Range;

use lockstep_backend::{
    Axis, Exchange as _, Linear, Memory as _, Ops as _, Owners, RmsNorm, RowParallel, WeightFormat,
};
use lockstep_backend_cpu::{CpuBackend, CpuError, CpuOptions, Isa};
use lockstep_collective::{Collective, Options, Single, local_group, local_group_with};
use lockstep_types::Dtype;

use crate::machine::{Values, bits, matrix, tensor};

pub fn options(threads: usize) -> CpuOptions {
    CpuOptions {
        threads,
        dtype: Dtype::Float32,
        pin: None,
        isa: None,
    }
}

#[test]
fn ranks_sum_gather_and_broadcast() {
    let widths = [3usize, 2, 4];
    std::thread::scope(|scope| {
        for (rank, group) in local_group(3).into_iter().enumerate() {
            scope.spawn(move || {
                let mut backend = CpuBackend::new(options(1), Box::new(group)).unwrap();
                assert_eq!(backend.group(Axis::World), (rank, 3));
                assert_eq!(backend.leads(Axis::World), rank == 0);
                let mut x = tensor(&mut backend, &[rank as f32, 1.0], 2);
                backend.all_reduce(Axis::World, &mut x).unwrap();
                assert_eq!(x.values(), [3.0, 3.0]);

                let width = widths[rank];
                let own: Vec<f32> = (0..2 * width).map(|i| (rank * 100 + i) as f32).collect();
                let mut x = tensor(&mut backend, &own, width);
                let mut out = Vec::with_capacity(18);
                let place = out.as_ptr();
                for rows in [2, 1, 2] {
                    backend.set_rows(&mut x, rows);
                    let owners = Owners {
                        widths: &widths,
                        rows: &[0..rows, 0..0, 0..0],
                    };
                    let found = backend
                        .gather_to_host(Axis::World, &x, owners, &mut out)
                        .unwrap();
                    let expected: &[f32] = &[
                        0.0, 1.0, 2.0, 100.0, 101.0, 200.0, 201.0, 202.0, 203.0, //
                        3.0, 4.0, 5.0, 102.0, 103.0, 204.0, 205.0, 206.0, 207.0,
                    ];
                    let expected = &expected[..rows * 9];
                    assert_eq!(found, if rank == 0 { expected } else { &[] });
                    assert_eq!(out.as_ptr(), place);
                }
                let mut tokens = [rank as u32 + 5; 4];
                let control = backend.control(Axis::World);
                control.broadcast(0, &mut tokens).unwrap();
                assert_eq!(tokens, [5; 4]);

                let (words, mut all) = ([rank as u32, u32::MAX], [0; 6]);
                control.exchange(&words, &mut all).unwrap();
                assert_eq!(all, [0, u32::MAX, 1, u32::MAX, 2, u32::MAX]);
            });
        }
    });
}

/// Attached words ride on a fused product too, on its first operation. Its sum may be read
/// in parts, in rows at a time or through a buffer.
#[test]
fn attached_words_ride_on_whatever_comes_next() {
    const WIDTH: usize = 8;
    for (ranks, max_elements) in [(2, 1 << 10), (2, 2 * WIDTH), (2, 3), (3, 1 << 10), (1, 8)] {
        let options_of_group = Options {
            max_elements,
            ..Options::default()
        };
        std::thread::scope(|scope| {
            for group in local_group_with(ranks, &options_of_group) {
                scope.spawn(move || {
                    let rank = group.rank() as u32;
                    let mut backend = CpuBackend::new(options(2), Box::new(group)).unwrap();
                    let mut all = vec![0; ranks * 2];
                    let control = backend.control(Axis::World);
                    assert!(!control.attached(&mut all));
                    control.attach(1, &[5, rank]).unwrap();
                    assert_eq!(control.attached(&mut all), ranks == 1);
                    // Work of the rank alone takes no words along.
                    work_alone(&mut backend);
                    assert_eq!(backend.control(Axis::World).attached(&mut all), ranks == 1);
                    fused_sum(&mut backend, 6, WIDTH);
                    assert!(backend.control(Axis::World).attached(&mut all));
                    let expected: Vec<u32> = (0..ranks as u32).flat_map(|r| [5, r]).collect();
                    assert_eq!(all, expected);
                });
            }
        });
    }
}

fn fused_sum(backend: &mut CpuBackend, rows: usize, width: usize) {
    let zeros = vec![0.0; rows * width];
    let x = tensor(backend, &zeros, width);
    let w = matrix(backend, &vec![0.0; width * width], width);
    let weight = backend.load_vector(&vec![1.0; width]).unwrap();
    let [mut residual, mut delta, mut out] = [(); 3].map(|()| tensor(backend, &zeros, width));
    let linear = RowParallel {
        axis: Axis::World,
        part: Linear {
            weight: &w,
            bias: None,
        },
    };
    let norm = RmsNorm {
        weight: &weight,
        eps: 1e-5,
    };
    backend
        .matmul_end_block(&x, linear, &mut residual, &mut delta, norm.into(), &mut out)
        .unwrap();
}

/// Work of a rank alone reaches no other rank: the others neither wait for it nor hear of
/// it, and the rank computes like a group of one.
#[test]
fn collectives_of_a_rank_alone_concern_nobody() {
    std::thread::scope(|scope| {
        for (rank, group) in local_group(2).into_iter().enumerate() {
            scope.spawn(move || {
                let mut backend = CpuBackend::new(options(1), Box::new(group)).unwrap();
                for round in 0..3 {
                    if rank == round % 2 {
                        work_alone(&mut backend);
                    }
                    assert_eq!(backend.group(Axis::World), (rank, 2));
                    let mut x = tensor(&mut backend, &[rank as f32 + 1.0], 1);
                    backend.all_reduce(Axis::World, &mut x).unwrap();
                    assert_eq!(x.values(), [3.0]);
                }
            });
        }
    });
}

fn work_alone(backend: &mut CpuBackend) {
    assert_eq!(backend.group(Axis::Alone), (0, 1));
    assert!(backend.leads(Axis::Alone));
    let mut x = tensor(backend, &[1.0, 2.0], 2);
    backend.all_reduce(Axis::Alone, &mut x).unwrap();
    assert_eq!(x.values(), [1.0, 2.0]);
    let mut space = Vec::new();
    let owners = Owners {
        widths: &[2],
        rows: &[Range { start: 0, end: 1 }],
    };
    let found = backend
        .gather_to_host(Axis::Alone, &x, owners, &mut space)
        .unwrap();
    assert_eq!(found, [1.0, 2.0]);

    let identity = matrix(backend, &[1.0, 0.0, 0.0, 1.0], 2);
    let weight = backend.load_vector(&[1.0, 1.0]).unwrap();
    let mut residual = tensor(backend, &[10.0, 20.0], 2);
    let (mut delta, mut out) = (tensor(backend, &[0.0; 2], 2), tensor(backend, &[0.0; 2], 2));
    let linear = RowParallel {
        axis: Axis::Alone,
        part: Linear {
            weight: &identity,
            bias: None,
        },
    };
    let norm = RmsNorm {
        weight: &weight,
        eps: 0.0,
    };
    backend
        .matmul_end_block(&x, linear, &mut residual, &mut delta, norm.into(), &mut out)
        .unwrap();
    assert_eq!(residual.values(), [11.0, 22.0]);
}

/// The fused end of a row-parallel projection and the separate operations that it replaces,
/// on one rank. Returns residual and normed output of both, bit by bit.
fn row_parallel_both_ways(
    group: Box<dyn Collective>,
    threads: usize,
    rows: usize,
) -> [Vec<u32>; 2] {
    const IN: usize = 24;
    const WIDTH: usize = 40;
    const EPS: f32 = 1e-5;
    let rank = group.rank();
    let mut backend = CpuBackend::new(options(threads), group).unwrap();
    let mut own = Values::new(rank as u64 + 1);
    let x = tensor(&mut backend, &own.floats(rows * IN), IN);
    let w = matrix(&mut backend, &own.floats(WIDTH * IN), IN);
    let mut shared = Values::new(99);
    let bias = backend.load_vector(&shared.floats(WIDTH)).unwrap();
    let bias = (rank == 0).then_some(&bias);
    let weight = backend.load_vector(&shared.floats(WIDTH)).unwrap();
    let start = shared.floats(rows * WIDTH);
    let space = vec![f32::NAN; rows * WIDTH];

    let mut both = Vec::new();
    for fused in [true, false, true] {
        let mut residual = tensor(&mut backend, &start, WIDTH);
        let mut delta = tensor(&mut backend, &space, WIDTH);
        let mut out = tensor(&mut backend, &space, WIDTH);
        let norm = RmsNorm {
            weight: &weight,
            eps: EPS,
        };
        if fused {
            let linear = RowParallel {
                axis: Axis::World,
                part: Linear { weight: &w, bias },
            };
            let done = backend.matmul_end_block(
                &x,
                linear,
                &mut residual,
                &mut delta,
                norm.into(),
                &mut out,
            );
            done.unwrap();
        } else {
            backend.matmul(&x, Linear { weight: &w, bias }, &mut delta);
            backend.all_reduce(Axis::World, &mut delta).unwrap();
            backend.end_block(&mut residual, Some(&delta), norm.into(), &mut out);
        }
        both.push([bits(residual.values()), bits(out.values())]);
    }
    assert_eq!(both[0], both[1], "fused and one by one");
    assert_eq!(both[0], both[2], "again");
    both.swap_remove(0)
}

#[test]
fn a_fused_row_parallel_product_has_the_same_bits() {
    // Room for all rows, for some rows at a time, and for less than one row.
    for max_elements in [1 << 20, 130, 7] {
        for (ranks, threads, rows) in [(1, 2, 5), (2, 1, 7), (2, 2, 411), (3, 1, 9), (3, 1, 600)] {
            let options = Options {
                max_elements,
                ..Options::default()
            };
            let results: Vec<_> = std::thread::scope(|scope| {
                let run = |group| {
                    scope.spawn(move || row_parallel_both_ways(Box::new(group), threads, rows))
                };
                let threads: Vec<_> = local_group_with(ranks, &options)
                    .into_iter()
                    .map(run)
                    .collect();
                threads.into_iter().map(|t| t.join().unwrap()).collect()
            });
            assert!(results.iter().all(|found| *found == results[0]));
        }
    }
}

#[test]
fn large_gathers_arrive_by_copying() {
    let options_of_group = Options {
        max_elements: 5,
        ..Options::default()
    };
    std::thread::scope(|scope| {
        for (rank, group) in local_group_with(2, &options_of_group)
            .into_iter()
            .enumerate()
        {
            scope.spawn(move || {
                let mut backend = CpuBackend::new(options(1), Box::new(group)).unwrap();
                let own = [rank as f32; 9];
                let x = tensor(&mut backend, &own, 3);
                let mut space = Vec::new();
                let owners = Owners {
                    widths: &[3, 3],
                    rows: &[0..3, 0..0],
                };
                let found = backend
                    .gather_to_host(Axis::World, &x, owners, &mut space)
                    .unwrap();
                let row = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0];
                assert_eq!(found, if rank == 0 { row.repeat(3) } else { vec![] });
            });
        }
    });
}

#[test]
fn one_rank_gathers_without_copying() {
    let mut backend = CpuBackend::new(options(2), Box::new(Single::new())).unwrap();
    let x = tensor(&mut backend, &[1.0, 2.0, 3.0, 4.0], 2);
    let mut out = Vec::new();
    let owners = Owners {
        widths: &[2],
        rows: &[Range { start: 0, end: 2 }],
    };
    let found = backend
        .gather_to_host(Axis::World, &x, owners, &mut out)
        .unwrap();
    assert_eq!(found, [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(found.as_ptr(), x.values().as_ptr());
    let description = backend.describe(WeightFormat::Float);
    assert_eq!(
        description,
        format!("cpu {}, f32, 2 threads", Isa::detect())
    );
}

#[test]
fn impossible_options_are_refused() {
    let refuse = |options| {
        CpuBackend::new(options, Box::new(Single::new()))
            .err()
            .unwrap()
    };
    assert!(matches!(refuse(options(0)), CpuError::NoThreads));
    let pinned = CpuOptions {
        pin: Some(vec![0]),
        ..options(2)
    };
    assert!(matches!(
        refuse(pinned),
        CpuError::Pinning {
            cores: 1,
            threads: 2
        }
    ));
    let nowhere = CpuOptions {
        pin: Some(vec![100_000]),
        ..options(1)
    };
    assert!(matches!(refuse(nowhere), CpuError::Threads(_)));
    if let Some(isa) = Isa::ALL.into_iter().find(|isa| !isa.is_available()) {
        let foreign = CpuOptions {
            isa: Some(isa),
            ..options(1)
        };
        assert!(matches!(refuse(foreign), CpuError::Isa(_)));
    }
    assert_eq!("avx2".parse(), Ok(Isa::Avx2));
    assert!(
        "sse9"
            .parse::<Isa>()
            .unwrap_err()
            .to_string()
            .contains("avx512-bf16")
    );
}
