//! The golden gates on a GPU. Cargo runs them on the fake GPU, whose streams run in an order
//! that a seed draws. Started by hand, they run on the machine's own GPU.

use std::sync::{Arc, Mutex};

use lockstep_backend::{Axis, Groups};
use lockstep_backend_cuda::{CollectiveOptions, CudaBackend, CudaOptions, Gpu};
use lockstep_types::{CollectiveBackend, Dtype, KvCacheDtype};

use super::{Case, F32_CLEAR_GAP, F32_TOLERANCE, cases_on_gpus, check, named, texts};
use crate::driver::{Factory, Feed, logits};
use crate::ranks::WorldFactory;

pub(super) const DTYPES: [(Dtype, KvCacheDtype); 2] = [
    (Dtype::Float32, KvCacheDtype::Float32),
    (Dtype::Bfloat16, KvCacheDtype::Bfloat16),
];
/// Sizes of chunks: whole prompts, pieces of them, and single tokens.
const CHUNKS: [usize; 3] = [usize::MAX, 7, 1];
const SEEDS: [u64; 3] = [1, 2, 3];

/// Makes backends whose order `seed` draws. An order belongs to the thread that makes the
/// backend. The test fails if nothing was drawn of an order in the end.
pub(super) fn cuda(dtype: Dtype, seed: u64) -> Factory<CudaBackend> {
    let open = gpus(dtype, seed);
    Arc::new(move |collective| open(Groups::from(collective)))
}

/// Makes backends of several ranks, which share GPUs if there are fewer GPUs than ranks.
pub(super) fn gpus(dtype: Dtype, seed: u64) -> WorldFactory<CudaBackend> {
    gpus_by(CollectiveBackend::Auto, &[1, 2, 4, 8, 16], dtype, seed)
}

/// Makes backends that exchange data by `backend` and record passes of `graphs` tokens.
pub(super) fn gpus_by(
    backend: CollectiveBackend,
    graphs: &[usize],
    dtype: Dtype,
    seed: u64,
) -> WorldFactory<CudaBackend> {
    let (orders, gpus) = (Mutex::new(Vec::new()), Gpu::count().unwrap());
    let graphs = graphs.to_vec();
    Arc::new(move |groups| {
        let (rank, _) = groups.rank_and_size(Axis::World);
        let order = lockstep_fake_cuda::order(seed + rank as u64);
        orders.lock().unwrap().push(order);
        let options = CudaOptions {
            ordinal: rank % gpus,
            dtype,
            kernels: None,
            graphs: graphs.clone(),
            collectives: CollectiveOptions {
                backend,
                ..CollectiveOptions::default()
            },
        };
        let mut gpu = CudaBackend::new(&options, groups).unwrap();
        gpu.check_repetitions();
        gpu
    })
}

/// Returns the types in which GPUs serve a case.
pub(super) fn dtypes_of(case: &Case) -> impl Iterator<Item = (Dtype, KvCacheDtype)> {
    let served = |(_, cached): &(Dtype, KvCacheDtype)| case.caches_on_gpus(*cached);
    DTYPES.into_iter().filter(served)
}

/// Returns the tolerance of a case in a type, and a gap that errors do not close.
pub(super) fn tolerance(case: &Case, dtype: Dtype) -> (f32, f32) {
    let reference = case.golden.bf16_max_logit_error;
    match dtype {
        Dtype::Float32 => (F32_TOLERANCE, F32_CLEAR_GAP),
        Dtype::Bfloat16 => (reference, 2.0 * reference),
    }
}

fn run(name: &str, case: &Case, (dtype, kv_dtype): (Dtype, KvCacheDtype), chunk: usize, seed: u64) {
    let feed = Feed {
        chunk,
        together: chunk < usize::MAX,
        ..Feed::plain(kv_dtype)
    };
    let found = logits(&case.model, &cuda(dtype, seed), feed, &texts(&case.golden));
    let (tolerance, clear_gap) = tolerance(case, dtype);
    let name = format!("{name} in {dtype:?}, chunks of {chunk}, seed {seed}");
    check(&name, &case.golden, &found, tolerance, clear_gap);
}

/// Runs every model in both types, and every pair of types, chunks and seeds.
#[test]
fn cuda_backend() {
    for (number, (name, case)) in cases_on_gpus().enumerate() {
        let served = dtypes_of(&case).enumerate();
        for (place, dtypes) in served {
            let turn = 2 * number + place;
            run(name, &case, dtypes, CHUNKS[turn % 3], SEEDS[turn / 3 % 3]);
        }
    }
}

#[test]
#[ignore = "minutes: every model with every type, chunk and seed"]
fn cuda_backend_in_every_way() {
    for (name, case) in cases_on_gpus() {
        for dtypes in dtypes_of(&case) {
            for chunk in CHUNKS {
                for seed in SEEDS {
                    run(name, &case, dtypes, chunk, seed);
                }
            }
        }
    }
}

/// A request that begins like an earlier one reads the earlier one's keys and values.
#[test]
fn a_prefix_hit_is_bit_identical_on_cuda() {
    const PAGES: usize = 3;
    const PAGE_SIZE: usize = 4;
    for (_, case) in named(&["llama"]) {
        let first = texts(&case.golden).swap_remove(0);
        let mut other = first.clone();
        other[PAGES * PAGE_SIZE..].reverse();
        assert!(other != first);
        for (dtype, kv_dtype) in DTYPES {
            let plain = Feed {
                page_size: PAGE_SIZE,
                chunk: 64,
                ..Feed::plain(kv_dtype)
            };
            let hit = Feed {
                shared: PAGES,
                ..plain
            };
            let alone = [other.clone()];
            let both = [first.clone(), other.clone()];
            let expected = logits(&case.model, &cuda(dtype, 1), plain, &alone);
            let found = logits(&case.model, &cuda(dtype, 2), hit, &both);
            assert!(found[1] == expected[0][PAGES * PAGE_SIZE..], "{dtype:?}");
        }
    }
}

/// Chunk size, page size and other texts change no bit among passes of up to 64 tokens. The
/// products of such passes have one order.
#[test]
fn chunked_and_batched_runs_are_bit_identical_on_cuda() {
    let models = [
        "llama",
        "qwen3",
        "qwen3_moe",
        "gpt_oss_mxfp4",
        "qwen3_next",
        "deepseek_v3",
        "gemma4_per_layer",
    ];
    for (name, case) in named(&models) {
        let texts = texts(&case.golden);
        for (dtype, kv_dtype) in DTYPES {
            let plain = Feed::plain(kv_dtype);
            let whole = Feed { chunk: 64, ..plain };
            let expected = logits(&case.model, &cuda(dtype, 1), whole, &texts);
            for (seed, page_size, chunk, together) in [(2, 1, 7, true), (3, 16, 50, false)] {
                let feed = Feed {
                    page_size,
                    chunk,
                    together,
                    ..whole
                };
                let found = logits(&case.model, &cuda(dtype, seed), feed, &texts);
                assert!(found == expected, "{name}: {feed:?} differs");
            }
        }
    }
}
