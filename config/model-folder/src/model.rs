//! From `config.json` to [`ModelConfig`].

use std::path::Path;

use lockstep_files::{is_gguf, shown, weights::tensor_names};
use lockstep_types::{
    CheckpointFormat, LayerSpec, LoadFormat, Mixer, ModelConfig, ModelConfigError, NormKind,
    Quantization,
};

use crate::families::{self, Family, TextModel};
use crate::raw::Raw;
use crate::{checkpoint, head, scales, tokenizer};

/// Largest believable number of parameters; larger sizes are damage.
const LARGEST_MODEL: f64 = 1e14;

/// Reads a Hugging Face model folder, as written by transformers 4 and 5.
///
/// # Errors
/// Fails when a file is missing or damaged, or the model needs something that is
/// not served; the error names the key and the remedy.
pub fn load(dir: &Path) -> Result<ModelConfig, ModelConfigError> {
    Ok(Described::of(dir)?.with_weights()?.with_tokenizer()?.model)
}

/// A model as its folder describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Described {
    /// The model.
    pub model: ModelConfig,
    /// Notes for the operator.
    pub notes: Vec<String>,
    /// True if the folder has a draft layer of the model's own that is served (NEXTN).
    pub own_draft: bool,
    /// True if the model is the text model of a multimodal one, whose tensors may have other
    /// prefixes.
    wrapped: bool,
}

impl Described {
    /// Reads `config.json` and `generation_config.json`.
    ///
    /// # Errors
    /// The errors of [`load`].
    pub fn of(dir: &Path) -> Result<Self, ModelConfigError> {
        let config = Raw::read(dir, "config.json")?;
        let TextModel {
            family,
            config,
            wrapper,
        } = TextModel::of(config)?;
        let model = build(dir, &config, family)?;
        let note = |wrapper: &families::Wrapper| {
            format!(
                "of {} the text model is served ({}): requests may have text alone",
                wrapper.class_name, model.architecture
            )
        };
        let notes = wrapper.map(note).into_iter();
        Ok(Self {
            notes: notes.chain(checkpoint::note(&model.checkpoint)).collect(),
            own_draft: own_draft(&config, family, &model),
            wrapped: wrapper.is_some(),
            model,
        })
    }

    /// Finds the prefix of a wrapped text model's tensors, and the form of stacked experts. They
    /// depend on the age of the files alone, so they are read from the names that are stored. Of a
    /// checkpoint of 8-bit floats, also finds the projections that are no such floats, and reads
    /// the factors of layers. Missing or damaged weights are reported by the code that loads them.
    ///
    /// # Errors
    /// [`ModelConfigError::Malformed`] if a factor of a layer is missing or wrong.
    pub fn with_names(mut self) -> Result<Self, ModelConfigError> {
        let stored = || tensor_names(&self.model.path).ok().flatten();
        let stacked = self.model.has_stacked_experts();
        if (self.wrapped || stacked)
            && let Some(stored) = stored()
        {
            if self.wrapped {
                self.model.names = families::stored_names(&self.model.names, &stored);
            }
            families::stored_experts(&mut self.model, &stored);
        }
        self.notes.extend(checkpoint::read_stored(&mut self.model));
        scales::read(&mut self.model)?;
        Ok(self)
    }

    /// Looks at the stored tensors: finds their names like [`Self::with_names`], then compares
    /// the output head with the embedding. If `config.json` ties the head to the embedding and
    /// another head is stored, the stored head counts, as in transformers 5 and vLLM. Equal
    /// tables are read whole, others up to the first difference.
    ///
    /// # Errors
    /// [`ModelConfigError::Malformed`] if the tables can't be read, or a factor of a layer. Missing or damaged weights
    /// are reported by the code that loads them.
    pub fn with_weights(self) -> Result<Self, ModelConfigError> {
        let mut named = self.with_names()?;
        let (dir, names) = (&named.model.path, &named.model.names);
        if named.model.tie_word_embeddings
            && head::differs(dir, names).map_err(|error| ModelConfigError::Malformed {
                path: dir.clone(),
                message: format!("its weights can't be read: {}", shown(&error.to_string())),
            })?
        {
            named.model.tie_word_embeddings = false;
            named.notes.push(format!(
                "the stored output head ({}.weight) is served, as it differs from the \
                 embedding, though config.json has `tie_word_embeddings` true; set that to false",
                named.model.names.head
            ));
        }
        Ok(named)
    }

    /// Adds the tokenizer's own end token. It ends texts beside the end tokens of
    /// `generation_config.json` and `config.json`, as in vLLM, SGLang and llama.cpp. A token
    /// that is in no vocabulary is never sampled, so it ends nothing.
    ///
    /// # Errors
    /// [`ModelConfigError`]: a file of the tokenizer can't be read.
    pub fn with_tokenizer(self) -> Result<Self, ModelConfigError> {
        let Self {
            model,
            mut notes,
            own_draft,
            wrapped,
        } = self;
        let own = tokenizer::end_token(&model.path)?;
        let id = own.as_ref().and_then(|token| token.id);
        let id = id.filter(|id| (*id as usize) < model.vocab_size);
        if let (Some(token), None) = (&own, id) {
            notes.push(format!(
                "the tokenizer's `eos_token` {} ends nothing: it is not in the model's vocabulary",
                shown(&format!("{:?}", token.text))
            ));
        }
        let model = model.with_tokenizer_eos(id);
        if model.eos_token_ids.is_empty() {
            notes.push(
                "no token ends an answer, as no file of the model names one: give \
                 generation_config.json an `eos_token_id`, or requests `stop_token_ids`"
                    .to_owned(),
            );
        }
        Ok(Self {
            model,
            notes,
            own_draft,
            wrapped,
        })
    }
}

/// Returns true if the model has a draft layer of its own that is served.
fn own_draft(config: &Raw, family: &Family, model: &ModelConfig) -> bool {
    if model.checkpoint != CheckpointFormat::Floats {
        return false;
    }
    let read = family.traits.draft_layer;
    match read.map(|read| read(config, &model.layers, &model.names)) {
        Some(Ok(Some(draft))) => draft.missing(&model.path).is_none(),
        _ => false,
    }
}

/// Reads the `config.json` of a DFlash model. Its layers are a Qwen3's, whatever its target is.
///
/// # Errors
/// [`ModelConfigError`]: a key is missing or damaged, or asks for a feature that is not served.
pub(crate) fn dflash(dir: &Path, config: &Raw) -> Result<ModelConfig, ModelConfigError> {
    if checkpoint::of_folder(dir, config)? != CheckpointFormat::Floats {
        let remedy = "quantized drafts are not served; use an unquantized one";
        return Err(config.unsupported(checkpoint::KEY, remedy));
    }
    let config = families::of_dflash(config.clone());
    build(dir, &config, families::OF_DFLASH)
}

/// Reads the `config.json` of a draft head. Its layer is a Llama's, whatever the architecture's
/// name is.
///
/// # Errors
/// [`ModelConfigError`]: a key is missing or damaged, or asks for a feature that is not served.
pub(crate) fn head(dir: &Path, config: &Raw) -> Result<ModelConfig, ModelConfigError> {
    // Many heads have their target's list, whose layers are not theirs.
    let mut config = config.clone();
    config.put("layer_types", serde_json::Value::Null);
    if checkpoint::of_folder(dir, &config)? != CheckpointFormat::Floats {
        let remedy = "quantized heads are not served; use an unquantized one";
        return Err(config.unsupported(checkpoint::KEY, remedy));
    }
    build(dir, &config, families::OF_HEADS)
}

fn build(dir: &Path, config: &Raw, family: &Family) -> Result<ModelConfig, ModelConfigError> {
    let vocab_size = config.required("vocab_size")?;
    let (eos_token_ids, bos_token_id) = special_tokens(dir, config, vocab_size)?;
    let model = ModelConfig {
        path: dir.to_owned(),
        load_format: LoadFormat::Auto,
        checkpoint: checkpoint::of_folder(dir, config)?,
        quantization: Quantization::None,
        architecture: family.architecture(),
        names: (family.names)(),
        hidden_size: config.required("hidden_size")?,
        layers: (family.layers)(config)?,
        vocab_size,
        per_layer: (family.traits.per_layer)(config)?,
        max_position_embeddings: config.required("max_position_embeddings")?,
        norm: norm(dir, family),
        rms_norm_eps: families::norm_eps(config, family.traits.norm_eps)?,
        multipliers: (family.traits.multipliers)(config)?,
        // Families whose class ties the head say so among their class's values.
        tie_word_embeddings: config.flag("tie_word_embeddings", false)?,
        eos_token_ids,
        tokenizer_eos_id: None,
        bos_token_id,
    };
    believable(config, &model)?;
    checkpoint::check(config, &model)?;
    Ok(model)
}

/// Kind of a model's norms. In GGUF files one is added to weights already.
fn norm(dir: &Path, family: &Family) -> NormKind {
    match family.traits.norm {
        NormKind::RmsUnitOffset if is_gguf(dir) => NormKind::Rms,
        kind => kind,
    }
}

/// End tokens, sorted and within the vocabulary, and the begin token.
fn special_tokens(
    dir: &Path,
    config: &Raw,
    vocab_size: usize,
) -> Result<(Vec<u32>, Option<u32>), ModelConfigError> {
    let mut ends = config.token_ids("eos_token_id")?;
    let mut bos = config.token_ids("bos_token_id")?;
    if let Some(generation) = Raw::read_optional(dir, "generation_config.json")? {
        ends.extend(generation.token_ids("eos_token_id")?);
        bos.extend(generation.token_ids("bos_token_id")?);
    }
    // A token beyond the vocabulary is never sampled, so it ends nothing.
    let known = |id: &u32| (*id as usize) < vocab_size;
    ends.retain(known);
    ends.sort_unstable();
    ends.dedup();
    Ok((ends, bos.into_iter().find(known)))
}

/// Rejects sizes whose products would overflow.
fn believable(config: &Raw, model: &ModelConfig) -> Result<(), ModelConfigError> {
    let hidden = model.hidden_size as f64;
    let layer = |layer: &LayerSpec| {
        let rows = match &layer.mixer {
            Mixer::Attention(own) => 4.0 * own.heads as f64 * own.head_dim as f64,
            Mixer::LatentAttention(own) => {
                let heads = own.heads as f64 * (own.query() + own.value) as f64;
                let latents = (own.latent + own.query_latent.unwrap_or(0)) as f64;
                heads + latents + own.rotated as f64 + heads * latents / hidden
            }
            Mixer::GatedDelta(delta) => {
                let keys = 2.0 * delta.key_heads as f64 * delta.key_dim as f64;
                let values = delta.value_heads as f64 * delta.value_dim as f64;
                // A state's matrices count like parameters.
                keys + 3.0 * values + values * delta.key_dim as f64 / hidden
            }
            Mixer::Mamba2(mamba) => {
                let groups = 2.0 * mamba.groups as f64 * mamba.state_dim as f64;
                let values = mamba.heads as f64 * (mamba.head_dim + 1) as f64;
                groups + 3.0 * values + values * mamba.state_dim as f64 / hidden
            }
            Mixer::ShortConvolution(short) => 4.0 * short.channels as f64,
            Mixer::None => 0.0,
        };
        rows + layer.mlp.rows() as f64
    };
    let layers: f64 = model.layers.iter().map(layer).sum();
    let per_layer = model.per_layer.as_ref().map_or(0.0, |own| {
        let rows = own.rows as f64 / hidden + 3.0;
        rows * own.width as f64 * model.layers.len() as f64
    });
    let parameters = hidden * (layers + per_layer + 2.0 * model.vocab_size as f64);
    if parameters > LARGEST_MODEL {
        let message = format!("and other sizes amount to {parameters:.0e} parameters");
        return Err(config.wrong("hidden_size", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
