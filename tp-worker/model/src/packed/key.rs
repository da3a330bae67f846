//! What packed bytes follow from.

use blake3::{Hash, Hasher};
use lockstep_backend::{Backend, MatrixRole};
use lockstep_types::ModelConfig;

use super::layout;
use crate::Shard;

/// The backend's names for what it packs; `None` where it can't be saved.
pub(crate) fn formats<B: Backend>(backend: &B) -> Option<String> {
    let projection = backend.matrix_format(MatrixRole::Projection)?;
    let vocabulary = backend.matrix_format(MatrixRole::Vocabulary)?;
    Some(format!(
        "projection {projection}, vocabulary {vocabulary}, {} endian",
        if cfg!(target_endian = "big") {
            "big"
        } else {
            "little"
        }
    ))
}

/// The hash of all that decides over a rank's packed bytes.
pub(super) fn key(model: &ModelConfig, shard: &Shard, formats: &str, content: &Hash) -> Hash {
    // Every field by name: one that is added has to be put on either side.
    let ModelConfig {
        path: _,
        // Made-up weights are never packed on disk.
        load_format: _,
        architecture,
        hidden_size,
        num_layers,
        num_heads,
        num_kv_heads,
        head_dim,
        intermediate_size,
        vocab_size,
        max_position_embeddings: _,
        rms_norm_eps: _,
        rope: _,
        tie_word_embeddings,
        // Vectors are read from the checkpoint at every start.
        qkv_bias: _,
        output_bias: _,
        mlp_bias: _,
        qk_norm: _,
        eos_token_ids: _,
        tokenizer_eos_id: _,
        bos_token_id: _,
    } = model;
    let sizes = [
        hidden_size,
        num_layers,
        num_heads,
        num_kv_heads,
        head_dim,
        intermediate_size,
        vocab_size,
    ];
    let mut hasher = Hasher::new();
    let version = layout::VERSION;
    let text = format!(
        "lockstep packed weights {version}\n{architecture:?} {sizes:?} {tie_word_embeddings}\n\
         {shard:?}\n{formats}\n"
    );
    hasher.update(text.as_bytes()).update(content.as_bytes());
    hasher.finalize()
}
