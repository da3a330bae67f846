use std::path::PathBuf;

use lockstep_backend::{
    DeviceMemory, Holds, InputLimits, KvShape, MatrixRole, MatrixShape, PassShape, RankLayout,
};
use lockstep_types::{
    Activation, AdapterLimits, Architecture, AttentionSpec, CheckpointFormat, CollectiveBackend,
    DeviceConfig, DflashSpec, DraftKind, DraftKv, DraftModel, Dtype, Eagle3Norms, EngineShape,
    ExpertGate, ExpertTensors, ExpertsNames, ExpertsSpec, GatedMlpNames, GatedMlpSpec,
    KvCacheDtype, LayerSpec, LoadFormat, Mixer, Mlp, ModelConfig, Multipliers, NormKind, Norms,
    PerLayerEmbeddings, QkNorm, Quantization, RankMemory, Routing, SpeculationConfig, StepLimits,
    TensorNames, Verification,
};

use super::rank_memory;

/// A device on which an element takes one byte, and an element of a table a million. Scratch
/// is the products' largest operand.
struct Elements;

const TABLE: u64 = 1_000_000;
const GRAPH: u64 = 7;

impl DeviceMemory for Elements {
    fn matrix_bytes(&self, matrix: MatrixShape) -> u64 {
        let weights = (matrix.rows * matrix.cols) as u64;
        match matrix.role {
            MatrixRole::Projection | MatrixRole::Router => weights,
            MatrixRole::Vocabulary => weights * TABLE,
        }
    }
    fn vector_bytes(&self, len: usize) -> u64 {
        len as u64
    }
    fn rope_bytes(&self, positions: usize, half: usize) -> u64 {
        (positions * 2 * half) as u64
    }
    fn tensor_bytes(&self, rows: usize, width: usize, _: Holds) -> u64 {
        (rows * width) as u64
    }
    fn inputs_bytes(&self, limits: &InputLimits) -> u64 {
        limits.tokens as u64
    }
    fn kv_bytes(&self, cache: &KvShape) -> u64 {
        (cache.bytes_per_token() * cache.pages * cache.page_size) as u64
    }
    fn exchange_bytes(&self, place: RankLayout) -> u64 {
        (place.rank + 10 * place.ranks) as u64
    }
    fn gathered_bytes(&self, passes: &[PassShape], place: RankLayout) -> u64 {
        let gathered: usize = passes.iter().map(|pass| pass.gathered).sum();
        (gathered * place.ranks) as u64
    }
    fn graph_bytes(&self) -> u64 {
        GRAPH
    }
    fn scratch_bytes(&self, passes: &[PassShape]) -> u64 {
        let products = passes.iter().flat_map(|pass| &pass.products);
        let inputs = products.map(|(rows, matrix)| rows * matrix.cols);
        let gathered: usize = passes.iter().map(|pass| pass.gathered).sum();
        (inputs.max().unwrap() + gathered * 1_000_000) as u64
    }
}

fn layer() -> LayerSpec {
    LayerSpec {
        mixer: Mixer::Attention(AttentionSpec::dense(8, 4, 8)),
        mlp: Mlp::Gated(GatedMlpSpec {
            activation: Activation::Silu,
            width: 96,
            bias: false,
            names: GatedMlpNames::default(),
        }),
        norms: Norms::Before,
        rms_norm_eps: 1e-5,
        scale: 1.0,
    }
}

/// Returns a model with 8 heads of 8, 4 key/value heads, and 96 columns in the MLP.
fn model(hidden: usize, num_layers: usize, tied: bool) -> ModelConfig {
    ModelConfig {
        path: PathBuf::new(),
        load_format: LoadFormat::Auto,
        checkpoint: CheckpointFormat::Floats,
        quantization: Quantization::None,
        architecture: Architecture {
            class_name: "Qwen3ForCausalLM".into(),
            model_type: "qwen3".into(),
        },
        names: TensorNames::default(),
        hidden_size: hidden,
        layers: vec![layer(); num_layers],
        vocab_size: 100,
        per_layer: None,
        max_position_embeddings: 512,
        norm: NormKind::Rms,
        multipliers: Multipliers::default(),
        rms_norm_eps: 1e-5,
        tie_word_embeddings: tied,
        eos_token_ids: Vec::new(),
        tokenizer_eos_id: None,
        bos_token_id: None,
    }
}

fn head(kind: DraftKind, own_embedding: bool, own_head: bool) -> SpeculationConfig {
    SpeculationConfig {
        algorithm: Some("HEAD".into()),
        draft: Some(DraftModel {
            model: model(64, 1, true),
            kind,
            own_embedding,
            own_head,
        }),
        draft_kv: DraftKv::Pairs,
        num_steps: 3,
        topk: 2,
        num_draft_tokens: 4,
        max_speculative_num_draft_tokens: 4,
        ..SpeculationConfig::none()
    }
}

fn eagle3() -> DraftKind {
    DraftKind::Eagle3 {
        draft_vocab_size: 50,
        capture_layers: vec![1, 2, 4],
        norms: Eagle3Norms::default(),
    }
}

/// Returns the memory for steps of 30 tokens of 5 requests, and drafts of 40 tokens.
fn memory(
    model: &ModelConfig,
    speculation: &SpeculationConfig,
    tp_size: usize,
    rank: usize,
) -> RankMemory {
    memory_of(5, model, speculation, tp_size, rank)
}

fn memory_of(
    requests: usize,
    model: &ModelConfig,
    speculation: &SpeculationConfig,
    tp_size: usize,
    rank: usize,
) -> RankMemory {
    rank_memory(
        &Elements,
        &shape_of(requests, model, speculation, tp_size),
        rank,
    )
}

fn shape_of<'a>(
    requests: usize,
    model: &'a ModelConfig,
    speculation: &'a SpeculationConfig,
    tp_size: usize,
) -> EngineShape<'a> {
    EngineShape {
        model,
        dtype: Dtype::Bfloat16,
        device: DeviceConfig::default(),
        isa: None,
        graphs: &[],
        kv_dtype: KvCacheDtype::Bfloat16,
        tp_size,
        dp_size: 1,
        ep_size: 1,
        collectives: CollectiveBackend::Auto,
        threads_per_rank: 1,
        adapters: AdapterLimits::default(),
        speculation,
        page_size: 4,
        step: StepLimits {
            requests,
            tokens: 6 * requests,
            positions: 20,
            verified: 4,
            max_commit: 4,
            draft_nodes: 7,
            branches: true,
        },
    }
}

/// Elements of the sines and cosines of four pairs at 20 positions.
const ANGLES: u64 = 20 * 8;

/// Elements of a layer of width 64: queries, keys and values, output, gate and up, down.
const LAYER: u64 = 64 * 16 * 8 + 64 * 64 + 3 * 64 * 96;

/// Passes that are larger than any step are neither recorded nor charged. Drafts have
/// recorded passes of their own.
#[test]
fn recorded_passes_are_charged_for_target_and_draft() {
    let target = model(64, 3, true);
    let sizes = [1, 30, 31, 40, 41];
    let charged = |speculation: &SpeculationConfig, tp_size, rank| {
        let engine = EngineShape {
            graphs: &sizes,
            ..shape_of(5, &target, speculation, tp_size)
        };
        rank_memory(&Elements, &engine, rank).graphs
    };
    assert_eq!(charged(&SpeculationConfig::none(), 1, 0), 2 * GRAPH);
    let drafts = head(eagle3(), false, true);
    // Trees have one size of at most 5 requests. A head's passes count as one.
    assert_eq!(charged(&drafts, 1, 0), (2 + 4 + 1) * GRAPH);
    // The other ranks draft nothing.
    assert_eq!(charged(&drafts, 2, 1), 2 * GRAPH);
    // The trees of a draft model have three passes.
    let mut drafts = head(DraftKind::Model, true, true);
    for (branches, passes) in [(1, 3), (2, 3), (22, 3), (23, 0)] {
        drafts.topk = branches;
        assert_eq!(charged(&drafts, 1, 0), (2 + 4 + passes) * GRAPH);
        assert_eq!(charged(&drafts, 2, 0), (2 + 4) * GRAPH);
    }
}

#[test]
fn a_model_takes_its_layers_and_tables() {
    for (tied, tables) in [(true, 6400), (false, 12_800)] {
        let target = memory(&model(64, 3, tied), &SpeculationConfig::none(), 1, 0).target;
        assert_eq!(target.weights, 3 * LAYER + tables * TABLE);
        // Two norms per layer and the last one.
        assert_eq!(target.vectors, 7 * 64 + ANGLES);
        assert_eq!(target.kv_per_token, 2 * 3 * 4 * 8 * 2);
        // Residual, its change and its norm; queries, keys and values; the attention output
        // twice; gate, up and their product; then inputs of logits, logits, and the token
        // itself.
        let token = 3 * 64 + (3 * 8 + 2 * 4) * 8 + 3 * 96;
        assert_eq!(target.activations, 30 * (token + 64 + 100 + 1));
        assert_eq!(target.host, 0);
    }
    let none = memory(&model(64, 3, true), &SpeculationConfig::none(), 1, 0);
    assert_eq!(none.draft, lockstep_types::MemoryUse::default());
    assert_eq!(none.scratch, 30 * 96, "the widest product");
}

/// Every expert's matrices and the router count, and activations for all choices of all rows.
/// Layers that read the caches of others take neither caches nor projections of keys and values.
#[test]
fn shared_caches_are_charged_once() {
    let mut model = model(64, 4, true);
    let own = memory(&model, &SpeculationConfig::none(), 1, 0).target;
    for number in 2..4 {
        let attention = model.layers[number].attention_mut().unwrap();
        attention.kv_of = Some(number - 2);
    }
    let shared = memory(&model, &SpeculationConfig::none(), 1, 0).target;
    assert_eq!(own.kv_per_token, 2 * shared.kv_per_token);
    assert_eq!(own.weights - shared.weights, 2 * 2 * 4 * 8 * 64);
}

/// Ranks share the rows of a table of per-layer embeddings, and each has whole projections.
#[test]
fn per_layer_embeddings_take_their_table_and_projections() {
    let plain = model(64, 3, true);
    let with = ModelConfig {
        per_layer: Some(PerLayerEmbeddings {
            width: 16,
            rows: 120,
            factor: 4.0,
            activation: Activation::GeluTanh,
        }),
        ..plain.clone()
    };
    let of = |model, tp_size, rank| memory(model, &SpeculationConfig::none(), tp_size, rank).target;
    let more = |tp_size, rank| of(&with, tp_size, rank).weights - of(&plain, tp_size, rank).weights;
    let (table, projections) = (100 * 3 * 16 * TABLE, 3 * 3 * 16 * 64);
    assert_eq!(more(1, 0), table + projections);
    assert_eq!(more(2, 0) + more(2, 1), table + 2 * projections);
    let (with, plain) = (of(&with, 1, 0), of(&plain, 1, 0));
    assert_eq!(with.vectors - plain.vectors, 3 * (16 + 64));
    // Columns of all layers, the embedding, and six times those of a layer.
    let token = 3 * 16 + 64 + 6 * 16;
    assert_eq!(with.activations - plain.activations, 30 * token);
}

#[test]
fn a_mixture_takes_all_of_its_experts() {
    let mut mixed = model(64, 2, true);
    mixed.layers[1].mlp = Mlp::Experts(ExpertsSpec {
        count: 5,
        active: 2,
        width: 32,
        gate: ExpertGate::Silu,
        routing: Routing::softmax(true),
        router_bias: false,
        scales: None,
        shared: None,
        names: ExpertsNames {
            router: "router".into(),
            correction: String::new(),
            experts: ExpertTensors::Single {
                prefix: "experts".into(),
                expert: GatedMlpNames::default(),
            },
        },
    });
    let memory = |ranks, rank| memory(&mixed, &SpeculationConfig::none(), ranks, rank);
    let experts = 5 * 3 * 64 * 32;
    let attention = LAYER - 3 * 64 * 96;
    let [alone, first] = [(1, 0), (2, 0)].map(|(ranks, rank)| memory(ranks, rank).target);
    assert_eq!(
        alone.weights,
        LAYER + attention + experts + 5 * 64 + 6400 * TABLE
    );
    // The router is whole on every rank. Of 100 tokens the first rank has 52.
    let split = (LAYER + attention + experts) / 2 + 5 * 64 + 52 * 64 * TABLE;
    assert_eq!(first.weights, split);
    // Beside the activations of a model with gated MLPs: scores, then gate, up, their product
    // and the result of each choice.
    let plain = super::rank_memory(
        &Elements,
        &shape_of(5, &model(64, 2, true), &SpeculationConfig::none(), 1),
        0,
    );
    let token = 5 + 2 * (3 * 32 + 64);
    assert_eq!(alone.activations, plain.target.activations + 30 * token);
    // Split by number, the first rank has three whole experts, and the second one two.
    let none = SpeculationConfig::none();
    let shape = EngineShape {
        ep_size: 2,
        ..shape_of(5, &mixed, &none, 2)
    };
    let weights = [0, 1].map(|rank| rank_memory(&Elements, &shape, rank).target.weights);
    let of = |own: u64, rows: u64| {
        (LAYER + attention) / 2 + own * 3 * 64 * 32 + 5 * 64 + rows * 64 * TABLE
    };
    assert_eq!(weights, [of(3, 52), of(2, 48)]);
}

#[test]
fn biases_and_norms_of_heads_count() {
    let biased = Mlp::Gated(GatedMlpSpec {
        activation: Activation::Silu,
        width: 96,
        bias: true,
        names: GatedMlpNames::default(),
    });
    let vectors = |change: &dyn Fn(&mut LayerSpec), rank| {
        let mut model = model(64, 1, true);
        change(&mut model.layers[0]);
        memory(&model, &SpeculationConfig::none(), 2, rank)
            .target
            .vectors
            - ANGLES
    };
    assert_eq!(vectors(&|_| (), 0), 3 * 64);
    assert_eq!(
        vectors(
            &|layer| layer.attention_mut().unwrap().qk_norm = QkNorm::PerHead,
            0
        ),
        3 * 64 + 16
    );
    // Rank 1 of 2 has half the heads and half the columns.
    assert_eq!(
        vectors(&|layer| layer.attention_mut().unwrap().qkv_bias = true, 1),
        3 * 64 + 64
    );
    assert_eq!(vectors(&|layer| layer.mlp = biased.clone(), 1), 3 * 64 + 96);
    // Row-parallel biases are on rank 0.
    assert_eq!(
        vectors(&|layer| layer.mlp = biased.clone(), 0),
        3 * 64 + 96 + 64
    );
    assert_eq!(
        vectors(
            &|layer| layer.attention_mut().unwrap().output_bias = true,
            0
        ),
        4 * 64
    );
    assert_eq!(
        vectors(
            &|layer| layer.attention_mut().unwrap().output_bias = true,
            1
        ),
        3 * 64
    );
}

#[test]
fn ranks_share_and_rank_0_gathers() {
    let model = model(64, 1, true);
    let [first, second] = [0, 1].map(|rank| memory(&model, &SpeculationConfig::none(), 2, rank));
    let weights = first.target.weights + second.target.weights;
    assert_eq!(weights, LAYER + 6400 * TABLE);
    assert_eq!(first.target.host, second.target.host + 4 * 30 * 100);
    assert_eq!(first.scratch, 30 * 64 + 30 * 100 * 1_000_000);
    assert_eq!(second.scratch, 30 * 64);
    assert_eq!([first.exchange, second.exchange], [20, 21]);
    assert_eq!([first.gathered, second.gathered], [2 * 30 * 100, 0]);
}

#[test]
fn heads_take_their_layer_and_the_tables_they_read() {
    let eagle = 2 * 64 * 64 + LAYER;
    let eagle3_ = 3 * 64 * 64 + LAYER + 64 * 16 * 8;
    // (kind, own embedding, own head, ranks, tied, projections, table rows)
    for (kind, own_embedding, own_head, tp_size, tied, projections, rows) in [
        (DraftKind::Eagle, false, false, 1, true, eagle, 0),
        (DraftKind::Eagle, false, false, 1, false, eagle, 0),
        (DraftKind::Eagle, false, false, 2, true, eagle, 100),
        (DraftKind::Eagle, false, false, 2, false, eagle, 200),
        (DraftKind::Eagle, true, false, 2, false, eagle, 300),
        (eagle3(), false, true, 1, false, eagle3_, 50),
        (eagle3(), false, true, 4, true, eagle3_, 150),
        (eagle3(), false, true, 4, false, eagle3_, 150),
        (eagle3(), true, false, 1, false, eagle3_, 100),
        (eagle3(), true, false, 2, false, eagle3_, 300),
        (eagle3(), true, false, 2, true, eagle3_, 200),
    ] {
        // The layer's norm, and what checkpoints may have: the bias of `fc`, and one norm of
        // EAGLE's or three of EAGLE-3's.
        let vectors = if kind == DraftKind::Eagle { 3 } else { 5 };
        let speculation = head(kind, own_embedding, own_head);
        let draft = memory(&model(64, 3, tied), &speculation, tp_size, 0).draft;
        let expected = projections + rows * 64 * TABLE;
        assert_eq!(draft.weights, expected, "{speculation:?} {tp_size} {tied}");
        assert_eq!(draft.vectors, vectors * 64 + ANGLES);
        assert_eq!(draft.kv_per_token, 2 * 4 * 8 * 2);
    }
}

#[test]
fn heads_activations() {
    let target = &model(64, 3, true);
    let token = 3 * 64 + (2 * 8 + 2 * 4) * 8 + 3 * 96;
    for (kind, features, vocab) in [(DraftKind::Eagle, 64, 100), (eagle3(), 192, 50)] {
        let speculation = head(kind, false, false);
        let draft = memory(target, &speculation, 1, 0).draft;
        // Captured features, then a pass of 40 tokens: tokens, hidden states, features,
        // embeddings, both joined. Then roots, outputs of trees, and attention outputs of
        // roots; states and logits of a block.
        let pass = 1 + token + 64 + features + 64 + 128;
        let block = 40 * (64 + 64 + vocab);
        let expected = 30 * features + 40 * pass + 5 * (64 + 64 + 64) + block;
        assert_eq!(draft.activations, expected, "{speculation:?}");
        // Logits of a frontier of 5 · 2.
        assert_eq!(draft.host, 4 * 10 * vocab);
        let mut drawn = speculation.clone();
        drawn.verification = Verification::Rejection;
        let drawn = memory(target, &drawn, 1, 0).draft.host - draft.host;
        assert_eq!(drawn, 4 * 5 * 3 * 100, "one for each of three drafts");
    }
    // Other ranks keep the last hidden state, because it takes their collectives.
    let [eagle, other] =
        [DraftKind::Eagle, eagle3()].map(|kind| memory(target, &head(kind, false, false), 2, 1));
    assert_eq!((eagle.draft.activations, eagle.draft.weights), (30 * 64, 0));
    assert_eq!(other.draft, lockstep_types::MemoryUse::default());
}

#[test]
fn a_heads_further_norms_are_charged() {
    let target = &model(64, 3, true);
    let taken = |norms| {
        let kind = DraftKind::Eagle3 {
            draft_vocab_size: 50,
            capture_layers: vec![1, 2, 4],
            norms,
        };
        let draft = memory(target, &head(kind, false, true), 1, 0).draft;
        (draft.vectors, draft.activations)
    };
    let none = Eagle3Norms::default();
    let (vectors, activations) = taken(none);
    // A vector and a buffer of all hidden states that are read.
    let before_projection = true;
    let joined = taken(Eagle3Norms {
        before_projection,
        ..none
    });
    assert_eq!(joined, (vectors + 3 * 64, activations + 40 * 3 * 64));
    let of_layers = true;
    let each = taken(Eagle3Norms { of_layers, ..none });
    assert_eq!(each, (vectors + 3 * 64, activations));
    let (before_residual, of_output) = (true, true);
    let others = Eagle3Norms {
        before_residual,
        of_output,
        ..none
    };
    assert_eq!(taken(others), (vectors, activations));
}

#[test]
fn a_dflash_model_takes_its_layers_and_the_targets_tables() {
    let spec = |causal: &[bool]| {
        DraftKind::Dflash(DflashSpec {
            block_size: 4,
            mask_token_id: 0,
            capture_layers: vec![1, 2],
            causal: causal.to_vec(),
        })
    };
    let draft = |causal: &[bool], tp_size, tied| {
        let mut speculation = head(spec(causal), false, false);
        let layers = causal.len();
        if let Some(draft) = &mut speculation.draft {
            draft.model = model(64, layers, true);
        }
        (speculation.topk, speculation.draft_kv) = (1, DraftKv::Tokens);
        memory(&model(64, 3, tied), &speculation, tp_size, 0).draft
    };
    let alone = draft(&[false, false], 1, false);
    assert_eq!(alone.weights, 2 * 64 * 64 + 2 * LAYER);
    // Two norms per layer, that of the states and the last one.
    assert_eq!(alone.vectors, 6 * 64 + ANGLES);
    assert_eq!(alone.kv_per_token, 2 * 2 * 4 * 8 * 2);
    // Kept features; then of a pass of 40 tokens the tokens, a layer and features, inputs of
    // logits and logits.
    let token = 3 * 64 + (2 * 8 + 2 * 4) * 8 + 3 * 96;
    let expected = 30 * 128 + 40 * (1 + token + 128) + 40 * (64 + 100);
    assert_eq!(alone.activations, expected);
    // Causal layers have inputs of their own.
    assert_eq!(draft(&[true, false], 1, false).activations, expected + 40);
    for (tp_size, tied, tables) in [(2, true, 100), (2, false, 200)] {
        let weights = draft(&[false, false], tp_size, tied).weights;
        assert_eq!(weights, alone.weights + tables * 64 * TABLE);
    }
}

#[test]
fn whole_models_draft_as_they_serve() {
    let mut speculation = head(DraftKind::Model, true, true);
    let whole = memory(&model(64, 3, true), &speculation, 2, 0);
    let alone = memory(&model(64, 1, true), &SpeculationConfig::none(), 1, 0).target;
    assert_eq!(whole.draft.weights, alone.weights);
    assert_eq!(whole.draft.vectors, alone.vectors);
    assert_eq!(whole.draft.kv_per_token, alone.kv_per_token);
    assert_eq!(whole.draft.activations, alone.activations / 30 * 40);
    assert_eq!(whole.draft.host, alone.host + 4 * 10 * 100);
    // The draft's products are wider than a rank's of the target.
    assert_eq!(whole.scratch, 40 * 96 + 30 * 100 * 1_000_000);
    speculation.draft_kv = DraftKv::None;
    let none = memory(&model(64, 3, true), &speculation, 2, 0).draft;
    assert_eq!(none.kv_per_token, 0);
}

/// Logits come in blocks of 256 rows. If there are more rows, all are collected.
#[test]
fn logits_of_many_requests_are_collected() {
    let host = |requests, topk| {
        let mut speculation = head(DraftKind::Eagle, false, false);
        speculation.topk = topk;
        let target = &model(64, 3, true);
        let draft = memory_of(requests, target, &speculation, 1, 0).draft;
        draft.host / 400
    };
    assert_eq!(host(256, 1), 256);
    assert_eq!(host(257, 1), 2 * 257);
    assert_eq!(host(100, 3), 2 * 300);
    assert_eq!(host(300, 2), 2 * 600);
}

/// A token takes memory in the cache of each group of layers, split as the group's heads are.
#[test]
fn the_caches_of_all_groups_are_charged() {
    let mut target = model(64, 5, true);
    for layer in target.layers.iter_mut().skip(1).step_by(2) {
        let attention = layer.attention_mut().unwrap();
        (attention.kv_heads, attention.head_dim) = (2, 16);
    }
    let none = SpeculationConfig::none();
    let bytes = |tp_size| memory(&target, &none, tp_size, 0).target.kv_per_token;
    // Keys and values in bf16: three layers of 4 heads of 8, two of 2 heads of 16.
    assert_eq!(bytes(1), 2 * 2 * (3 * 4 * 8 + 2 * 2 * 16));
    assert_eq!(bytes(2), 2 * 2 * (3 * 2 * 8 + 2 * 16));
    // One copy of a head serves both of a rank's query heads.
    assert_eq!(bytes(4), 2 * 2 * (3 * 8 + 2 * 16));
}
