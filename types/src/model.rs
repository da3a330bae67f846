//! A model's description.

mod heads;
mod latent;
mod mixer;
mod mlp;
mod multipliers;
mod per_layer;
mod rope;

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    CheckpointFormat, GroupFormat, LoadFormat, MatrixRole, ModuleForm, Quantization, TensorNames,
    WeightFormat,
};

pub use latent::{LatentAttentionNames, LatentAttentionSpec};
pub use mixer::{
    AttentionNames, AttentionSpec, GatedDeltaInputs, GatedDeltaNames, GatedDeltaSpec, Mamba2Names,
    Mamba2Spec, Mixer, QkNorm, ShortConvolutionNames, ShortConvolutionSpec, Values,
};
pub use mlp::{
    Activation, ExpertGate, ExpertGroups, ExpertTensors, ExpertsNames, ExpertsSpec, GatedMlpNames,
    GatedMlpSpec, GroupWorth, Mlp, ParallelMlpNames, ParallelMlpSpec, PlainMlpNames, PlainMlpSpec,
    RouterWeights, Routing, SharedExpert,
};
pub use multipliers::Multipliers;
pub use per_layer::PerLayerEmbeddings;
pub use rope::{LongRope, QueryScaling, RopeConfig, RopeScaling};

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
    /// Form of its weight matrices in its files.
    pub checkpoint: CheckpointFormat,
    /// Rounding of its weight matrices.
    pub quantization: Quantization,
    /// The family.
    pub architecture: Architecture,
    /// Names of its tensors outside of blocks.
    pub names: TensorNames,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Transformer layers, from the embedding to the output head.
    pub layers: Vec<LayerSpec>,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Embeddings that each layer has for itself; `None` in most models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_layer: Option<PerLayerEmbeddings>,
    /// Longest sequence that the positions cover.
    pub max_position_embeddings: usize,
    /// Kind of all norms of the residual stream and of heads.
    pub norm: NormKind,
    /// Added to the mean square, or to the variance, in the norm before the output head.
    pub rms_norm_eps: f32,
    /// Fixed factors beside the weights.
    pub multipliers: Multipliers,
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

/// One transformer layer: a mixer over positions, then an MLP. Both add to the residual stream. A
/// layer may have one of them alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerSpec {
    /// Block that mixes positions.
    pub mixer: Mixer,
    /// Block that mixes columns.
    pub mlp: Mlp,
    /// Places of its norms.
    pub norms: Norms,
    /// Added to the mean square, or to the variance, in the layer's norms.
    pub rms_norm_eps: f32,
    /// Factor of the residual stream behind the layer; one in most families.
    pub scale: f32,
}

/// Kind of a model's norms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// RMS norm (Zhang and Sennrich, arXiv:1910.07467): `x / rms(x) · w`.
    #[default]
    Rms,
    /// RMS norm whose weights are stored as distances from one: `x / rms(x) · (1 + w)`.
    RmsUnitOffset,
    /// Layer norm with a bias (Ba et al., arXiv:1607.06450).
    Layer,
}

/// Places of a layer's norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Norms {
    /// Pre-norm: each block, the mixer and the MLP, reads a norm of the residual stream.
    Before,
    /// Each block reads the residual stream as it is, and a norm of its output is added.
    After,
    /// Sandwich norm: each block reads a norm of the residual stream, and a norm of its output
    /// is added.
    Around,
}

impl Norms {
    /// Returns true if blocks read a norm of the residual stream.
    pub fn before(self) -> bool {
        self != Self::After
    }

    /// Returns true if the outputs of blocks are normed.
    pub fn after(self) -> bool {
        self != Self::Before
    }
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

    /// Returns the fewest experts of a layer that has some; 0 if none has.
    pub fn fewest_experts(&self) -> usize {
        let experts = self.experts().map(|experts| experts.count);
        experts.min().unwrap_or(0)
    }

    /// Returns true if experts can be split by number: a shared one is a gated MLP of its own then.
    pub fn splits_experts_by_number(&self) -> bool {
        let apart = |experts: &ExpertsSpec| experts.gate == ExpertGate::Silu;
        self.experts()
            .all(|experts| experts.shared.is_none() || apart(experts))
    }

    /// Returns the numbers of groups of ranks, ascending, over which the experts of the model can be
    /// split by number on `ranks` ranks. All groups have as many ranks, and each has an expert of
    /// every mixture. 1 is always among them: ranks split each expert inside.
    pub fn ep_sizes(&self, ranks: usize) -> Vec<usize> {
        let splits = self.splits_experts_by_number();
        let most = if splits { self.fewest_experts() } else { 1 };
        let groups = 1..=ranks.min(most.max(1));
        groups
            .filter(|groups| ranks.is_multiple_of(*groups))
            .collect()
    }

    /// Returns true if the output of an attention, or of a shared expert, has a gate.
    pub fn has_output_gates(&self) -> bool {
        let gated = |shared: &SharedExpert| shared.gate.is_some();
        self.attentions().any(|layer| layer.output_gate)
            || self
                .experts()
                .any(|layer| layer.shared.as_deref().is_some_and(gated))
    }

    /// Returns true if a layer has experts in stacks.
    pub fn has_stacked_experts(&self) -> bool {
        let stacked =
            |experts: &ExpertsSpec| matches!(experts.names.experts, ExpertTensors::Stacked { .. });
        self.experts().any(stacked)
    }

    /// Returns the mixtures of experts, in the order of layers.
    fn experts(&self) -> impl Iterator<Item = &ExpertsSpec> {
        self.layers.iter().filter_map(|layer| layer.mlp.experts())
    }

    /// Returns the format on a device of whole matrices of `role`. A rank's parts, and
    /// exceptions of the checkpoint, may have others. Of a GGUF file, it is that of most matrices.
    pub fn weight_format(&self, role: MatrixRole) -> WeightFormat {
        let floats = WeightFormat::of(self.quantization, role);
        if let (Some(_), MatrixRole::Projection, WeightFormat::Float) =
            (self.checkpoint.mxfp4(), role, floats)
        {
            return WeightFormat::Mxfp4;
        }
        let form = match &self.checkpoint {
            CheckpointFormat::Floats | CheckpointFormat::Mxfp4(_) => ModuleForm::Floats,
            CheckpointFormat::Fp8(_) => ModuleForm::Fp8,
            CheckpointFormat::Integers(integers) => integers.form(""),
            CheckpointFormat::Gguf(gguf) => {
                gguf.usual().map_or(ModuleForm::Floats, ModuleForm::Blocks)
            }
        };
        match role {
            MatrixRole::Projection if floats == WeightFormat::Float => self
                .stored_format(form, 0)
                .unwrap_or(WeightFormat::Dequantized),
            _ => floats,
        }
    }

    /// Returns the format on a device in which a matrix of the form `form` stays what it is in
    /// the checkpoint, as a rank's part that begins at column `first`. `None` if no format but
    /// 32-bit floats has its values.
    pub fn stored_format(&self, form: ModuleForm, first: usize) -> Option<WeightFormat> {
        match form {
            ModuleForm::Floats => Some(WeightFormat::Float),
            ModuleForm::Fp8 => {
                let group = self.checkpoint.fp8()?.group(first)?;
                Some(WeightFormat::Fp8 { group })
            }
            ModuleForm::Blocks(own) => {
                let layout = own.group_format().of_part(first)?;
                Some(WeightFormat::Groups(layout))
            }
            ModuleForm::Integers(form) => {
                let layout = form.layout()?;
                if form.group.is_none() {
                    return Some(WeightFormat::Groups(layout));
                }
                // Short groups have no codes of 4 bits on devices.
                let wide = GroupFormat { bits: 8, ..layout };
                let layout = layout.of_part(first).or_else(|| wide.of_part(first))?;
                Some(WeightFormat::Groups(layout))
            }
        }
    }

    /// Returns the config of a server whose longest text has `served` tokens.
    #[must_use]
    pub fn serving(mut self, served: usize) -> Self {
        for layer in &mut self.layers {
            if let Some(long) = layer.mixer.rope_mut().and_then(|rope| rope.long.as_mut()) {
                long.served = served;
            }
        }
        self
    }

    /// Returns the number of tokens of the longest text that is served, where that decides over
    /// the rotation; `None` elsewhere.
    pub fn served(&self) -> Option<usize> {
        let mut ropes = self.ropes();
        ropes.find_map(|rope| Some(rope.long.as_ref()?.served))
    }

    /// Returns the number by which the residual stream is kept divided before layer `number`, so
    /// that blocks add their outputs without a factor. Norms of the stream take no notice of it.
    /// Example: behind layers of the scales 0.5 and 0.8 it is 0.4.
    pub fn stream_divisor(&self, number: usize) -> f32 {
        let layers = self.layers.iter().take(number);
        layers.fold(self.multipliers.residual, |divisor, layer| {
            let divisor = divisor * layer.scale;
            divisor / layer.rescale(divisor)
        })
    }

    /// Returns the factor of the divided stream behind layer `number`, a power of two: the scales
    /// of many layers would take the stream out of the range of floats. `None` behind most layers.
    pub fn stream_rescale(&self, number: usize) -> Option<f32> {
        let layer = self.layers.get(number)?;
        let factor = layer.rescale(self.stream_divisor(number) * layer.scale);
        (factor != 1.0).then_some(factor)
    }

    /// Returns the rotation of each layer that has one.
    pub fn ropes(&self) -> impl Iterator<Item = &RopeConfig> {
        self.layers.iter().filter_map(|layer| layer.mixer.rope())
    }

    /// Returns the attention of each layer that has latent attention.
    pub fn latent_attentions(&self) -> impl Iterator<Item = &LatentAttentionSpec> {
        self.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::LatentAttention(latent) => Some(latent),
            Mixer::Attention(_)
            | Mixer::GatedDelta(_)
            | Mixer::Mamba2(_)
            | Mixer::ShortConvolution(_)
            | Mixer::None => None,
        })
    }

    /// Returns the attention of each layer that has grouped-query attention.
    pub fn attentions(&self) -> impl Iterator<Item = &AttentionSpec> {
        self.layers.iter().filter_map(LayerSpec::attention)
    }

    /// Returns the layers of the gated delta rule, in their order.
    pub fn gated_deltas(&self) -> impl Iterator<Item = &GatedDeltaSpec> {
        self.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::GatedDelta(delta) => Some(delta),
            Mixer::Attention(_)
            | Mixer::LatentAttention(_)
            | Mixer::Mamba2(_)
            | Mixer::ShortConvolution(_)
            | Mixer::None => None,
        })
    }

    /// Returns the least number of columns of an MLP that all ranks divide. Experts that are split
    /// by number over `ep_size` groups of ranks have as many columns for each group.
    pub fn narrowest_mlp(&self, ep_size: usize) -> usize {
        let of_experts = |experts: &ExpertsSpec| {
            let shared = experts.shared.as_ref();
            let shared = shared.filter(|shared| ep_size > 1 || shared.gate.is_some());
            let shared = shared.map_or(usize::MAX, |shared| shared.width);
            experts.width.saturating_mul(ep_size).min(shared)
        };
        let columns = |layer: &LayerSpec| match &layer.mlp {
            Mlp::Gated(_) | Mlp::Plain(_) => layer.mlp.width(),
            Mlp::None => usize::MAX,
            Mlp::Experts(experts) => of_experts(experts),
            Mlp::Parallel(both) => both.gated.width.min(of_experts(&both.experts)),
        };
        let mlps = self.layers.iter().map(columns);
        mlps.min().unwrap_or(usize::MAX)
    }

    /// Returns the largest number of ranks of which each has a part of every MLP and of the
    /// vocabulary, with experts split by number over `ep_size` groups.
    pub fn most_ranks(&self, ep_size: usize) -> usize {
        self.narrowest_mlp(ep_size).min(self.vocab_size)
    }
}

/// Least divisor of the residual stream, and the inverse of the largest.
const LEAST_DIVISOR: f32 = 1.0 / (1 << 20) as f32;

impl LayerSpec {
    /// Returns the power of two by which the stream's `divisor` behind this layer is divided: one
    /// if the divisor is near enough to one, or if the layer has no scale.
    fn rescale(&self, divisor: f32) -> f32 {
        let near = (LEAST_DIVISOR..=LEAST_DIVISOR.recip()).contains(&divisor);
        match near || self.scale == 1.0 {
            true => 1.0,
            // The exponent alone, without the bits of the mantissa.
            false => f32::from_bits(divisor.to_bits() & 0x7f80_0000),
        }
    }

    /// Returns the layer's grouped-query attention, if it has one.
    pub fn attention(&self) -> Option<&AttentionSpec> {
        match &self.mixer {
            Mixer::Attention(attention) => Some(attention),
            Mixer::LatentAttention(_)
            | Mixer::GatedDelta(_)
            | Mixer::Mamba2(_)
            | Mixer::ShortConvolution(_)
            | Mixer::None => None,
        }
    }

    /// Returns the layer's grouped-query attention, to change.
    pub fn attention_mut(&mut self) -> Option<&mut AttentionSpec> {
        match &mut self.mixer {
            Mixer::Attention(attention) => Some(attention),
            Mixer::LatentAttention(_)
            | Mixer::GatedDelta(_)
            | Mixer::Mamba2(_)
            | Mixer::ShortConvolution(_)
            | Mixer::None => None,
        }
    }
}

#[cfg(test)]
mod tests;
