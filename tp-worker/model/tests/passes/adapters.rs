//! Adapters that are loaded, replaced and gone; those that a model can't have; and the memory that
//! they take.

use std::{
    fs,
    path::{Path, PathBuf},
};

use lockstep_backend::{Axis, Batch};
use lockstep_backend_cpu::{CpuBackend, CpuMemory, CpuOptions};
use lockstep_collective::Single;
use lockstep_model::{
    AdapterReader, ForwardLimits, LoadOptions, LogitBlock, ModelError, Shard, Topology,
    Transformer, rank_memory,
};
use lockstep_types::{
    AdapterLimits, CollectiveBackend, DeviceConfig, Dtype, EngineShape, KvCacheDtype, ModelConfig,
    SpeculationConfig, StepLimits,
};
use safetensors::{SafeTensors, serialize_to_file, tensor::TensorView};

use crate::pass::{Pass, fixture};

const TOKENS: usize = 300;
const LIMITS: AdapterLimits = AdapterLimits { places: 2, rank: 6 };

fn adapter(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/adapters");
    root.join(name)
}

fn model(name: &str) -> ModelConfig {
    lockstep_model_folder::load(&fixture(name)).unwrap()
}

fn options() -> CpuOptions {
    CpuOptions {
        threads: 2,
        dtype: Dtype::Bfloat16,
        pin: None,
        isa: None,
    }
}

fn load(model: &ModelConfig, adapters: AdapterLimits) -> (CpuBackend, Transformer<CpuBackend>) {
    let limits = ForwardLimits {
        max_tokens: TOKENS,
        requests: 2,
        positions: TOKENS,
        groups: 1,
        page_size: 4,
        tree_nodes: 1,
        replays: 0,
        logit_block_rows: TOKENS,
        max_commit: 0,
    };
    let options = LoadOptions {
        adapters,
        ..LoadOptions::new(Axis::World, limits)
    };
    let mut backend = CpuBackend::new(self::options(), Box::new(Single::new())).unwrap();
    let loaded = Transformer::load(&mut backend, model, options, &mut |_| {}).unwrap();
    (backend, loaded)
}

/// Returns the last logits of a text of `tokens` tokens with an adapter.
fn run(
    backend: &mut CpuBackend,
    loaded: &mut Transformer<CpuBackend>,
    tokens: usize,
    adapter: Option<u16>,
) -> Result<Vec<f32>, ModelError> {
    let text: Vec<u32> = (0..tokens as u32).map(|token| token % 300).collect();
    let pages = TOKENS / 4;
    let mut cache = loaded.kv_cache(backend, pages, 4, KvCacheDtype::Float32)?;
    let mut pass = Pass::default();
    pass.push(&text, 0..tokens, 4, |page| page as u32);
    let wanted = [tokens as u32 - 1];
    let batch = Batch {
        adapters: &[adapter],
        ..pass.batch(&wanted)
    };
    let mut found = Vec::new();
    let mut sink = |block: LogitBlock<'_>| found.extend_from_slice(block.logits);
    loaded.forward(backend, &mut cache, &batch, None, &mut sink)?;
    Ok(found)
}

/// An adapter is there from its placing to its clearing, at its place alone. A place that has none is
/// an error, never the model alone.
#[test]
fn places_hold_what_was_put_there() {
    let model = model("llama");
    let (mut backend, mut loaded) = load(&model, LIMITS);
    let reader = loaded.adapter_reader();
    let [one, two] = ["llama", "llama_patterns"].map(|name| reader.read(&adapter(name)).unwrap());
    let missing = |error: Result<_, ModelError>| matches!(error, Err(ModelError::NoAdapter { .. }));
    assert!(missing(run(&mut backend, &mut loaded, 9, Some(0))));
    loaded.place_adapter(&mut backend, 0, &one).unwrap();
    let first = run(&mut backend, &mut loaded, 9, Some(0)).unwrap();
    let plain = run(&mut backend, &mut loaded, 9, None).unwrap();
    assert!(first != plain);
    assert!(missing(run(&mut backend, &mut loaded, 9, Some(1))));
    loaded.place_adapter(&mut backend, 1, &two).unwrap();
    let second = run(&mut backend, &mut loaded, 9, Some(1)).unwrap();
    assert!(second != first && second != plain);
    assert!(run(&mut backend, &mut loaded, 9, Some(0)).unwrap() == first);
    // The second adapter leaves projections alone that the first one has.
    loaded.place_adapter(&mut backend, 0, &two).unwrap();
    assert!(run(&mut backend, &mut loaded, 9, Some(0)).unwrap() == second);
    loaded.clear_adapter(0);
    assert!(missing(run(&mut backend, &mut loaded, 9, Some(0))));
    assert!(run(&mut backend, &mut loaded, 9, Some(1)).unwrap() == second);
    assert!(run(&mut backend, &mut loaded, 9, None).unwrap() == plain);
    assert!(missing(
        loaded
            .place_adapter(&mut backend, 2, &one)
            .map(|()| Vec::new())
    ));
    let (mut backend, mut without) = load(&model, AdapterLimits::default());
    assert!(missing(run(&mut backend, &mut without, 9, Some(0))));
    assert!(run(&mut backend, &mut without, 9, None).unwrap() == plain);
}

/// Copies an adapter with its tensors changed.
fn changed(
    name: &str,
    change: impl Fn(&str, &[u8]) -> Option<(String, Vec<u8>)>,
) -> tempfile::TempDir {
    let (from, to) = (adapter(name), tempfile::tempdir().unwrap());
    let file = "adapter_model.safetensors";
    fs::copy(
        from.join("adapter_config.json"),
        to.path().join("adapter_config.json"),
    )
    .unwrap();
    let bytes = fs::read(from.join(file)).unwrap();
    let read = SafeTensors::deserialize(&bytes).unwrap();
    let tensors = read.iter().filter_map(|(name, view)| {
        let (name, data) = change(name, view.data())?;
        Some((name, view.dtype(), view.shape().to_vec(), data))
    });
    let tensors: Vec<_> = tensors.collect();
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        let view = TensorView::new(*dtype, shape.clone(), data).unwrap();
        (name.clone(), view)
    });
    let views: Vec<_> = views.collect();
    serialize_to_file(views, None, &to.path().join(file)).unwrap();
    to
}

#[test]
fn what_the_model_cannot_have_is_refused_by_name() {
    let reader = |name: &str, limits: AdapterLimits| {
        let topology = Topology::new(0, 1, 1);
        let model = model(name);
        let shard = Shard::new(&model, topology).unwrap();
        AdapterReader::new(&model, &shard, limits)
    };
    let refused = |reader: &AdapterReader, folder: &Path| {
        let error = reader.read(folder).unwrap_err();
        error.to_string()
    };
    let llama = reader("llama", LIMITS);
    let narrow = reader("llama", AdapterLimits { rank: 5, ..LIMITS });
    let error = refused(&narrow, &adapter("llama_patterns"));
    assert!(error.contains("--max-lora-rank 6"), "{error}");
    let error = refused(&llama, &adapter("demo_two"));
    assert!(error.contains("for another model"), "{error}");
    let error = refused(&llama, &adapter("starcoder2"));
    assert!(error.contains("the model does not have"), "{error}");
    let moved = |to: &'static str| {
        changed("llama", move |name, data| {
            let name = name.replace("layers.2.self_attn.q_proj", to);
            Some((name, data.to_vec()))
        })
    };
    let error = refused(&llama, moved("layers.3.self_attn.q_proj").path());
    assert!(
        error.contains("layers.3.self_attn.q_proj.lora_A"),
        "{error}"
    );
    // Modules that are there, but are not served.
    let experts = reader("qwen3_moe", LIMITS);
    let moved = changed("llama", |name, data| {
        let name = name.replace("mlp.down_proj", "mlp.experts.0.down_proj");
        Some((name, data.to_vec()))
    });
    let error = refused(&experts, moved.path());
    assert!(
        error.contains("dense MLPs") && error.contains("experts.0.down_proj"),
        "{error}"
    );
    let infinite = changed("llama", |name, data| {
        let mut data = data.to_vec();
        if name.contains("layers.1.self_attn.o_proj.lora_B") {
            data[..2].copy_from_slice(&0x7f80_u16.to_le_bytes());
        }
        Some((name.to_owned(), data))
    });
    let error = refused(&llama, infinite.path());
    assert!(
        error.contains("o_proj.lora_B") && error.contains("finite"),
        "{error}"
    );
}

/// The content is that of all ranks, whatever parts they take; other values or factors change it, and
/// other names of the same modules do not.
#[test]
fn contents_have_hashes() {
    let model = model("llama");
    let content = |rank: usize, size: usize, folder: &Path| {
        let shard = Shard::new(&model, Topology::new(rank, size, 1)).unwrap();
        let reader = AdapterReader::new(&model, &shard, LIMITS);
        reader.read(folder).unwrap().content()
    };
    let own = content(0, 1, &adapter("llama"));
    assert_ne!(own, 0);
    for rank in 0..4 {
        assert_eq!(content(rank, 4, &adapter("llama")), own);
    }
    assert_ne!(content(0, 1, &adapter("llama_patterns")), own);
    let renamed = changed("llama", |name, data| {
        Some((name.replace("base_model.model.", ""), data.to_vec()))
    });
    assert_eq!(content(0, 1, renamed.path()), own);
    let other = changed("llama", |name, data| {
        let mut data = data.to_vec();
        data[0] ^= u8::from(name.ends_with("layers.0.mlp.up_proj.lora_B.weight"));
        Some((name.to_owned(), data))
    });
    assert_ne!(content(0, 1, other.path()), own);
    let path = renamed.path().join("adapter_config.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replace("\"lora_alpha\": 6", "\"lora_alpha\": 7"),
    )
    .unwrap();
    assert_ne!(content(0, 1, renamed.path()), own);
}

/// Room for adapters is charged before the start, and taken then.
#[test]
fn adapters_take_what_is_charged() {
    for name in ["llama", "phi3"] {
        let model = model(name);
        let charged = |adapters| {
            let speculation = SpeculationConfig::none();
            let engine = EngineShape {
                model: &model,
                dtype: Dtype::Bfloat16,
                device: DeviceConfig::default(),
                isa: None,
                graphs: &[],
                kv_dtype: KvCacheDtype::Float32,
                tp_size: 1,
                dp_size: 1,
                ep_size: 1,
                collectives: CollectiveBackend::Auto,
                threads_per_rank: 2,
                adapters,
                speculation: &speculation,
                page_size: 4,
                step: StepLimits {
                    requests: 2,
                    tokens: TOKENS,
                    positions: TOKENS,
                    verified: 1,
                    max_commit: 1,
                    draft_nodes: 0,
                    branches: false,
                },
            };
            rank_memory(&CpuMemory::new(&options()), &engine, 0)
        };
        let taken = |adapters: AdapterLimits| {
            let (mut backend, mut loaded) = load(&model, adapters);
            let mut place = None;
            if adapters.places > 0 {
                let read = loaded.adapter_reader().read(&adapter(name)).unwrap();
                loaded.place_adapter(&mut backend, 1, &read).unwrap();
                place = Some(1);
            }
            run(&mut backend, &mut loaded, TOKENS, place).unwrap();
            backend.allocated()
        };
        let none = AdapterLimits::default();
        let (charged, before) = (charged(LIMITS), charged(none));
        let (taken, without) = (taken(LIMITS), taken(none));
        assert_eq!(charged.target.weights, taken.matrices, "{name}");
        assert_eq!(before.target.weights, without.matrices, "{name}");
        let columns = |with: u64, before: u64| with - before;
        assert_eq!(
            columns(charged.target.activations, before.target.activations),
            columns(taken.activations, without.activations),
            "{name}"
        );
        assert_eq!(
            taken.activations - without.activations,
            2 * 4 * TOKENS as u64
        );
        assert!(charged.scratch >= taken.scratch, "{name}");
    }
}
