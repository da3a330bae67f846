//! Measures the kernels against the machine: matrix products in GB/s of weights
//! read and GFLOP/s, attention in GB/s of keys and values, next to the speed at
//! which the same threads read plain memory in the same run.
//!
//! `cargo run --release -p lockstep-backend-cpu --example kernels [threads] [isa]`

#![expect(clippy::print_stdout, reason = "prints its measurements")]

use std::time::Instant;

use lockstep_backend::{
    AttentionShape, Backend, Batch, DType, HostBlock, HostMatrix, KvDType, KvShape, MatrixRole, Row,
};
use lockstep_backend_cpu::{Compute, CpuBackend, CpuOptions, Isa, WeightFormat};
use lockstep_collective::Single;

const OUT: usize = 8_192;
const IN: usize = 2_048;
/// Matrices used in turn, so that none is found in a cache.
const MATRICES: usize = 12;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments
        .next()
        .map_or_else(cores, |text| text.parse().expect("a number"));
    let isa: Option<Isa> = arguments
        .next()
        .map(|name| name.parse().expect("an instruction set"));
    println!(
        "plain reads: {:.1} GB/s on {threads} threads",
        read_speed(threads)
    );
    for dtype in [Compute::Bf16, Compute::F32] {
        let options = CpuOptions {
            threads,
            dtype,
            weights: WeightFormat::Native,
            pin: None,
            isa,
        };
        let mut backend = CpuBackend::new(options, Box::new(Single::new())).expect("options fit");
        println!("{}", backend.describe());
        products(&mut backend, threads == 1);
        if dtype == Compute::Bf16 {
            attention(&mut backend, threads == 1);
        }
    }
    println!(
        "plain reads: {:.1} GB/s on {threads} threads",
        read_speed(threads)
    );
}

/// Seconds so far: of a single thread the time it spent running, which other
/// work on the machine does not lengthen.
fn now(alone: bool) -> f64 {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    let ran = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    };
    let wall = START.elapsed().as_secs_f64();
    if alone {
        ran().map_or(wall, |nanoseconds| nanoseconds * 1e-9)
    } else {
        wall
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Median seconds of a few runs of several calls, after one to warm up.
fn median(alone: bool, mut call: impl FnMut(usize)) -> f64 {
    const CALLS: usize = 8;
    call(0);
    let mut times: Vec<f64> = (0..7)
        .map(|run| {
            let start = now(alone);
            (0..CALLS).for_each(|i| call(run * CALLS + i));
            (now(alone) - start) / CALLS as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn read_speed(threads: usize) -> f64 {
    let data = vec![1u64; 96 << 20];
    let part = data.len() / threads;
    let seconds = median(false, |_| {
        std::thread::scope(|scope| {
            for part in data.chunks(part) {
                scope.spawn(move || {
                    let mut sums = [0u64; 16];
                    for chunk in part.as_chunks::<16>().0 {
                        sums.iter_mut().zip(chunk).for_each(|(sum, x)| *sum ^= x);
                    }
                    std::hint::black_box(sums);
                });
            }
        });
    });
    (data.len() * 8) as f64 / seconds / 1e9
}

fn products(backend: &mut CpuBackend, alone: bool) {
    let bytes = vec![0x3fu8; OUT * IN * 2];
    let block = HostBlock {
        bytes: &bytes,
        offset: 0,
        stride: IN * 2,
        rows: OUT,
    };
    let host = HostMatrix {
        cols: IN,
        dtype: DType::Bf16,
        blocks: vec![block],
    };
    let start = Instant::now();
    let matrices: Vec<_> = (0..MATRICES)
        .map(|_| {
            backend
                .load_matrix(&host, MatrixRole::Projection)
                .expect("memory")
        })
        .collect();
    let packed = (MATRICES * bytes.len()) as f64 / start.elapsed().as_secs_f64() / 1e9;
    println!("  packing {packed:.2} GB/s of file");
    for m in [1usize, 2, 4, 8, 16, 32, 64, 128, 512] {
        let mut x = backend.tensor(m, IN).expect("memory");
        x.values_mut().fill(0.5);
        let mut out = backend.tensor(m, OUT).expect("memory");
        let seconds = median(alone, |i| {
            backend.matmul(&x, &matrices[i % MATRICES], None, &mut out);
        });
        let read = backend.matrix_bytes(&matrices[0]) as f64;
        let flops = (2 * m * IN * OUT) as f64;
        println!(
            "  m {m:4}: {:8.3} ms {:7.1} GB/s {:8.1} GFLOP/s",
            seconds * 1e3,
            read / seconds / 1e9,
            flops / seconds / 1e9
        );
    }
}

/// Decoding requests of some length, and prefilling one.
fn attention(backend: &mut CpuBackend, alone: bool) {
    let shape = AttentionShape {
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        scale: 0.125,
    };
    for page_size in [1u32, 16, 64] {
        for (requests, q_len, kv_len) in [
            (1, 1, 8_191),
            (32, 1, 511),
            (1, 4, 2_044),
            (1, 512, 0),
            (1, 512, 1_536),
        ] {
            let total: u32 = q_len + kv_len;
            let pages_each = total.div_ceil(page_size);
            let kv = KvShape {
                layers: 1,
                kv_heads: 8,
                head_dim: 64,
                pages: (requests * pages_each) as usize,
                page_size: page_size as usize,
                dtype: KvDType::Bf16,
            };
            let mut cache = backend.kv_cache(&kv).expect("memory");
            let pages: Vec<u32> = (0..requests * pages_each).collect();
            let row = |r| Row {
                start: r * q_len,
                q_len,
                kv_len,
                pages_start: r * pages_each,
            };
            let rows: Vec<Row> = (0..requests).map(row).collect();
            let new = 0..requests * q_len;
            let position = |i: u32| kv_len + i % q_len;
            let positions: Vec<u32> = new.clone().map(position).collect();
            let cell = |i: u32| i / q_len * pages_each * page_size + position(i);
            let cells: Vec<u32> = new.clone().map(cell).collect();
            let batch = Batch {
                tokens: &positions,
                positions: &positions,
                cells: &cells,
                rows: &rows,
                pages: &pages,
                logit_tokens: &[],
            };
            let n = new.len();
            let mut qkv = backend.tensor(n, shape.qkv_width()).expect("memory");
            qkv.values_mut().fill(0.25);
            let mut out = backend.tensor(n, shape.out_width()).expect("memory");
            let seconds = median(alone, |_| {
                backend.attention(&mut cache, 0, &qkv, &shape, &batch, &mut out);
            });
            let seen = f64::from(requests) * f64::from(total);
            let pairs: f64 = positions.iter().map(|&p| f64::from(p) + 1.0).sum();
            println!(
                "  attention page {page_size:2} {requests:2} x {q_len:3} over {kv_len:4}: {:8.3} ms {:6.1} GB/s {:7.1} GFLOP/s",
                seconds * 1e3,
                seen * kv.bytes_per_token() as f64 / seconds / 1e9,
                pairs * 4.0 * 64.0 * 32.0 / seconds / 1e9
            );
        }
    }
}
