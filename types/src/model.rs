//! A model's description.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{LoadFormat, Quantization, TensorNames};

/// Names of a model family in `config.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Architecture {
    /// Entry among `architectures`: "LlamaForCausalLM".
    pub class_name: String,
    /// Value of `model_type`: "llama".
    pub model_type: String,
}

/// Writes the family for people: "Llama" of "LlamaForCausalLM".
impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.class_name.strip_suffix("ForCausalLM");
        f.write_str(name.unwrap_or(&self.class_name))
    }
}

/// Properties of a model that the forward pass, the KV sizing and the front need. It is data
/// alone: no device and no checkpoint is there yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Folder with `config.json`, weights and tokenizer.
    pub path: PathBuf,
    /// Source of its weights.
    pub load_format: LoadFormat,
    /// Rounding of its weight matrices.
    pub quantization: Quantization,
    /// The family.
    pub architecture: Architecture,
    /// Names of its tensors.
    pub names: TensorNames,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Transformer layers, from the embedding to the output head.
    pub layers: Vec<LayerSpec>,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Longest sequence that the positions cover.
    pub max_position_embeddings: usize,
    /// Added to the mean square in the norm before the output head.
    pub rms_norm_eps: f32,
    /// True if the output head is the embedding table: `config.json` says so, and no other head
    /// is stored.
    pub tie_word_embeddings: bool,
    /// Tokens that end a text, sorted; from `generation_config.json`, `config.json` and
    /// the tokenizer.
    pub eos_token_ids: Vec<u32>,
    /// End token of the tokenizer, which is among `eos_token_ids`.
    pub tokenizer_eos_id: Option<u32>,
    /// Token that a text begins with, if there is one.
    pub bos_token_id: Option<u32>,
}

/// One transformer layer: a mixer over positions, then an MLP. Both add to the residual stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerSpec {
    /// Block that mixes positions.
    pub mixer: Mixer,
    /// Block that mixes columns.
    pub mlp: Mlp,
    /// Places of its norms.
    pub norms: Norms,
    /// Added to the mean square in the layer's norms.
    pub rms_norm_eps: f32,
}

/// Places of a layer's norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Norms {
    /// Pre-norm: each block, the mixer and the MLP, reads a norm of the residual stream.
    Before,
}

/// Block of a layer that lets positions see each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mixer {
    /// Attention over all positions before.
    Attention(AttentionSpec),
}

/// Block of a layer that computes each position by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mlp {
    /// `down(silu(gate(x)) · up(x))`.
    Gated(GatedMlpSpec),
}

/// Grouped-query attention (Ainslie et al., arXiv:2305.13245) with rotary positions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads, which divide the query heads.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Factor of the scores, `head_dim^-½` in most families.
    pub scale: f32,
    /// Sliding window: a token at position `p` sees the positions `p - window + 1` to `p`.
    /// `None` shows it all positions up to its own.
    pub window: Option<NonZeroUsize>,
    /// Rotary embedding.
    pub rope: RopeConfig,
    /// True if the heads of q and k have RMS norms.
    pub qk_norm: bool,
    /// True if q, k and v have biases.
    pub qkv_bias: bool,
    /// True if the output projection has a bias.
    pub output_bias: bool,
}

/// Sizes of a gated MLP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GatedMlpSpec {
    /// Columns between the projections.
    pub width: usize,
    /// True if all three projections have biases.
    pub bias: bool,
}

/// Rotary position embedding (Su et al., arXiv:2104.09864).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// Change to the frequencies for long contexts.
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
    /// Returns the config with `id` as the tokenizer's end token, which also joins
    /// `eos_token_ids`.
    #[must_use]
    pub fn with_tokenizer_eos(mut self, id: Option<u32>) -> Self {
        self.tokenizer_eos_id = id;
        self.eos_token_ids.extend(id);
        self.eos_token_ids.sort_unstable();
        self.eos_token_ids.dedup();
        self
    }

    /// Returns the attention of each layer.
    pub fn attentions(&self) -> impl Iterator<Item = &AttentionSpec> {
        self.layers.iter().map(LayerSpec::attention)
    }

    /// Returns the largest number of ranks that can divide the query heads of every layer.
    pub fn common_heads(&self) -> usize {
        let divisor = |mut a: usize, mut b: usize| {
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        self.attentions().map(|layer| layer.heads).fold(0, divisor)
    }

    /// Returns the least number of columns that all ranks divide: those of an MLP, or of the
    /// vocabulary.
    pub fn narrowest_split(&self) -> usize {
        let mlps = self.layers.iter().map(|layer| layer.mlp.width());
        mlps.fold(self.vocab_size, usize::min)
    }
}

impl LayerSpec {
    /// Returns the layer's attention.
    pub fn attention(&self) -> &AttentionSpec {
        let Mixer::Attention(attention) = &self.mixer;
        attention
    }

    /// Returns the layer's attention, to change.
    pub fn attention_mut(&mut self) -> &mut AttentionSpec {
        let Mixer::Attention(attention) = &mut self.mixer;
        attention
    }
}

impl Mlp {
    /// Returns the number of columns between the projections.
    pub fn width(&self) -> usize {
        let Self::Gated(GatedMlpSpec { width, .. }) = self;
        *width
    }

    /// Returns the number of rows of all the MLP's matrices. Their other side is the residual
    /// stream.
    pub fn rows(&self) -> usize {
        3 * self.width()
    }
}

impl AttentionSpec {
    /// Returns plain attention: without window, norms and biases, with the usual scale and the
    /// rotary embedding of the first Llamas.
    pub fn dense(heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self {
            heads,
            kv_heads,
            head_dim,
            scale: (head_dim as f32).sqrt().recip(),
            window: None,
            rope: RopeConfig {
                theta: 10_000.0,
                scaling: RopeScaling::Default,
            },
            qk_norm: false,
            qkv_bias: false,
            output_bias: false,
        }
    }

    /// Returns the number of key/value heads that each of `tp_size` ranks holds. One copy of a
    /// key/value head serves all of the rank's query heads that share it.
    pub fn kv_heads_per_rank(&self, tp_size: usize) -> usize {
        let local = self.heads / tp_size;
        let group = self.heads / self.kv_heads;
        let (mut a, mut b) = (local, group);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        local / a
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_shown_without_its_task() {
        let shown = |class_name: &str| {
            let names = Architecture {
                class_name: class_name.to_owned(),
                model_type: "qwen3".to_owned(),
            };
            names.to_string()
        };
        assert_eq!(shown("Qwen3ForCausalLM"), "Qwen3");
        assert_eq!(shown("Other"), "Other");
    }
}
