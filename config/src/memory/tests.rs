use std::path::Path;
use std::sync::OnceLock;

use lockstep_types::{
    AdapterLimits, AttentionSpec, CollectiveBackend, DeviceConfig, DeviceKind, DeviceRoom, Dtype,
    EngineShape, Footprint, KvCacheDtype, MatrixRole, MemoryUse, ModelConfig, RankMemory,
    SpeculationConfig, StepLimits, WeightFormat,
};
use proptest::prelude::*;

use super::{NodeMemory, Sizing, StateOptions, size};
use crate::Hardware;
use crate::testing::{
    Plain, folder, llama, machine, parameters, resolve_line, resolve_model, with,
};

fn model() -> ModelConfig {
    lockstep_model_folder::load(folder(&llama(), None).path()).expect("a served model")
}

/// Limits of a step: whole prompts of the model's length, or prompts cut into chunks.
fn step(requests: usize, chunk: Option<usize>) -> StepLimits {
    StepLimits {
        requests,
        tokens: chunk.unwrap_or(100_000) + requests,
        positions: 512,
        verified: 1,
        max_commit: 1,
        draft_nodes: 1,
        branches: false,
    }
}

fn sizing() -> Sizing<'static> {
    static NONE: OnceLock<SpeculationConfig> = OnceLock::new();
    Sizing {
        engine: EngineShape {
            model: model_once(),
            dtype: Dtype::Bfloat16,
            device: DeviceConfig::default(),
            isa: None,
            graphs: &[],
            kv_dtype: KvCacheDtype::Bfloat16,
            tp_size: 1,
            dp_size: 1,
            ep_size: 1,
            collectives: CollectiveBackend::Auto,
            threads_per_rank: 1,
            adapters: AdapterLimits::default(),
            speculation: NONE.get_or_init(SpeculationConfig::none),
            page_size: 16,
            step: step(64, Some(512)),
        },
        footprint: &Plain,
        nnodes: 1,
        node_rank: 0,
        radix_cache: true,
        overlap: true,
        drafter_bytes: 0,
        context_length: None,
        max_total_tokens: None,
        mem_fraction_static: 0.85,
        states: StateOptions::default(),
    }
}

#[test]
fn a_node_takes_what_its_ranks_take() {
    let node = |tp_size, nnodes, node_rank| {
        let mut sizing = Sizing {
            nnodes,
            node_rank,
            ..sizing()
        };
        sizing.engine.tp_size = tp_size;
        sizing.node(true)
    };
    let whole = NodeMemory {
        weights: 2 * parameters(model_once()) as u64,
        drafts: 0,
        activations: 576 * Plain::TOKEN as u64,
        exchange: 0,
        // 2 (K and V) × 2 layers × 4 heads × 8 wide × 2 bytes.
        per_token: 256,
        ..NodeMemory::default()
    };
    assert_eq!(node(1, 1, 0), whole);
    assert_eq!(node(2, 1, 0), whole);
    for node_rank in 0..2 {
        let half = NodeMemory {
            weights: whole.weights / 2,
            drafts: 0,
            activations: whole.activations / 2,
            exchange: 0,
            per_token: 128,
            ..NodeMemory::default()
        };
        assert_eq!(node(2, 2, node_rank), half);
        assert_eq!(node(4, 2, node_rank), half);
    }
    // Eight ranks share four key/value heads: each head is held twice.
    assert_eq!(node(8, 1, 0).per_token, 512);
}

/// Nodes ask for their own ranks, and every kind of memory is charged once.
#[test]
fn every_kind_is_charged() {
    struct Kinds;
    impl Footprint for Kinds {
        fn shared_part(&self, _: &ModelConfig, _: usize) -> u32 {
            1 << 16
        }

        fn exists(&self, _: DeviceKind) -> bool {
            false
        }

        fn room(&self, _: DeviceKind, _: usize) -> Result<Option<DeviceRoom>, String> {
            Ok(None)
        }

        fn serves(&self, _: &EngineShape<'_>) -> Result<(), String> {
            Ok(())
        }

        fn serves_format(
            &self,
            _: DeviceKind,
            _: WeightFormat,
            _: MatrixRole,
        ) -> Result<(), &'static str> {
            Ok(())
        }

        fn kernels(&self, _: DeviceKind, _: &str) -> Result<&'static str, String> {
            Ok("scalar")
        }

        fn collectives(&self, _: DeviceKind, _: Option<&Path>) -> Result<String, String> {
            Err("there is nothing of that kind".to_owned())
        }

        fn rank(&self, _: &EngineShape<'_>, rank: usize) -> RankMemory {
            let scale = 1_000_000 * (rank as u64 + 1);
            RankMemory {
                target: MemoryUse {
                    weights: scale,
                    vectors: 10 * scale,
                    kv_per_token: 100 * scale,
                    kv_window_per_token: 7 * scale,
                    state: 3 * scale,
                    record: scale,
                    activations: 1000 * scale,
                    host: 10_000 * scale,
                },
                draft: MemoryUse {
                    weights: scale + 1,
                    vectors: 10 * (scale + 1),
                    kv_per_token: 100 * (scale + 1),
                    kv_window_per_token: 7 * (scale + 1),
                    state: 0,
                    record: 0,
                    activations: 1000 * (scale + 1),
                    host: 10_000 * (scale + 1),
                },
                scratch: 60_000 * scale,
                graphs: 40_000 * scale,
                exchange: 300_000 * scale,
                gathered: 200_000 * scale,
            }
        }
    }
    let node = |node_rank, on_host| {
        let mut sizing = Sizing {
            footprint: &Kinds,
            nnodes: 2,
            node_rank,
            drafter_bytes: 7,
            ..sizing()
        };
        sizing.engine.tp_size = 4;
        sizing.node(on_host)
    };
    // Ranks 0 and 1, and ranks 2 and 3.
    for (node_rank, scale, drafter) in [(0, 3_000_000, 7), (1, 7_000_000, 0)] {
        let expected = NodeMemory {
            weights: 11 * scale,
            drafts: 11 * (scale + 2) + drafter,
            // With two halves of records for a node of each of 64 requests.
            activations: 611_128 * scale + 11_000 * (scale + 2),
            exchange: 500_000 * scale,
            per_token: 100 * (2 * scale + 2),
            window_per_token: 7 * (2 * scale + 2),
            per_state: 3 * scale,
            host: 0,
        };
        assert_eq!(node(node_rank, true), expected);
        // Memory on the host takes nothing of a device with memory of its own.
        let on_device = NodeMemory {
            drafts: 11 * (scale + 2),
            activations: 601_128 * scale + 1000 * (scale + 2),
            host: 10_000 * scale + 10_000 * (scale + 2) + drafter,
            ..expected
        };
        assert_eq!(node(node_rank, false), on_device);
    }
}

#[test]
fn kv_heads_of_a_rank() {
    // (heads, key/value heads, ranks, heads held by each rank)
    for (heads, kv, ranks, held) in [
        (32, 8, 1, 8),
        (32, 8, 4, 2),
        (32, 8, 16, 1),
        (32, 32, 4, 8),
        (12, 4, 6, 2),
        (6, 3, 2, 3),
    ] {
        let attention = AttentionSpec {
            heads,
            kv_heads: kv,
            ..model().layers[0].attention().unwrap().clone()
        };
        let found = attention.kv_heads_per_rank(ranks);
        assert_eq!(found, held, "{heads} {kv} {ranks}");
    }
}

#[test]
fn with_memory_to_spare_all_running_requests_fit() {
    let (engine, _) = resolve_line("--max-running-requests 4").expect("fits");
    // 512 tokens and two in flight are 33 pages each; page 0 is kept.
    assert_eq!(engine.kv.num_pages, 4 * 33 + 1);
    assert_eq!(engine.kv_tokens(), 4 * 33 * 16);
    assert_eq!(engine.server.context_length, 512);
}

/// The memory that a device leaves to the host has to fit there.
#[test]
fn the_host_is_checked_beside_a_device() {
    let sizing = Sizing {
        drafter_bytes: 1 << 30,
        ..sizing()
    };
    let room = [DeviceRoom {
        total: 8 << 30,
        free: 8 << 30,
    }];
    for (available_memory, fits) in [(1 << 30, true), ((1 << 30) - 1, false)] {
        let hardware = Hardware {
            available_memory,
            ..machine()
        };
        let sized = size(&sizing, &hardware, &room);
        assert_eq!(sized.is_ok(), fits, "{available_memory}");
        let error = sized
            .err()
            .map_or_else(String::new, |error| error.to_string());
        assert!(fits || error.contains("of this machine"), "{error}");
    }
}

/// The host's memory does not count for a device with memory of its own.
#[test]
fn a_device_has_its_own_room() {
    let small = Hardware {
        available_memory: 300_000,
        ..machine()
    };
    let sized = |rooms: &[_]| size(&sizing(), &small, rooms).map(|sized| sized.value.0.num_pages);
    assert!(sized(&[]).is_err());
    let room = |free| {
        let total = 8 << 30;
        [DeviceRoom { total, free }]
    };
    let (much, little) = (sized(&room(8 << 30)), sized(&room(1230 << 20)));
    let (much, little) = (much.expect("fits"), little.expect("fits"));
    assert!(little < much, "{little} of {much} pages");
    // 0.15 of all memory stays free.
    let error = sized(&room(1200 << 20)).unwrap_err().to_string();
    assert!(error.contains("free memory of GPU 0"), "{error}");
}

/// Each device has room for its own ranks, and the device with the least room decides.
#[test]
fn ranks_have_the_room_of_their_devices() {
    let sized = |ranks, gpu_id_step, free: &[u64]| {
        let mut sizing = sizing();
        sizing.engine.tp_size = ranks;
        sizing.engine.device = DeviceConfig {
            kind: DeviceKind::Cuda,
            base_gpu_id: 3,
            gpu_id_step,
        };
        let total = 8 << 30;
        let rooms = free.iter().map(|free| DeviceRoom { total, free: *free });
        size(&sizing, &machine(), &rooms.collect::<Vec<_>>())
            .map(|sized| sized.value.0.num_pages)
            .map_err(|error| error.to_string())
    };
    // 0.15 of all memory stays free.
    let (kept, little) = ((8 << 30) * 3 / 20, 2 << 20);
    let (one, two) = (kept + little, kept + 2 * little);
    let alone = sized(1, 1, &[two]).expect("fits");
    assert_eq!(sized(2, 0, &[two]), Ok(alone));
    // Each rank holds half of a token.
    let apart = sized(2, 1, &[two, two]).expect("fits");
    assert!(apart > alone, "{apart} of {alone}");
    for free in [[one, two], [two, one]] {
        let least = sized(2, 1, &free).expect("fits");
        assert_eq!(sized(2, 1, &[one, one]), Ok(least));
        assert!(least < apart, "{least} of {apart}");
    }
    let error = sized(2, 2, &[two, kept]).expect_err("full");
    assert!(error.contains("free memory of GPU 5"), "{error}");
}

#[test]
fn a_given_cache_is_taken_in_whole_pages() {
    let (engine, _) = resolve_line("--max-total-tokens 1030").expect("fits");
    assert_eq!(engine.kv_tokens(), 1024);
}

#[test]
fn short_memory_shortens_the_context_unless_one_is_asked_for() {
    let model = folder(&llama(), None);
    // Room for weights (about 200 KB), activations and some 150 tokens.
    let tiny = Hardware {
        total_memory: 300_000,
        available_memory: 300_000,
        ..machine()
    };
    const SMALL: &str = "--chunked-prefill-size 16 --max-running-requests 1";
    let (engine, _) = resolve_model(SMALL, model.path(), &tiny).expect("fits");
    assert!((16..512).contains(&engine.server.context_length));
    assert_eq!(engine.server.context_length + 2, engine.kv_tokens());
    let line = format!("{SMALL} --context-length 500");
    let error = resolve_model(&line, model.path(), &tiny).expect_err("too long");
    assert!(
        error.to_string().contains("--context-length 500"),
        "{error}"
    );
    assert!(
        error.to_string().contains("--mem-fraction-static"),
        "{error}"
    );
}

#[test]
fn what_does_not_fit_says_what_would() {
    let model = folder(&llama(), None);
    let none = Hardware {
        available_memory: 1000,
        ..machine()
    };
    let error = resolve_model("", model.path(), &none)
        .expect_err("no memory")
        .to_string();
    assert!(
        error.contains("not enough memory: the weights take"),
        "{error}"
    );
    let error = resolve_line("--max-total-tokens 1000000000")
        .expect_err("too large")
        .to_string();
    assert!(error.contains("--max-total-tokens"), "{error}");
    let fits: usize = error
        .split("Give --max-total-tokens ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next())
        .and_then(|number| number.parse().ok())
        .expect("the remedy names a number");
    resolve_line(&format!("--max-total-tokens {fits}")).expect("the remedy works");
}

#[test]
fn nodes_derive_nothing_from_their_memory() {
    let line = "--nnodes 2 --tp-size 2 --dist-init-addr a:1 --dist-secret 0123456789abcdef";
    let model = folder(&llama(), None);
    let small = Hardware {
        available_memory: 7 << 30,
        ..machine()
    };
    let (one, _) = resolve_model(line, model.path(), &machine()).expect("fits");
    let (other, _) = resolve_model(line, model.path(), &small).expect("fits");
    assert_eq!(one.kv, other.kv);
    let tiny = Hardware {
        total_memory: 3_000_000,
        available_memory: 3_000_000,
        ..machine()
    };
    let error = resolve_model(line, model.path(), &tiny)
        .expect_err("must be said")
        .to_string();
    assert!(
        error.contains("--nnodes 2") && error.contains("--max-total-tokens"),
        "{error}"
    );
}

proptest! {
    /// Every result fits into the memory, holds the context, and is not more than all running
    /// requests can use.
    #[test]
    fn a_sized_cache_fits_and_is_useful(
        available in 0_u64..(1 << 24),
        page_size in 1_usize..70,
        tp_log in 0_u32..4,
        max_running_requests in 1_usize..200,
        context_length in proptest::option::of(1_usize..512),
        max_total_tokens in proptest::option::of(1_usize..100_000),
        mem_fraction_static in 0.05_f64..1.0,
    ) {
        let mut sizing = Sizing {
            context_length, max_total_tokens, mem_fraction_static, ..sizing()
        };
        sizing.engine.tp_size = 1 << tp_log;
        sizing.engine.page_size = page_size;
        sizing.engine.step = step(max_running_requests, Some(512));
        let machine = Hardware { total_memory: 1 << 24, available_memory: available, ..machine() };
        if let Ok(sized) = size(&sizing, &machine, &[]) {
            let (kv, context) = sized.value;
            let tokens = (kv.num_pages - 1) * kv.page_size;
            let node = sizing.node(true);
            let bytes = tokens as u64 * node.per_token + node.weights + node.activations;
            prop_assert!(bytes <= available);
            prop_assert!(context >= 1 && context + 2 <= tokens);
            prop_assert!(context <= context_length.unwrap_or(512));
            prop_assert!(max_total_tokens.is_none_or(|most| tokens <= most));
            if max_total_tokens.is_none() {
                prop_assert!(tokens <= (context_length.unwrap_or(512) + 2 + page_size) * max_running_requests);
            }
            if context_length.is_some() {
                prop_assert_eq!(Some(context), context_length);
            }
        }
    }
}

/// Several whole prompts may run in one step, up to `--max-prefill-tokens`.
#[test]
fn steps_of_several_whole_prompts_are_charged() {
    let model = folder(&llama(), None);
    let small = Hardware {
        total_memory: 32 << 20,
        available_memory: 32 << 20,
        ..machine()
    };
    let tokens = |prefill: usize| {
        let line = format!(
            "--chunked-prefill-size -1 --max-prefill-tokens {prefill} --mem-fraction-static 1 \
             --max-running-requests 1000"
        );
        let (engine, _) = resolve_model(&line, model.path(), &small).expect("fits");
        engine.kv_tokens()
    };
    // Bytes of activations, in tokens of the cache.
    let taken = (4096 - 512) * Plain::TOKEN / 256;
    assert!(tokens(512) >= tokens(4096) + taken);
}

fn model_once() -> &'static ModelConfig {
    static MODEL: OnceLock<ModelConfig> = OnceLock::new();
    MODEL.get_or_init(model)
}

#[test]
fn huge_models_do_not_overflow() {
    let huge = with(
        llama(),
        &serde_json::json!({"num_hidden_layers": 10_000, "vocab_size": 2_000_000_000}),
    );
    let error = resolve_model("", folder(&huge, None).path(), &machine()).expect_err("too large");
    assert!(error.to_string().contains("not enough memory"), "{error}");
}

mod drafts;
mod states;
mod windows;
