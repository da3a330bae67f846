use std::collections::BTreeMap;

use lockstep_types::{
    Activation, Architecture, AttentionSpec, CheckpointFormat, ExpertGate, ExpertsNames,
    ExpertsSpec, GatedMlpNames, GatedMlpSpec, IntegerCheckpoint, IntegerLayout, LayerSpec,
    LoadFormat, Mixer, Mlp, Multipliers, NormKind, Norms, Quantization, Routing, TensorNames,
};
use proptest::prelude::*;

use super::*;

fn model(heads: usize, kv_heads: usize, intermediate: usize, vocab: usize) -> ModelConfig {
    ModelConfig {
        path: "none".into(),
        load_format: LoadFormat::Auto,
        checkpoint: CheckpointFormat::Floats,
        quantization: Quantization::None,
        architecture: Architecture {
            class_name: "LlamaForCausalLM".into(),
            model_type: "llama".into(),
        },
        names: TensorNames::default(),
        hidden_size: 8,
        layers: vec![LayerSpec {
            mixer: Mixer::Attention(AttentionSpec::dense(heads, kv_heads, 4)),
            mlp: Mlp::Gated(GatedMlpSpec {
                activation: Activation::Silu,
                width: intermediate,
                bias: false,
                names: GatedMlpNames::default(),
            }),
            norms: Norms::Before,
            rms_norm_eps: 1e-5,
            scale: 1.0,
        }],
        vocab_size: vocab,
        per_layer: None,
        max_position_embeddings: 16,
        norm: NormKind::Rms,
        multipliers: Multipliers::default(),
        rms_norm_eps: 1e-5,
        tie_word_embeddings: true,
        eos_token_ids: vec![],
        tokenizer_eos_id: None,
        bos_token_id: None,
    }
}

proptest! {
    /// Parts are disjoint, complete, in rank order and never empty. Every query head finds
    /// its own key/value head where the kernels look for it.
    #[test]
    fn shards_cover_the_model(
        (group, kv_heads, size) in (1usize..9, 1usize..9)
            .prop_flat_map(|(group, kv_heads)| {
                let heads = group * kv_heads;
                let sizes: Vec<_> = (1..=heads).filter(|s| heads % s == 0).collect();
                (Just(group), Just(kv_heads), prop::sample::select(sizes))
            }),
        intermediate in 64usize..3000,
        vocab in 64usize..3000,
    ) {
        let model = model(group * kv_heads, kv_heads, intermediate, vocab);
        let shards: Vec<_> = (0..size).map(|r| Shard::new(&model, Topology::new(r, size, 1)).unwrap()).collect();
        let ends = |part: &dyn Fn(&Shard) -> Range<usize>, total: usize| {
            let starts: Vec<_> = shards.iter().map(|s| part(s).start).collect();
            let ends: Vec<_> = shards.iter().map(|s| part(s).end).collect();
            starts[0] == 0 && ends[..size - 1] == starts[1..] && ends[size - 1] == total
        };
        let attention = model.layers[0].attention().unwrap();
        prop_assert!(ends(&|s| s.heads(attention).queries, group * kv_heads));
        prop_assert!(ends(&|s| s.mlp(intermediate), intermediate));
        prop_assert!(ends(&|s| s.vocab.clone(), vocab));
        let widths: Vec<_> = shards.iter().map(|s| s.vocab.len()).collect();
        prop_assert_eq!(shards[0].vocab_widths(&model), widths);
        for shard in &shards {
            let (heads, mlp) = (shard.heads(attention), shard.mlp(intermediate));
            prop_assert!(!mlp.is_empty() && !shard.vocab.is_empty());
            for (part, total) in [(&mlp, intermediate), (&shard.vocab, vocab)] {
                let even = total as f64 / size as f64;
                let off = (part.len() as f64 - even).abs();
                prop_assert!(off <= (even / 4.0).max(1.0), "{part:?} of {total}");
            }
            // All ranks hold equally many, so that caches are sized alike.
            prop_assert_eq!(heads.kv.len(), shards[0].heads(attention).kv.len());
            let local_group = heads.queries.len() / heads.kv.len();
            for (local, head) in heads.queries.clone().enumerate() {
                prop_assert_eq!(heads.kv[local / local_group], head / group);
            }
        }
    }
}

#[test]
fn key_heads_are_split_or_replicated() {
    let kv = |heads, kv_heads, rank, size| {
        let model = model(heads, kv_heads, 64, 64);
        let shard = Shard::new(&model, Topology::new(rank, size, 1)).unwrap();
        shard.heads(model.layers[0].attention().unwrap()).kv
    };
    assert_eq!(kv(8, 4, 1, 2), [2, 3]);
    assert_eq!(kv(8, 2, 3, 4), [1], "one copy on each of two ranks");
    assert_eq!(kv(14, 2, 1, 2), [1]);
    assert_eq!(
        kv(12, 6, 0, 4),
        [0, 0, 1],
        "copies where groups straddle ranks"
    );
}

#[test]
fn errors_name_what_works() {
    let error = |model: &ModelConfig, size| {
        let place = Place { rank: 0, size };
        let topology = Topology {
            world: place,
            attention: place,
            experts: Place::ALONE,
        };
        Shard::new(model, topology).unwrap_err().to_string()
    };
    let text = error(&model(8, 4, 64, 64), 3);
    assert!(
        text.contains("--tp-size 3") && text.contains("1, 2, 4 or 8"),
        "{text}"
    );
    assert!(error(&model(8, 4, 64, 64), 0).contains("1, 2, 4 or 8"));
    assert!(error(&model(8, 4, 4, 64), 8).contains("MLP columns"));
    assert!(error(&model(8, 4, 64, 4), 8).contains("vocabulary"));
    assert!(error(&model(8, 3, 64, 64), 2).contains("3 key/value heads"));
}

/// Returns a model whose layers have `count` experts of 64 columns.
fn mixture(count: usize) -> ModelConfig {
    let mut mixture = model(8, 4, 64, 64);
    mixture.layers[0].mlp = Mlp::Experts(ExpertsSpec {
        count,
        active: 1,
        width: 64,
        gate: ExpertGate::Silu,
        routing: Routing::softmax(true),
        router_bias: false,
        scales: None,
        shared: None,
        names: ExpertsNames::of_mlp(),
    });
    mixture
}

/// Groups have neighbouring experts, and the ranks of a group neighbouring columns.
#[test]
fn experts_are_split_by_number_and_then_inside() {
    let of = |rank, (size, groups), count| {
        let topology = Topology::new(rank, size, 1).with_experts(groups);
        let model = mixture(count);
        let shard = Shard::new(&model, topology).unwrap();
        (shard.experts(count), shard.expert(&model, 64))
    };
    let all: Vec<_> = (0..4).map(|rank| of(rank, (4, 2), 9)).collect();
    assert_eq!(
        all,
        [(0..5, 0..32), (0..5, 32..64), (5..9, 0..32), (5..9, 32..64)]
    );
    let all: Vec<_> = (0..4).map(|rank| of(rank, (4, 4), 6).0).collect();
    assert_eq!(all, [0..2, 2..4, 4..5, 5..6]);
    assert_eq!(of(1, (4, 1), 6), (0..6, 16..32));
}

#[test]
fn errors_name_groups_that_experts_can_be_split_over() {
    let error = |model: &ModelConfig, size, groups| {
        let topology = Topology::new(0, size, 1).with_experts(groups);
        Shard::new(model, topology).unwrap_err().to_string()
    };
    for (model, size, groups, expected) in [
        (
            mixture(6),
            8,
            3,
            "--ep-size 3 does not fit --tp-size 8 and a model with 6 experts in a layer; use 1, 2 or 4",
        ),
        (mixture(6), 8, 8, "use 1, 2 or 4"),
        (mixture(6), 4, 8, "use 1, 2 or 4"),
        (mixture(6), 4, 0, "--ep-size 0"),
        (model(8, 4, 64, 64), 2, 2, "0 experts in a layer; use 1"),
    ] {
        let text = error(&model, size, groups);
        assert!(text.contains(expected), "{text}");
    }
}

/// Each rank's experts begin with a group, and no group is divided, while there is one for each
/// rank. Then groups are divided.
#[test]
fn experts_that_are_rounded_are_cut_between_groups() {
    let floats = model(1, 1, 2880, 64);
    let mxfp4 = ModelConfig {
        checkpoint: CheckpointFormat::Mxfp4(Mxfp4Checkpoint { floats: Vec::new() }),
        ..floats.clone()
    };
    let integers = ModelConfig {
        checkpoint: CheckpointFormat::Integers(IntegerCheckpoint {
            layout: IntegerLayout::Awq,
            bits: vec![4],
            groups: vec![Some(128)],
            zeros: vec![true],
            forms: Vec::new(),
            others: BTreeMap::new(),
            fp8: None,
        }),
        ..floats.clone()
    };
    let of = |model: &ModelConfig, size: usize| -> Vec<_> {
        let ranks = (0..size).map(|rank| Shard::of(model, Topology::new(rank, size, 1)));
        ranks.map(|shard| shard.expert(model, 2880)).collect()
    };
    let groups: Vec<_> = of(&mxfp4, 4)
        .iter()
        .map(|columns| columns.len() / 32)
        .collect();
    assert_eq!(groups, [23, 23, 22, 22]);
    for size in [1, 2, 3, 7, 16, 45, 90, 91, 200] {
        let ranks = of(&mxfp4, size);
        assert!(ranks.iter().all(|columns| !columns.is_empty()), "{size}");
        assert!(ranks.windows(2).all(|pair| pair[0].end == pair[1].start));
        let whole = ranks.iter().all(|columns| columns.start.is_multiple_of(32));
        assert_eq!(whole, size <= 90, "{size}");
        assert_eq!(ranks, of(&integers, size), "{size}");
    }
    assert_eq!(
        of(&floats, 16)[1],
        Shard::of(&floats, Topology::new(1, 16, 1)).mlp(2880)
    );
}
