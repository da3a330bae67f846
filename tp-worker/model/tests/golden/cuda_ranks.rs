//! The golden gates on several ranks whose data goes from GPU to GPU, or through the host:
//! tensor-parallel, and with data-parallel attention.

use std::sync::Arc;

use lockstep_backend::Groups;
use lockstep_backend_cuda::Gpu;
use lockstep_types::{CollectiveBackend, Dtype, KvCacheDtype};

use super::cuda::{DTYPES, dtypes_of, gpus, gpus_by, tolerance};
use super::data_parallel::{divides, staggered, whole};
use super::{Case, cases_on_gpus, check, texts};
use crate::driver::{self, Factory, Feed};
use crate::world::{self, Placed, WorldFeed};

/// Numbers of ranks, and of DP ranks among them.
const SPLITS: [(usize, usize); 4] = [(2, 1), (2, 2), (4, 2), (4, 1)];
/// Numbers of tokens of recorded passes.
const GRAPHS: [usize; 5] = [1, 2, 4, 8, 16];

/// Returns the ways for data between `ranks` ranks. NCCL needs a GPU for each rank.
fn ways(ranks: usize) -> impl Iterator<Item = CollectiveBackend> {
    let enough = Gpu::count().unwrap() >= ranks;
    let nccl = enough.then_some(CollectiveBackend::Nccl);
    [CollectiveBackend::Host].into_iter().chain(nccl)
}

fn run(
    name: &str,
    case: &Case,
    (dtype, kv_dtype): (Dtype, KvCacheDtype),
    (split, way): ((usize, usize), CollectiveBackend),
    seed: u64,
) {
    let (texts, open) = (texts(&case.golden), gpus_by(way, &GRAPHS, dtype, seed));
    let found = match split {
        (tp_size, 1) => {
            let feed = Feed {
                tp_size,
                chunk: 11,
                together: true,
                ..Feed::plain(kv_dtype)
            };
            let factory: Factory<_> = Arc::new(move |group| open(Groups::from(group)));
            driver::logits(&case.model, &factory, feed, &texts)
        }
        split => {
            let feed = staggered(split, kv_dtype, texts.len());
            whole(world::logits(&case.model, &open, &feed, &texts))
        }
    };
    let (tolerance, clear_gap) = tolerance(case, dtype);
    let name = format!("{name} in {dtype:?} on {split:?} by {way:?}, seed {seed}");
    check(&name, &case.golden, &found, tolerance, clear_gap);
}

/// Models, and the splits and types that each runs on, by their places in [`SPLITS`] and [`DTYPES`]:
/// biases, a head of its own, norms of heads, mixtures of experts, windows, sinks with packed
/// experts, recurrent layers, latent attention, shared caches with embeddings of each layer,
/// experts beside MLPs, and a group of Mamba-2 that ranks share.
const MODELS: [(&str, &[(usize, usize)]); 13] = [
    ("llama_bias", &[(0, 0), (1, 1)]),
    ("qwen2_untied", &[(1, 1), (2, 0)]),
    ("qwen3", &[(2, 0), (3, 1)]),
    ("glm4_moe", &[(3, 1), (0, 0)]),
    ("qwen3_moe", &[(0, 0), (1, 1)]),
    ("gemma3", &[(0, 1), (1, 0)]),
    ("gpt_oss_mxfp4", &[(0, 0), (1, 1), (2, 0)]),
    ("qwen3_next", &[(0, 0)]),
    ("qwen3_5_moe", &[(1, 1)]),
    ("deepseek_v3", &[(0, 1), (1, 0)]),
    ("gemma4_per_layer", &[(0, 0)]),
    ("gemma4_moe", &[(1, 1)]),
    ("granite_hybrid", &[(0, 1)]),
];

#[test]
fn ranks_share_a_model_whichever_way_their_data_goes() {
    for (number, (name, turns)) in MODELS.into_iter().enumerate() {
        let case = super::case(name);
        for (turn, (split, dtype)) in turns.iter().enumerate() {
            let split = SPLITS[*split];
            assert!(divides(split, &case), "{name} on {split:?}");
            let seed = 1 + (number + 5 * turn) as u64;
            for way in ways(split.0) {
                run(name, &case, DTYPES[*dtype], (split, way), seed);
            }
        }
    }
}

#[test]
#[ignore = "minutes: every model on every split in every type"]
fn ranks_share_every_model_whichever_way_their_data_goes() {
    for (name, case) in cases_on_gpus() {
        let splits = SPLITS.into_iter().filter(|split| divides(*split, &case));
        for (split, way) in splits.flat_map(|split| ways(split.0).map(move |way| (split, way))) {
            for dtypes in dtypes_of(&case) {
                for seed in [1, 7, 100] {
                    run(name, &case, dtypes, (split, way), seed);
                }
            }
        }
    }
}

/// Sums of two ranks have one order. So the bits depend neither on the way that data takes,
/// nor on recorded passes, nor on the order in which devices get to their work.
#[test]
fn two_ranks_have_the_same_bits_whichever_way_their_data_goes() {
    if Gpu::count().unwrap() < 2 {
        return;
    }
    let case = super::case("qwen3");
    let texts = texts(&case.golden);
    for ((dtype, kv_dtype), seeds) in DTYPES.into_iter().zip([&[1][..], &[7, 100]]) {
        let feed = Feed {
            tp_size: 2,
            chunk: 3,
            together: true,
            ..Feed::plain(kv_dtype)
        };
        let of = |way, graphs: &[usize], seed| {
            let open = gpus_by(way, graphs, dtype, seed);
            let factory: Factory<_> = Arc::new(move |group| open(Groups::from(group)));
            driver::logits(&case.model, &factory, feed, &texts)
        };
        let expected = of(CollectiveBackend::Host, &[], 1);
        for &seed in seeds {
            assert!(of(CollectiveBackend::Nccl, &GRAPHS, seed) == expected);
        }
        assert!(of(CollectiveBackend::Nccl, &[], 1) == expected);
    }
}

/// The DP rank, chunks, pages and other texts' wanted logits change no bit among passes of
/// one product algorithm. Passes of up to 64 rows share one. The order in which the devices
/// get to their work changes no bit either.
#[test]
fn where_a_text_runs_changes_no_bit_on_cuda() {
    let case = super::case("llama");
    let texts = texts(&case.golden);
    let (split, (dtype, kv_dtype)) = ((4, 2), DTYPES[1]);
    let plain = staggered(split, kv_dtype, texts.len());
    let placed = |text: usize| Placed {
        dp_rank: (text / 2) % split.1,
        start: 3 * text,
        every: 1 + 4 * (text % 2),
    };
    let other = WorldFeed {
        page_size: 4,
        chunk: 17,
        texts: (0..texts.len()).map(placed).collect(),
        ..plain.clone()
    };
    let expected = world::logits(&case.model, &gpus(dtype, 1), &plain, &texts);
    let found = world::logits(&case.model, &gpus(dtype, 50), &other, &texts);
    let rows = found.iter().flatten().zip(expected.iter().flatten());
    for (found, expected) in rows.filter(|(found, _)| found.is_some()) {
        assert!(found == expected, "{split:?} in {dtype:?}");
    }
}
