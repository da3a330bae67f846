use std::path::Path;

use lockstep_types::{
    Activation, AttentionSpec, GatedMlpNames, GatedMlpSpec, LayerSpec, Mixer, Mlp, Norms, QkNorm,
};

use super::*;

/// A model with two layers of width 64: 8 query heads and 4 key/value heads of width 8, and 96
/// columns of the MLP. It has 100 tokens.
fn small() -> ModelConfig {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lockstep-demo-7m");
    let demo = lockstep_model_folder::load(Path::new(folder)).unwrap();
    let layer = LayerSpec {
        mixer: Mixer::Attention(AttentionSpec {
            heads: 8,
            kv_heads: 4,
            head_dim: 8,
            qk_norm: QkNorm::None,
            qkv_bias: false,
            output_bias: false,
            ..demo.layers[0].attention().unwrap().clone()
        }),
        mlp: Mlp::Gated(GatedMlpSpec {
            activation: Activation::Silu,
            width: 96,
            bias: false,
            names: GatedMlpNames::default(),
        }),
        norms: Norms::Before,
        rms_norm_eps: 1e-5,
    };
    ModelConfig {
        hidden_size: 64,
        layers: vec![layer.clone(), layer],
        vocab_size: 100,
        tie_word_embeddings: true,
        ..demo
    }
}

#[test]
fn parameters_are_all_elements_that_a_model_lists() {
    let plain = small();
    // Attention, MLP and two norms; a table and the last norm.
    let layer = 64 * (192 + 288 + 2);
    let tied = 2 * layer + 64 * (100 + 1);
    assert_eq!(parameters(&plain), tied);
    let untied = ModelConfig {
        tie_word_embeddings: false,
        ..plain.clone()
    };
    assert_eq!(parameters(&untied), tied + 64 * 100);
    let mut biased = plain;
    for layer in &mut biased.layers {
        let attention = layer.attention_mut().unwrap();
        attention.qk_norm = QkNorm::PerHead;
        (attention.qkv_bias, attention.output_bias) = (true, true);
    }
    // Two norms of heads; biases of queries, keys, values and output.
    assert_eq!(parameters(&biased), tied + 2 * (2 * 8 + 64 + 2 * 32 + 64));
}

#[test]
fn what_dp_ranks_share_of_a_pass_follows_from_the_model() {
    // Columns and rows of a layer, as wide as the residual stream: 192 are attention's with 4
    // key/value heads, and 288 the MLP's. Eight ranks of a DP rank have 8 key/value heads, some
    // of them copies.
    for (attn_tp_size, own, shared) in [
        (1, 2 * 192, 2 * 288 + 100),
        (2, 2 * 192, 2 * 288 + 100),
        (4, 2 * 192, 2 * 288 + 100),
        (8, 2 * 256, 2 * 288 + 100),
    ] {
        let part = (shared << 16) / (own + shared);
        assert_eq!(shared_part(&small(), attn_tp_size), part, "{attn_tp_size}");
    }
}
