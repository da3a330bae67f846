//! A model's description.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Model families served, all dense decoder-only transformers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// `LlamaForCausalLM`.
    Llama,
    /// `MistralForCausalLM`.
    Mistral,
    /// `Qwen2ForCausalLM`: biases on q, k and v.
    Qwen2,
    /// `Qwen3ForCausalLM`: RMS norms on the heads of q and k.
    Qwen3,
}

/// Everything that the forward pass, the KV sizing and the front need to know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Folder with `config.json`, weights and tokenizer.
    pub path: PathBuf,
    /// The family.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Transformer layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key/value heads.
    pub num_kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Longest sequence that the positions cover.
    pub max_position_embeddings: usize,
    /// Added to the mean square in every RMS norm.
    pub rms_norm_eps: f32,
    /// Rotary embedding.
    pub rope: RopeConfig,
    /// The output head is the embedding table.
    pub tie_word_embeddings: bool,
    /// Biases on q, k and v.
    pub qkv_bias: bool,
    /// Bias on the attention's output projection.
    pub output_bias: bool,
    /// Biases in the MLP.
    pub mlp_bias: bool,
    /// RMS norms on the heads of q and k.
    pub qk_norm: bool,
    /// Tokens that end a text, sorted; from `generation_config.json` and `config.json`.
    pub eos_token_ids: Vec<u32>,
    /// The token a text begins with, where there is one.
    pub bos_token_id: Option<u32>,
}

/// Rotary position embedding (Su et al., arXiv:2104.09864).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// How long contexts are reached.
    pub scaling: RopeScaling,
}

/// Changes to the rotary frequencies.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// None.
    Default,
    /// All positions divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1's: long wavelengths divided by `factor`, short ones kept, a smooth ramp between.
    Llama3 {
        /// The divisor of long wavelengths.
        factor: f64,
        /// Wavelengths above `original_max_position / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length the model was first trained on.
        original_max_position: usize,
    },
}

impl ModelConfig {
    /// Key/value heads that each of `tp_size` ranks holds: one copy serves as
    /// many of the rank's query heads as share it.
    pub fn kv_heads_per_rank(&self, tp_size: usize) -> usize {
        let local = self.num_heads / tp_size;
        let group = self.num_heads / self.num_kv_heads;
        let (mut a, mut b) = (local, group);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        local / a
    }

    /// Parameters, counted from the shapes (tied embeddings once).
    pub fn parameters(&self) -> usize {
        let attention =
            self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads);
        let mlp = 3 * self.hidden_size * self.intermediate_size;
        let embeddings = if self.tie_word_embeddings { 1 } else { 2 };
        self.num_layers * (attention + mlp + 2 * self.hidden_size)
            + embeddings * self.vocab_size * self.hidden_size
            + self.hidden_size
    }
}
