//! Several ranks that exchange data from GPU to GPU or through the host.

use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use half::bf16;
use lockstep_backend::{
    Axis, BackendError, Exchange as _, Groups, Holds, Linear, Memory as _, Ops as _, Owners,
    RmsNorm, RowParallel, Scatter, WeightFormat,
};
use lockstep_backend_cuda::{CollectiveOptions, CudaBackend, CudaOptions, CudaTensor, Gpu};
use lockstep_collective::local_group;
use lockstep_types::{CollectiveBackend, Dtype};

use crate::support::{ALONE, host_matrix, matrix, noise, options, other_gpus, read};

/// Longer than any exchange here takes.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// Less data than passes through the host at a time, and more.
const FLOATS: [usize; 2] = [30, (1 << 20) + 30];

/// The ways of data that `ranks` ranks can use.
fn ways(ranks: usize) -> impl Iterator<Item = CollectiveBackend> {
    let enough = Gpu::count().unwrap() >= ranks;
    let nccl = enough.then_some(CollectiveBackend::Nccl);
    [CollectiveBackend::Host].into_iter().chain(nccl)
}

/// Runs `work` on every rank with its backend and its number. Data passes through the host.
fn on_ranks<T: Send + 'static>(
    split: (usize, usize),
    dtype: Dtype,
    work: impl Fn(&mut CudaBackend, usize) -> T + Send + Sync + 'static,
) -> Vec<T> {
    by_way(CollectiveBackend::Host, split, dtype, work)
}

/// Does the same as [`on_ranks`] by `backend`. Ranks share GPUs if there are too few.
pub fn by_way<T: Send + 'static>(
    backend: CollectiveBackend,
    split: (usize, usize),
    dtype: Dtype,
    work: impl Fn(&mut CudaBackend, usize) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let collectives = CollectiveOptions {
        backend,
        joining: PATIENCE,
        patience: PATIENCE,
        ..CollectiveOptions::default()
    };
    let options = CudaOptions {
        collectives,
        ..options(dtype)
    };
    with_options(move |_| options.clone(), split, work)
}

/// Does the same as [`by_way`] with the options of each rank. GPUs are given to ranks in turn.
pub fn with_options<T: Send + 'static>(
    options: impl Fn(usize) -> CudaOptions,
    (ranks, dp_size): (usize, usize),
    work: impl Fn(&mut CudaBackend, usize) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let _turn = other_gpus();
    let (work, gpus) = (Arc::new(work), Gpu::count().unwrap());
    let start = |(rank, collective)| {
        let work = work.clone();
        let options = CudaOptions {
            ordinal: rank % gpus,
            ..options(rank)
        };
        thread::spawn(move || {
            let _order = lockstep_fake_cuda::order(rank as u64 + 1);
            let groups = Groups::form(Box::new(collective), dp_size).unwrap();
            work(&mut CudaBackend::new(&options, groups).unwrap(), rank)
        })
    };
    let threads: Vec<_> = local_group(ranks)
        .into_iter()
        .enumerate()
        .map(start)
        .collect();
    threads
        .into_iter()
        .map(|rank| rank.join().unwrap())
        .collect()
}

/// A tensor with its own memory, filled with `values`.
pub fn tensor(gpu: &mut CudaBackend, values: &[f32], width: usize, holds: Holds) -> CudaTensor {
    let mut tensor = gpu.tensor(values.len() / width, width, holds).unwrap();
    gpu.upload(&mut tensor, values);
    tensor
}

/// Values of a tensor of 32-bit floats, without an operation that might change them.
pub fn values(gpu: &mut CudaBackend, x: &CudaTensor) -> Vec<f32> {
    let mut space = Vec::new();
    let owners = Owners {
        widths: &[x.width()],
        rows: &[0..x.rows(); 1],
    };
    let found = gpu.gather_to_host(Axis::Alone, x, owners, &mut space);
    found.unwrap().to_vec()
}

/// Values that rank `rank` brings.
pub fn brought(rank: usize, len: usize) -> Vec<f32> {
    noise(rank as u64 + 1, len)
}

/// Sum of the values of `ranks`, in rank order.
pub fn summed(ranks: Range<usize>, len: usize) -> Vec<f32> {
    let parts = ranks.map(|rank| brought(rank, len));
    let add = |sum: Vec<f32>, part: Vec<f32>| sum.iter().zip(part).map(|(a, b)| a + b).collect();
    parts.reduce(add).unwrap()
}

#[test]
fn sums_run_in_rank_order_over_the_ranks_of_an_axis() {
    let cases = FLOATS.into_iter().zip([4, 2]);
    for (way, (len, ranks)) in cases.flat_map(|case| ways(case.1).map(move |way| (way, case))) {
        let found = by_way(way, (ranks, 2), Dtype::Bfloat16, move |gpu, rank| {
            [Axis::World, Axis::Attention, Axis::Alone].map(|axis| {
                let mut x = tensor(gpu, &brought(rank, len), 2, Holds::Sum);
                gpu.all_reduce(axis, &mut x).unwrap();
                values(gpu, &x)
            })
        });
        for (rank, [world, attention, alone]) in found.into_iter().enumerate() {
            let (each, all) = (ranks / 2, summed(0..ranks, len));
            let first = rank / each * each;
            assert!(world == all, "{rank}: {len}");
            assert!(
                attention == summed(first..first + each, len),
                "{rank}: {len}"
            );
            assert!(alone == brought(rank, len), "{rank}: {len}");
        }
    }
}

/// Uneven numbers of rows, no rows, and the type of operands, of which an odd number makes no
/// whole words.
#[test]
fn rows_are_gathered_bit_for_bit() {
    const WIDTH: usize = 3;
    for (way, (dtype, scale)) in [
        (Dtype::Bfloat16, 1),
        (Dtype::Float32, 1),
        (Dtype::Float32, 1 << 17),
    ]
    .into_iter()
    .flat_map(|case| ways(4).map(move |way| (way, case)))
    {
        let counts = [scale, 0, 3, 1];
        let found = by_way(way, (4, 1), dtype, move |gpu, rank| {
            // All of a rank's rows but the first travel.
            let (count, all) = (counts[rank], counts.iter().sum());
            let x = brought(rank, (count + 1) * WIDTH);
            let x = tensor(gpu, &x, WIDTH, Holds::Operand);
            let mut out = gpu.tensor(all, WIDTH, Holds::Operand).unwrap();
            gpu.all_gather_rows(Axis::World, &x, 1, &counts, &mut out)
                .unwrap();
            match dtype {
                Dtype::Float32 => values(gpu, &out),
                Dtype::Bfloat16 => read(gpu, &out),
            }
        });
        let rows = |(rank, count): (usize, &usize)| {
            let all = brought(rank, (count + 1) * WIDTH);
            all[WIDTH..].to_vec()
        };
        let mut expected: Vec<f32> = counts.iter().enumerate().flat_map(rows).collect();
        if dtype == Dtype::Bfloat16 {
            let round = |x: &mut f32| *x = bf16::from_f32(*x).to_f32();
            expected.iter_mut().for_each(round);
        }
        assert!(found.iter().all(|rows| *rows == expected), "{dtype:?}");
    }
}

/// A product by the identity, summed over ranks. Each rank takes one row of the sum, several or
/// none.
#[test]
fn each_rank_takes_its_rows_of_a_sum() {
    const WIDTH: usize = 2;
    let uneven = |len: usize| {
        let rows = len / WIDTH;
        (len, [0..4, 0..4, rows - 3..rows, 5..5])
    };
    let small = [uneven(FLOATS[0]), (32, [0..4, 4..8, 8..12, 12..16])];
    let by_ways = small
        .into_iter()
        .flat_map(|case| ways(4).map(move |way| (way, case.clone())));
    let large = (CollectiveBackend::Host, uneven(FLOATS[1]));
    for (way, (len, taken)) in by_ways.chain([large]) {
        let rows = len / WIDTH;
        let ranges = taken.clone();
        let found = by_way(way, (4, 1), Dtype::Float32, move |gpu, rank| {
            let identity = matrix(&[1.0, 0.0, 0.0, 1.0], WIDTH);
            let identity = host_matrix(&identity, WIDTH);
            let identity = gpu.load_matrix(&identity, WeightFormat::Float).unwrap();
            let weight = gpu.load_vector(&[1.0, 0.5]).unwrap();
            let x = tensor(gpu, &brought(rank, len), WIDTH, Holds::Operand);
            let own = ranges[rank].len();
            let before = noise(77, own * WIDTH);
            let mut residual = tensor(gpu, &before, WIDTH, Holds::Sum);
            let mut product = gpu.tensor(rows, WIDTH, Holds::Sum).unwrap();
            let mut out = gpu.tensor(own, WIDTH, Holds::Operand).unwrap();
            let mut normed = gpu.tensor(own, WIDTH, Holds::Operand).unwrap();
            let w = RowParallel {
                axis: Axis::World,
                part: Linear {
                    weight: &identity,
                    bias: None,
                },
            };
            let scatter = Scatter {
                rows: &ranges,
                product: &mut product,
            };
            let (eps, weight) = (1e-5, &weight);
            let norm = RmsNorm { weight, eps };
            gpu.matmul_scatter_end_block(&x, w, scatter, &mut residual, norm.into(), &mut out)
                .unwrap();
            gpu.rms_norm(&residual, weight, eps, &mut normed);
            [&residual, &out, &normed].map(|x| values(gpu, x))
        });
        let sum = summed(0..4, len);
        for (rows, [residual, out, normed]) in taken.into_iter().zip(found) {
            let own = &sum[rows.start * WIDTH..rows.end * WIDTH];
            let before = noise(77, own.len());
            let expected: Vec<_> = before.iter().zip(own).map(|(x, y)| x + y).collect();
            assert!(residual == expected && out == normed, "{rows:?} of {len}");
        }
    }
}

/// Logits of uneven columns come to the owners of their rows, in blocks that fit into a
/// transfer and in larger ones.
#[test]
fn logits_reach_their_owners() {
    let cases = [(5, [2, 1, 2, 1]), (5, [2; 4]), (1 << 18, [2, 1, 2, 1])].into_iter();
    for (way, (rows, widths)) in cases.flat_map(|case| ways(4).map(move |way| (way, case))) {
        let owned = [0..2, 0..0, 2..rows, 0..0];
        let owners = owned.clone();
        let found = by_way(way, (4, 2), Dtype::Bfloat16, move |gpu, rank| {
            let width = widths[rank];
            let x = tensor(gpu, &brought(rank, rows * width), width, Holds::Logits);
            let owners = Owners {
                widths: &widths,
                rows: &owners,
            };
            let mut space = Vec::new();
            let found = gpu.gather_to_host(Axis::World, &x, owners, &mut space);
            found.unwrap().to_vec()
        });
        let parts: Vec<_> = (0..4)
            .map(|rank| brought(rank, rows * widths[rank]))
            .collect();
        for (own, found) in owned.into_iter().zip(found) {
            let row = |row: usize| {
                let columns = parts.iter().zip(widths);
                columns.flat_map(move |(part, width)| &part[row * width..(row + 1) * width])
            };
            assert!(
                found.iter().eq(own.clone().flat_map(row)),
                "{own:?} of {rows}"
            );
        }
    }
}

/// Words travel with the data of their axis.
#[test]
fn words_ride_on_what_is_exchanged() {
    let found = on_ranks((2, 1), Dtype::Float32, |gpu, rank| {
        assert!(gpu.words_ride_on_data());
        let words = [7, rank as u32];
        gpu.control(Axis::World).attach(1, &words).unwrap();
        // An exchange of no rows is enough.
        let mut x = gpu.tensor(1, 1, Holds::Sum).unwrap();
        gpu.set_rows(&mut x, 0);
        gpu.all_reduce(Axis::World, &mut x).unwrap();
        let mut all = [0; 4];
        assert!(gpu.control(Axis::World).attached(&mut all));
        all
    });
    assert_eq!(found, [[7, 0, 7, 1]; 2]);
}

/// Ranks that would sum different numbers of floats are told so. A rank that failed leaves no
/// rank waiting.
#[test]
fn ranks_that_differ_or_fail_end_the_others() {
    let found = on_ranks((2, 1), Dtype::Float32, |gpu, rank| {
        let mut x = gpu.tensor(2 + rank, 4, Holds::Sum).unwrap();
        gpu.all_reduce(Axis::World, &mut x).unwrap_err().to_string()
    });
    for error in found {
        assert!(error.contains('8') && error.contains("12"), "{error}");
    }
    let found = on_ranks((2, 1), Dtype::Float32, |gpu, rank| {
        let mut x = gpu.tensor(1, 1, Holds::Sum).unwrap();
        if rank == 1 {
            // No kernel has heads as wide as this; the next result reports it.
            let shape = lockstep_backend::AttentionShape::dense(1, 1, 1000, 1.0);
            let weight = gpu.load_vector(&[1.0; 1000]).unwrap();
            let mut qkv = gpu.tensor(1, shape.qkv_width(), Holds::Sum).unwrap();
            gpu.head_norm(&mut qkv, &shape, 0..1, &weight, 1e-5);
        }
        gpu.all_reduce(Axis::World, &mut x).unwrap_err()
    });
    let [left, failed] = found.try_into().unwrap();
    assert!(matches!(left, BackendError::Collective(_)), "{left}");
    assert!(failed.to_string().contains("heads of 1000"), "{failed}");
}

/// A DP rank of one rank has no peers to exchange its logits with.
#[test]
fn a_group_of_one_reads_its_own() {
    let found = on_ranks((2, 2), Dtype::Float32, |gpu, rank| {
        let logits = tensor(gpu, &[rank as f32], 1, Holds::Logits);
        let mut space = Vec::new();
        let found = gpu.gather_to_host(Axis::Attention, &logits, ALONE, &mut space);
        found.unwrap().to_vec()
    });
    assert_eq!(found, [[0.0], [1.0]]);
}
