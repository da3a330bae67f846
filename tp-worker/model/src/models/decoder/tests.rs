use std::{collections::BTreeMap, path::Path};

use lockstep_types::{
    Activation, AttentionSpec, GatedMlpNames, GatedMlpSpec, LayerSpec, Mixer, Mlp, Norms, QkNorm,
};
use proptest::prelude::*;

use super::*;
use crate::{Topology, blocks::parts::TensorRows};

fn demo() -> ModelConfig {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lockstep-demo-7m");
    lockstep_model_folder::load(Path::new(folder)).unwrap()
}

/// Number of ranks that hold each element of each tensor, by the tensor's name.
type Held = BTreeMap<String, Vec<usize>>;

fn hold(held: &mut Held, tensor: &TensorRows, width: usize, columns: &Range<usize>) {
    let counts = held
        .entry(tensor.name.clone())
        .or_insert_with(|| vec![0; tensor.rows * width]);
    let rows = tensor.taken.iter();
    for row in rows.flat_map(|taken| taken.clone().step_by(tensor.step)) {
        for column in columns.clone() {
            counts[row * width + column] += 1;
        }
    }
}

/// Experts that are split by number, over groups of one rank and of two: all ranks together hold each
/// element of experts, shared ones and biases once, and every rank holds the router.
#[test]
fn ranks_hold_every_expert_once() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/architectures");
    for name in [
        "mixtral",
        "qwen3_moe",
        "glm4_moe",
        "granite_moe",
        "gpt_oss_mxfp4",
    ] {
        let model = lockstep_model_folder::load(&fixtures.join(name)).unwrap();
        for (ranks, groups) in [(2, 2), (4, 4), (4, 2)] {
            let mut held = Held::new();
            for rank in 0..ranks {
                let topology = Topology::new(rank, ranks, 1).with_experts(groups);
                let listed = Decoder::listed(&model, &Shard::new(&model, topology).unwrap());
                let tensors = std::cell::RefCell::new(&mut held);
                listed.each(
                    |matrix| {
                        for tensor in &matrix.tensors {
                            hold(
                                &mut tensors.borrow_mut(),
                                tensor,
                                matrix.width,
                                &matrix.columns,
                            );
                        }
                    },
                    |vector| {
                        for tensor in &vector.tensors {
                            hold(&mut tensors.borrow_mut(), tensor, 1, &(0..1));
                        }
                    },
                );
            }
            let mut experts = 0;
            for (name, counts) in held {
                let whole = ["gate.weight", "gate.e_score", "router"];
                let of_mlp = ["mlp.", "block_sparse_moe."]
                    .iter()
                    .any(|part| name.contains(part));
                if !of_mlp {
                    continue;
                }
                experts += 1;
                let copies = if whole.iter().any(|part| name.contains(part)) {
                    ranks
                } else {
                    1
                };
                assert!(
                    counts.iter().all(|count| *count == copies),
                    "{name} {groups}"
                );
            }
            assert!(experts > 0, "{name}");
        }
    }
}

proptest! {
    /// All ranks together hold each element once, with exceptions. Each DP rank holds
    /// attention once, every rank holds norms, keys and values have one or more copies, and
    /// with several DP ranks every rank holds the embedding.
    #[test]
    fn ranks_hold_every_element(
        (attention, dp_size) in prop::sample::select(vec![(1, 1), (2, 1), (4, 1), (1, 2), (2, 2)]),
        kv_heads in prop::sample::select(vec![1, 2, 4]),
        width in 8_usize..70,
        tied: bool,
        biased: bool,
    ) {
        let layer = |kv_heads, width| LayerSpec {
            mixer: Mixer::Attention(AttentionSpec {
                heads: 4,
                kv_heads,
                head_dim: 2,
                qk_norm: if biased { QkNorm::PerHead } else { QkNorm::None },
                qkv_bias: biased,
                output_bias: biased,
                ..demo().layers[0].attention().unwrap().clone()
            }),
            mlp: Mlp::Gated(GatedMlpSpec {
activation: Activation::Silu, width, bias: biased, names: GatedMlpNames::default(),
 }),
            norms: Norms::Before,
            rms_norm_eps: 1e-5,
        };
        let model = ModelConfig {
            layers: vec![layer(kv_heads, width), layer(kv_heads, 9)],
            hidden_size: 6,
            vocab_size: 21,
            tie_word_embeddings: tied,
            ..demo()
        };
        let ranks = attention * dp_size;
        let mut held = Held::new();
        for rank in 0..ranks {
            let topology = Topology::new(rank, ranks, dp_size);
            let listed = Decoder::listed(&model, &Shard::new(&model, topology).unwrap());
            let tensors = std::cell::RefCell::new(&mut held);
            listed.each(
                |matrix| {
                    for tensor in &matrix.tensors {
                        hold(&mut tensors.borrow_mut(), tensor, matrix.width, &matrix.columns);
                    }
                },
                |vector| {
                    for tensor in &vector.tensors {
                        hold(&mut tensors.borrow_mut(), tensor, 1, &(0..1));
                    }
                },
            );
        }
        for (name, counts) in held {
            let copies = |count: &usize| match () {
                () if name.contains("k_proj") || name.contains("v_proj") => *count >= dp_size,
                () if name.contains("norm") => *count == ranks,
                () if name == "model.embed_tokens.weight" && dp_size > 1 => *count == ranks + usize::from(tied),
                () if name.contains("self_attn") => *count == dp_size,
                () => *count == 1,
            };
            prop_assert!(counts.iter().all(copies), "{} {:?}", name, counts);
        }
    }
}
