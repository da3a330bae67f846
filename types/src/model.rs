//! A model's description.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::LoadFormat;

/// Declares the families once: what `architectures` and `model_type` call them
/// in `config.json`.
macro_rules! architectures {
    ($($(#[$about:meta])* $name:ident = $class:literal, $model_type:literal;)+) => {
        /// Model families served, all dense decoder-only transformers.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Architecture {
            $($(#[$about])* #[serde(rename = $model_type)] $name,)+
        }

        impl Architecture {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// Its name among `architectures` in `config.json`.
            pub fn class_name(self) -> &'static str {
                match self { $(Self::$name => $class,)+ }
            }

            /// Its `model_type` in `config.json`.
            pub fn model_type(self) -> &'static str {
                match self { $(Self::$name => $model_type,)+ }
            }
        }
    };
}

architectures! {
    /// Nothing beside the common layers.
    Llama = "LlamaForCausalLM", "llama";
    /// A sliding window in some releases.
    Mistral = "MistralForCausalLM", "mistral";
    /// Biases on q, k and v.
    Qwen2 = "Qwen2ForCausalLM", "qwen2";
    /// RMS norms on the heads of q and k.
    Qwen3 = "Qwen3ForCausalLM", "qwen3";
}

impl Architecture {
    /// The class names of all, for people: "A, B and C".
    pub fn served() -> String {
        let names: Vec<_> = Self::ALL.iter().map(|known| known.class_name()).collect();
        match names.split_last() {
            Some((last, others)) if !others.is_empty() => {
                format!("{} and {last}", others.join(", "))
            }
            _ => names.concat(),
        }
    }
}

/// Everything that the forward pass, the KV sizing and the front need to know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Folder with `config.json`, weights and tokenizer.
    pub path: PathBuf,
    /// Where its weights come from.
    pub load_format: LoadFormat,
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
    /// The output head is the embedding table: `config.json` says so, and no other head is
    /// stored.
    pub tie_word_embeddings: bool,
    /// Biases on q, k and v.
    pub qkv_bias: bool,
    /// Bias on the attention's output projection.
    pub output_bias: bool,
    /// Biases in the MLP.
    pub mlp_bias: bool,
    /// RMS norms on the heads of q and k.
    pub qk_norm: bool,
    /// Tokens that end a text, sorted; from `generation_config.json`, `config.json` and
    /// the tokenizer.
    pub eos_token_ids: Vec<u32>,
    /// The one of them that the tokenizer calls its end token.
    pub tokenizer_eos_id: Option<u32>,
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
    /// The same with `id` as the tokenizer's end token, which ends texts too.
    #[must_use]
    pub fn with_tokenizer_eos(mut self, id: Option<u32>) -> Self {
        self.tokenizer_eos_id = id;
        self.eos_token_ids.extend(id);
        self.eos_token_ids.sort_unstable();
        self.eos_token_ids.dedup();
        self
    }

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

    /// Of what a token takes of a pass's matrix products, the part of 65,536 that all
    /// ranks of data-parallel attention share: those of the MLP and the output head.
    /// The rest are attention's projections, on the `attn_tp_size` ranks of the
    /// token's DP rank alone, copies of key/value heads included.
    pub fn shared_part(&self, attn_tp_size: usize) -> u32 {
        let kv_heads = self.kv_heads_per_rank(attn_tp_size) * attn_tp_size;
        let heads = 2 * (self.num_heads + kv_heads);
        let own = self.num_layers * self.head_dim * heads;
        let shared = self.num_layers * 3 * self.intermediate_size + self.vocab_size;
        // Each is that many times the residual stream's width.
        let part = ((shared as u128) << 16) / (own + shared).max(1) as u128;
        part as u32
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_written_as_its_model_type() {
        for known in Architecture::ALL {
            let written = serde_json::to_value(known).unwrap();
            assert_eq!(written, known.model_type());
            let read: Architecture = serde_json::from_value(written).unwrap();
            assert_eq!(read, *known);
        }
    }

    #[test]
    fn all_families_are_named_for_people() {
        let all = Architecture::served();
        for known in Architecture::ALL {
            assert!(all.contains(known.class_name()), "{all}");
        }
        assert!(all.starts_with("LlamaForCausalLM, "), "{all}");
        assert!(all.ends_with(" and Qwen3ForCausalLM"), "{all}");
    }
}
