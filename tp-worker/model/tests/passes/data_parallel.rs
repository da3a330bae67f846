//! Passes of several DP ranks: their exchanges, kept states, refusals and memory.

use std::sync::Arc;

use lockstep_backend::{
    Axis, Backend, Batch, Groups, Holds, Linear, Memory as _, Ops as _, WorldRows,
};
use lockstep_backend_cpu::{CpuBackend, CpuMemory, CpuOptions};
use lockstep_collective::Single;
use lockstep_model::{
    CaptureSpec, CollectiveKind, FileAccess, ForwardLimits, LoadOptions, LogitBlock, ModelCache,
    ModelError, Topology, Transformer, rank_memory, whole_head,
};
use lockstep_types::{
    AdapterLimits, CollectiveBackend, DeviceConfig, Dtype, EngineShape, KvCacheDtype,
    SpeculationConfig, StepLimits,
};

use crate::naive::Naive;
use crate::pass::{Pass, fixture};
use crate::ranks::{WorldFactory, on_ranks};

const SPLITS: [(usize, usize); 3] = [(2, 2), (4, 4), (4, 2)];
/// Tokens of a DP rank.
const TOKENS: usize = 6;

fn limits() -> ForwardLimits {
    ForwardLimits {
        max_tokens: TOKENS,
        requests: 1,
        positions: TOKENS,
        groups: 1,
        page_size: 4,
        tree_nodes: 0,
        replays: 0,
        logit_block_rows: 4,
        max_commit: 0,
    }
}

fn load<B: Backend>(backend: &mut B, name: &str) -> (Transformer<B>, ModelCache<B>) {
    let model = lockstep_model_folder::load(&fixture(name)).unwrap();
    let options = LoadOptions::new(Axis::World, limits());
    let model = Transformer::load(backend, &model, options, &mut |_| {}).unwrap();
    let cache = model.kv_cache(backend, 2, 4, KvCacheDtype::Float32);
    (model, cache.unwrap())
}

/// Returns a pass over the first tokens of a text.
fn prompt(tokens: usize) -> Pass {
    let mut pass = Pass::default();
    if tokens > 0 {
        pass.push(&[5, 9, 2, 7, 1, 3], 0..tokens, 4, |page| page as u32);
    }
    pass
}

fn naive() -> WorldFactory<Naive> {
    Arc::new(Naive::new)
}

fn options() -> CpuOptions {
    CpuOptions {
        threads: 1,
        dtype: Dtype::Float32,
        pin: None,
        isa: None,
    }
}

fn cpu() -> WorldFactory<CpuBackend> {
    Arc::new(|groups| CpuBackend::new(options(), groups).unwrap())
}

/// Returns several steps: tokens of each DP rank, and how many of its last tokens want
/// logits.
fn batches(dp_size: usize) -> Vec<WorldRows> {
    let of = |tokens: &[usize], wanted: &[usize]| WorldRows {
        tokens: tokens.iter().copied().cycle().take(dp_size).collect(),
        wanted: wanted.iter().copied().cycle().take(dp_size).collect(),
    };
    vec![
        of(&[6, 6], &[6, 6]),
        of(&[6, 1], &[1, 1]),
        of(&[0, 5], &[0, 2]),
        of(&[4, 3], &[0, 3]),
        of(&[4, 3], &[0, 0]),
        of(&[0, 0], &[0, 0]),
    ]
}

/// Ranks compare schedules before serving. The schedules must list the real collectives,
/// whatever a DP rank has to do itself.
#[test]
fn collectives_follow_the_schedule() {
    for (tp_size, dp_size) in SPLITS {
        for last_hidden in [false, true] {
            on_ranks(&naive(), tp_size, dp_size, move |mut backend, at| {
                let (mut model, mut cache) = load(&mut backend, "qwen3");
                let spec = CaptureSpec {
                    layers: vec![1],
                    last_hidden,
                };
                model.set_capture(&mut backend, spec).unwrap();
                for rows in batches(dp_size) {
                    backend.issued.clear();
                    let own = prompt(rows.tokens[at.dp_rank()]);
                    let wanted = wanted(&rows, at);
                    let batch = own.batch(&wanted);
                    model
                        .forward(&mut backend, &mut cache, &batch, Some(&rows), &mut |_| {})
                        .unwrap();
                    let schedule = model.schedule();
                    let steps = schedule.steps(rows.wanted.iter().sum());
                    let mut steps: Vec<_> = steps.copied().collect();
                    if rows.tokens.iter().all(|tokens| *tokens == 0) {
                        steps.clear();
                    }
                    assert_eq!(backend.issued, steps, "{rows:?}");
                }
            });
        }
    }
}

fn wanted(rows: &WorldRows, at: Topology) -> Vec<u32> {
    let (tokens, wanted) = (rows.tokens[at.dp_rank()], rows.wanted[at.dp_rank()]);
    (tokens - wanted..tokens)
        .map(|token| token as u32)
        .collect()
}

/// With as many DP ranks as ranks, layers exchange no more often than under
/// tensor parallelism, and nothing follows the embedding.
#[test]
fn a_layer_takes_as_many_exchanges_as_under_tensor_parallelism() {
    let kinds = |dp_size| {
        let found = on_ranks(&naive(), 4, dp_size, |mut backend, _| {
            let (model, _) = load(&mut backend, "qwen3");
            let kinds = |steps: Vec<lockstep_model::CollectiveStep>| {
                steps.iter().map(|step| step.kind).collect::<Vec<_>>()
            };
            let schedule = model.schedule();
            let layers = model.model().layers.len();
            (layers, kinds(schedule.tokens), kinds(schedule.logit_tokens))
        });
        assert!(found.iter().all(|rank| *rank == found[0]));
        found[0].clone()
    };
    use CollectiveKind::{AllGather, AllReduce, ReduceScatter};
    let (layers, tokens, tail) = kinds(1);
    assert_eq!(tokens, vec![AllReduce; 2 * layers - 1]);
    assert_eq!(tail, [AllReduce; 2]);
    let (_, tokens, tail) = kinds(4);
    assert_eq!(tokens, [AllGather, ReduceScatter].repeat(layers - 1));
    // The gather of the head's rows comes last.
    assert_eq!(tail, [AllGather, ReduceScatter, AllGather]);
    let (_, tokens, _) = kinds(2);
    let layer = [AllReduce, AllGather, ReduceScatter];
    assert_eq!(tokens, layer.repeat(layers - 1));
}

/// A drafter reads states of its own DP rank's rows, close to those of a rank alone.
#[test]
fn hidden_states_are_kept_of_own_rows() {
    let spec = || CaptureSpec {
        layers: vec![0, 1],
        last_hidden: true,
    };
    let alone = {
        let groups = Groups::from(Box::new(Single::new()));
        let mut backend = CpuBackend::new(options(), groups).unwrap();
        let (mut model, mut cache) = load(&mut backend, "qwen3_untied");
        model.set_capture(&mut backend, spec()).unwrap();
        let (own, all) = (prompt(TOKENS), [0, 1, 2, 3, 4, 5]);
        let batch = own.batch(&all);
        model
            .forward(&mut backend, &mut cache, &batch, None, &mut |_| {})
            .unwrap();
        model.features().unwrap().values().to_vec()
    };
    let alone = Arc::new(alone);
    for (tp_size, dp_size) in SPLITS {
        let alone = alone.clone();
        on_ranks(&cpu(), tp_size, dp_size, move |mut backend, at| {
            let (mut model, mut cache) = load(&mut backend, "qwen3_untied");
            model.set_capture(&mut backend, spec()).unwrap();
            for rows in batches(dp_size) {
                let tokens = rows.tokens[at.dp_rank()];
                let (own, wanted) = (prompt(tokens), wanted(&rows, at));
                let batch = own.batch(&wanted);
                model
                    .forward(&mut backend, &mut cache, &batch, Some(&rows), &mut |_| {})
                    .unwrap();
                let features = model.features().unwrap();
                assert_eq!(features.rows(), tokens);
                for (found, expected) in features.values().iter().zip(&*alone) {
                    assert!((found - expected).abs() < 1e-3, "{found} {expected}");
                }
            }
        });
    }
}

/// A rank that drafts has the whole embedding, and loads the whole head. With that head, its
/// hidden states give the logits of the pass.
#[test]
fn a_rank_that_drafts_lacks_the_head_alone() {
    for (tp_size, dp_size) in SPLITS {
        on_ranks(&cpu(), tp_size, dp_size, move |mut backend, at| {
            let (mut model, mut cache) = load(&mut backend, "qwen3_untied");
            assert!(model.holds_embedding());
            let spec = CaptureSpec {
                layers: Vec::new(),
                last_hidden: true,
            };
            model.set_capture(&mut backend, spec).unwrap();
            let files = FileAccess::Mapped;
            let head = whole_head(&mut backend, model.model(), files, &mut |_| {}).unwrap();
            let rows = WorldRows {
                tokens: vec![TOKENS; dp_size],
                wanted: vec![TOKENS; dp_size],
            };
            let (own, all) = (prompt(TOKENS), [0, 1, 2, 3, 4, 5]);
            let mut logits = Vec::new();
            let mut sink = |block: LogitBlock<'_>| logits.extend_from_slice(block.logits);
            let batch = own.batch(&all);
            model
                .forward(&mut backend, &mut cache, &batch, Some(&rows), &mut sink)
                .unwrap();
            let vocab = model.model().vocab_size;
            let mut found = backend.tensor(TOKENS, vocab, Holds::Logits).unwrap();
            let features = model.features().unwrap();
            backend.matmul(features, Linear::unbiased(&head), &mut found);
            match at.attention.leads() {
                true => assert!(found.values() == logits, "{at:?}"),
                false => assert!(logits.is_empty(), "{at:?}"),
            }
        });
    }
}

#[test]
fn what_contradicts_the_batch_is_refused_before_anybody_waits() {
    on_ranks(&cpu(), 2, 2, |mut backend, _| {
        let (mut model, mut cache) = load(&mut backend, "qwen3");
        let mut run = |batch: &Batch<'_>, rows: Option<&WorldRows>| {
            let sink = &mut |_: LogitBlock<'_>| {};
            model.forward(&mut backend, &mut cache, batch, rows, sink)
        };
        let own = prompt(3);
        let error = run(&own.batch(&[2]), None).unwrap_err();
        assert!(matches!(error, ModelError::NotDataParallel { dp_size: 2 }));
        for (tokens, wanted) in [([2, 2], [1, 1]), ([3, 3], [0, 0]), ([3, 3], [1, 4])] {
            let rows = WorldRows {
                tokens: tokens.to_vec(),
                wanted: wanted.to_vec(),
            };
            let error = run(&own.batch(&[2]), Some(&rows));
            assert!(error.is_err(), "{rows:?}");
        }
        let rows = WorldRows {
            tokens: vec![3, 3],
            wanted: vec![1, 1],
        };
        run(&own.batch(&[2]), Some(&rows)).unwrap();
    });
    on_ranks(&cpu(), 2, 1, |mut backend, _| {
        let (mut model, mut cache) = load(&mut backend, "qwen3");
        let (own, rows) = (prompt(3), WorldRows::default());
        let error = model
            .forward(
                &mut backend,
                &mut cache,
                &own.batch(&[2]),
                Some(&rows),
                &mut |_| {},
            )
            .unwrap_err();
        assert!(matches!(error, ModelError::NotDataParallel { dp_size: 1 }));
    });
}

/// A rank takes the memory that is charged before the start.
#[test]
fn ranks_take_what_is_charged() {
    for name in ["qwen3", "qwen2_untied", "llama_bias"] {
        for (tp_size, dp_size) in SPLITS.into_iter().chain([(2, 1)]) {
            on_ranks(&cpu(), tp_size, dp_size, move |mut backend, at| {
                let (mut loaded, mut cache) = load(&mut backend, name);
                // The largest pass, in which working memory grows.
                let rows = WorldRows {
                    tokens: vec![TOKENS; dp_size],
                    wanted: vec![TOKENS; dp_size],
                };
                let (own, all) = (prompt(TOKENS), [0, 1, 2, 3, 4, 5]);
                let world = (dp_size > 1).then_some(&rows);
                loaded
                    .forward(
                        &mut backend,
                        &mut cache,
                        &own.batch(&all),
                        world,
                        &mut |_| {},
                    )
                    .unwrap();
                let speculation = SpeculationConfig::none();
                let engine = EngineShape {
                    model: loaded.model(),
                    dtype: Dtype::Float32,
                    device: DeviceConfig::default(),
                    isa: None,
                    graphs: &[],
                    kv_dtype: KvCacheDtype::Float32,
                    tp_size,
                    dp_size,
                    ep_size: 1,
                    collectives: CollectiveBackend::Auto,
                    threads_per_rank: 1,
                    adapters: AdapterLimits::default(),
                    speculation: &speculation,
                    page_size: 4,
                    step: StepLimits {
                        requests: 1,
                        tokens: TOKENS,
                        positions: TOKENS,
                        verified: 1,
                        max_commit: 1,
                        draft_nodes: 0,
                        branches: false,
                    },
                };
                let charged = rank_memory(&CpuMemory::new(&options()), &engine, at.world.rank);
                let taken = backend.allocated();
                let target = charged.target;
                assert_eq!(target.weights, taken.matrices, "{name} {at:?}");
                assert_eq!(target.vectors, taken.vectors, "{name} {at:?}");
                assert_eq!(8 * target.kv_per_token, taken.kv, "{name} {at:?}");
                // Charged blocks of logits may be larger than those here.
                assert!(target.activations >= taken.activations, "{name} {at:?}");
                assert!(charged.scratch >= taken.scratch, "{name} {at:?}");
            });
        }
    }
}
