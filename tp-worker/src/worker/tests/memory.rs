//! The memory of ranks: the charge before they start equals their allocations.

use std::thread;

use lockstep_adaptive::{AdaptiveConfig, BatchSlot, Tier};
use lockstep_backend::Groups;
use lockstep_backend_cpu::CpuAllocated;
use lockstep_collective::local_group;
use lockstep_devices::DeviceFootprint;
use lockstep_types::{
    CheckpointFormat, DeviceKind, DraftKind, Dtype, EngineConfig, Footprint as _, GatedDeltaNames,
    GatedDeltaSpec, KvCacheDtype, LoadFormat, Mixer, Quantization, RankMemory, Verification,
};

use super::{
    speculation::speculating,
    support::{SLOTS, config, load, repository},
};

const ALGORITHMS: [&str; 4] = ["EAGLE", "EAGLE3", "STANDALONE", "DFLASH"];

/// Returns each rank's allocations, and the reported bytes of its weights and its cache.
fn taken(config: &EngineConfig) -> Vec<(CpuAllocated, usize, usize)> {
    let start = |(rank, collective)| {
        let config = config.clone();
        thread::spawn(move || {
            let groups = Groups::form(Box::new(collective), config.parallel.dp_size);
            let worker = load(&config, rank, groups.unwrap()).unwrap();
            let told = (worker.weight_bytes(), worker.kv_bytes());
            (worker.backend.allocated(), told.0, told.1)
        })
    };
    let group = local_group(config.parallel.tp_size);
    let ranks: Vec<_> = (0..).zip(group).map(start).collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

/// Number of norms and biases that are charged to all heads, though some public heads lack
/// them.
const SPARE_VECTORS: u64 = 4;

/// Checks that every charged kind of memory is allocated as charged.
fn check(config: &EngineConfig, what: &str) {
    let (pages, page_size) = (config.kv_pages(), config.kv.page_size);
    for (rank, (found, weights, kv)) in taken(config).into_iter().enumerate() {
        let RankMemory { target, draft, .. } = DeviceFootprint.rank(&config.shape(), rank);
        let vectors = target.vectors + draft.vectors;
        let charged = CpuAllocated {
            matrices: target.weights + draft.weights,
            vectors: found.vectors,
            activations: target.activations + draft.activations,
            kv: target.kv_bytes(pages, page_size) + draft.kv_bytes(pages, page_size),
            states: config.state_limits().bytes(target.state, target.record),
            scratch: found.scratch,
        };
        assert_eq!(charged, found, "{what}, rank {rank}");
        assert_eq!(
            (weights as u64, kv as u64),
            (found.matrices, found.kv),
            "{what}"
        );
        let leads = config.shape().leads(rank);
        let hidden = config.speculation.draft.as_ref().filter(|_| leads);
        let spare = hidden.map_or(0, |draft| draft.model.hidden_size as u64);
        let most = found.vectors + SPARE_VECTORS * 4 * spare;
        assert!(
            (found.vectors..=most).contains(&vectors),
            "{what}, rank {rank}: {vectors} charged, {} taken",
            found.vectors
        );
    }
}

fn chunked(config: &mut EngineConfig, chunk: Option<usize>) {
    config.schedule.chunked_prefill_size = chunk;
    config.schedule.max_prefill_tokens = chunk.unwrap_or(512);
}

#[test]
fn architectures_take_what_is_charged() {
    let folder = repository().join("tests/fixtures/architectures");
    let mut folders: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("config.json").is_file())
        .collect();
    folders.sort();
    assert!(folders.len() >= 14);
    let mut compared = 0;
    for folder in folders {
        let Ok(model) = lockstep_model_folder::load(&folder) else {
            continue;
        };
        for (tp_size, dp_size, dtype, quantization, kv_dtype, chunk) in [
            (
                1,
                1,
                Dtype::Bfloat16,
                Quantization::None,
                KvCacheDtype::Int8,
                None,
            ),
            (
                2,
                1,
                Dtype::Float32,
                Quantization::Int8,
                KvCacheDtype::Bfloat16,
                Some(16),
            ),
            (
                4,
                1,
                Dtype::Bfloat16,
                Quantization::Int4,
                KvCacheDtype::Float32,
                Some(7),
            ),
            (
                2,
                2,
                Dtype::Float32,
                Quantization::Int8,
                KvCacheDtype::Bfloat16,
                Some(16),
            ),
            (
                4,
                2,
                Dtype::Bfloat16,
                Quantization::None,
                KvCacheDtype::Float32,
                Some(14),
            ),
        ] {
            if !model.common_heads().is_multiple_of(tp_size / dp_size) {
                continue;
            }
            let mut config = config(tp_size, 4, dtype);
            config.parallel.dp_size = dp_size;
            config.model = model.clone();
            // Records and states of different numbers, so that none stands for the other.
            config.kv.states = if model.has_states() { SLOTS + 3 } else { 0 };
            config.server.context_length = 32;
            let codes = kv_dtype == KvCacheDtype::Int8;
            // Latents are cached as floats.
            let floats = codes && model.latent_attentions().next().is_some();
            let kv_dtype = if floats {
                KvCacheDtype::Bfloat16
            } else {
                kv_dtype
            };
            (config.model.quantization, config.kv.dtype) = (quantization, kv_dtype);
            chunked(&mut config, chunk);
            check(
                &config,
                &format!("{} on {tp_size}, {dp_size}", folder.display()),
            );
            compared += 1;
        }
    }
    assert!(compared >= 4 * 14, "{compared}");
}

/// GPUs widen them, so they take as much as floats there.
#[test]
fn checkpoints_of_8_bit_floats_are_floats_on_gpus() {
    let folder = repository().join("tests/fixtures/architectures/llama_fp8");
    let mut config = config(1, 4, Dtype::Bfloat16);
    config.model = lockstep_model_folder::load(&folder).unwrap();
    let floats = |config: &EngineConfig| {
        let mut config = config.clone();
        config.model.checkpoint = CheckpointFormat::Floats;
        DeviceFootprint.rank(&config.shape(), 0).target.weights
    };
    assert_eq!(DeviceFootprint.serves(&config.shape()), Ok(()));
    let weights = |config: &EngineConfig| DeviceFootprint.rank(&config.shape(), 0).target.weights;
    assert!(weights(&config) < floats(&config));
    config.device.kind = DeviceKind::Cuda;
    assert_eq!(DeviceFootprint.serves(&config.shape()), Ok(()));
    assert_eq!(weights(&config), floats(&config));
    // Rounded again they are weights like others.
    config.model.quantization = Quantization::Int8;
    let why = DeviceFootprint.serves(&config.shape()).unwrap_err();
    assert!(why.contains("no quantized weights"), "{why}");
}

/// Records are kept for the nodes of the largest tier, in two halves, beside the states.
#[test]
fn states_and_records_take_what_is_charged() {
    for (tp_size, dp_size, shape) in [(1, 1, [3, 1, 4]), (2, 1, [2, 4, 7]), (2, 2, [3, 2, 5])] {
        let mut config = config(tp_size, 16, Dtype::Float32);
        config.model.load_format = LoadFormat::Dummy;
        let mut config = speculating(config, "STANDALONE", shape);
        config.parallel.dp_size = dp_size;
        for layer in &mut config.model.layers[..2] {
            layer.mixer = Mixer::GatedDelta(GatedDeltaSpec {
                key_heads: 2,
                value_heads: 4,
                key_dim: 16,
                value_dim: 32,
                taps: 3,
                names: GatedDeltaNames::default(),
            });
        }
        config.kv.states = SLOTS + 3;
        chunked(&mut config, Some(64));
        check(&config, &format!("{shape:?} on {tp_size}, {dp_size}"));
    }
}

/// Six tiers, which begin with a shallow one, take the records of the largest.
#[test]
fn six_tiers_take_the_records_of_the_largest() {
    let mut config = of_fixture("qwen3_5", 1, [7, 1, 8]);
    let alone = taken(&config)[0].0;
    let depths = vec![0, 1, 2, 3, 5, 7];
    let tiers = depths.iter().map(|depth| Tier {
        depth: *depth,
        tokens: depth + 1,
    });
    let (tiers, slots) = (tiers.collect(), vec![BatchSlot::new(1, depths)]);
    config.speculation.adaptive = Some(AdaptiveConfig::new("ema", 1, tiers, slots));
    check(&config, "six tiers");
    let six = taken(&config)[0].0;
    assert_eq!(six, alone);
    let RankMemory { target, .. } = DeviceFootprint.rank(&config.shape(), 0);
    let of_first = config.state_limits().with_nodes(2);
    assert!(of_first.bytes(target.state, target.record) < six.states);
}

/// Returns a configuration that drafts with the own layer of a model in `tests/fixtures/nextn`.
fn of_fixture(name: &str, tp_size: usize, shape: [usize; 3]) -> EngineConfig {
    let mut config = config(tp_size, 16, Dtype::Float32);
    let folder = repository().join("tests/fixtures/nextn").join(name);
    config.model = lockstep_model_folder::load(&folder).unwrap();
    let mut config = speculating(config, "NEXTN", shape);
    config.kv.states = if config.model.has_states() {
        SLOTS + 3
    } else {
        0
    };
    chunked(&mut config, Some(64));
    config
}

#[test]
fn own_draft_layers_take_what_is_charged() {
    for name in [
        "glm4_moe",
        "deepseek_v3",
        "qwen3_5",
        "qwen3_5_moe",
        "glm4_moe_three",
        "deepseek_v3_two",
    ] {
        for (tp_size, dp_size, shape) in [(1, 1, [3, 1, 4]), (2, 1, [3, 2, 5]), (2, 2, [2, 1, 3])] {
            let mut config = of_fixture(name, tp_size, shape);
            if !config
                .model
                .common_heads()
                .is_multiple_of(tp_size / dp_size)
            {
                continue;
            }
            config.parallel.dp_size = dp_size;
            // Random weights take as much.
            if name == "glm4_moe_three" && tp_size == 1 {
                config.model.load_format = LoadFormat::Dummy;
                let draft = config.speculation.draft.as_mut().unwrap();
                draft.model.load_format = LoadFormat::Dummy;
            }
            check(
                &config,
                &format!("{name} {shape:?} on {tp_size}, {dp_size}"),
            );
        }
    }
}

/// Each draft layer takes a cache and weights for itself; activations are shared, but for one row of
/// each slot.
#[test]
fn the_charge_follows_the_number_of_draft_layers() {
    let charged = |layers: usize| {
        let mut config = of_fixture("glm4_moe_three", 1, [3, 1, 4]);
        let draft = config.speculation.draft.as_mut().unwrap();
        let DraftKind::Nextn { names } = &mut draft.kind else {
            panic!("{:?}", draft.kind);
        };
        names.truncate(layers);
        draft.model.layers.truncate(layers);
        DeviceFootprint.rank(&config.shape(), 0).draft
    };
    let [one, two, three] = [1, 2, 3].map(charged);
    assert_eq!(two.kv_per_token, 2 * one.kv_per_token);
    assert_eq!(three.kv_per_token, 3 * one.kv_per_token);
    assert!(one.kv_per_token > 0 && one.weights > 0 && one.vectors > 0);
    assert_eq!(three.weights - two.weights, two.weights - one.weights);
    assert_eq!(two.weights, 2 * one.weights);
    // A root is read of each layer but the last.
    assert_eq!(two.activations, one.activations);
    let row = 4 * 72;
    assert_eq!(three.activations - two.activations, (SLOTS * row) as u64);
}

#[test]
fn drafts_take_what_is_charged() {
    for (at, algorithm) in ALGORITHMS.into_iter().enumerate() {
        for (tp_size, dp_size, dtype, quantization, shape) in [
            (1, 1, Dtype::Bfloat16, Quantization::Int4, [3, 1, 4]),
            (1, 1, Dtype::Float32, Quantization::None, [4, 8, 6]),
            (2, 1, Dtype::Bfloat16, Quantization::None, [3, 1, 4]),
            (4, 1, Dtype::Bfloat16, Quantization::Int8, [2, 2, 4]),
            (2, 2, Dtype::Bfloat16, Quantization::None, [3, 1, 4]),
            (4, 2, Dtype::Float32, Quantization::Int8, [4, 8, 6]),
        ] {
            if algorithm == "DFLASH" && shape[1] > 1 {
                continue;
            }
            let mut config = speculating(config(tp_size, 16, dtype), algorithm, shape);
            config.parallel.dp_size = dp_size;
            config.model.quantization = quantization;
            if let Some(draft) = &mut config.speculation.draft {
                draft.model.quantization = quantization;
            }
            config.speculation.pause_window = [0, 64][tp_size % 2];
            config.kv.dtype = [
                KvCacheDtype::Bfloat16,
                KvCacheDtype::Float32,
                KvCacheDtype::Int8,
            ][(at + tp_size) % 3];
            chunked(&mut config, (tp_size > 1).then_some(64));
            if tp_size == 2 {
                config.speculation.verification = Verification::Rejection;
            }
            check(
                &config,
                &format!("{algorithm} {shape:?} on {tp_size}, {dp_size}"),
            );
        }
    }
}
