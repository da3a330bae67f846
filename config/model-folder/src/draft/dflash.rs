//! DFlash's keys of a draft's `config.json`, as z-lab writes them.

use lockstep_types::{
    ConfigError, DflashSpec, DraftKind, DraftModel, ModelConfig, ModelConfigError, Multipliers,
};

use super::folder::{self, DFLASH, Folder};
use super::{OPTION, ends_like, loaded_like, made_for};
use crate::raw::Raw;

/// Keys of [`DFLASH`] that are read. Any other key that turns something on is refused.
const KEYS: [&str; 8] = [
    LAYERS,
    MASK,
    "mask_token",
    BLOCK,
    TARGET,
    SCALE,
    MULTIPLIER,
    SOFTCAP,
];
const LAYERS: &str = "target_layer_ids";
const MASK: &str = "mask_token_id";
const BLOCK: &str = "block_size";
const TARGET: &str = "num_target_layers";
const SCALE: &str = "input_embedding_scale";
const MULTIPLIER: &str = "output_multiplier";
const SOFTCAP: &str = "final_logit_softcapping";
const CAUSAL: &str = "is_causal";
const CLASS: &str = "DFlashDraftModel";

/// Size of a block if none is named, as in z-lab's code.
const USUAL_BLOCK: usize = 16;

/// Reads a DFlash model that was made for `target`.
///
/// # Errors
/// [`ConfigError::File`]: a key is missing or damaged, asks for a feature that is not served, or
/// belongs to another target.
pub(super) fn read(folder: &Folder, target: &ModelConfig) -> Result<DraftModel, ConfigError> {
    let (path, config) = (&folder.path, &folder.config);
    let damaged = |error| folder::damaged(path, error);
    let keys = Keys::of(config).map_err(damaged)?;
    let mut model = crate::model::dflash(path, config).map_err(damaged)?;
    keys.check_target(target).map_err(damaged)?;
    made_for(path, "draft model", &model, target)?;
    if target.multipliers.residual != 1.0 {
        return Err(ConfigError::file(
            OPTION,
            path,
            format!(
                "DFlash models are not served for {} models, whose residual stream has a factor \
                 of its own. Give a smaller model of the family, or another \
                 --speculative-algorithm.",
                target.architecture
            ),
        ));
    }
    for table in ["embed_tokens.weight", "lm_head.weight"] {
        if folder.has(table) {
            return Err(ConfigError::file(
                OPTION,
                path,
                format!(
                    "has `{table}`: DFlash models with tables of tokens of their own are not \
                     served. Give one that reads the target's."
                ),
            ));
        }
    }
    model.names = model.names.moved("model.", "");
    model.multipliers = keys.multipliers().map_err(damaged)?;
    let spec = DflashSpec {
        block_size: keys.block_size().map_err(damaged)?,
        mask_token_id: keys.mask(target.vocab_size).map_err(damaged)?,
        capture_layers: keys.captured(target.layers.len()).map_err(damaged)?,
        causal: causal(config, &model).map_err(damaged)?,
    };
    ends_like(&mut model, target);
    loaded_like(&mut model, target);
    Ok(DraftModel {
        model,
        kind: DraftKind::Dflash(spec),
        own_embedding: false,
        own_head: false,
    })
}

/// The keys inside of [`DFLASH`], and those outside.
struct Keys<'a> {
    inner: Option<Raw>,
    outer: &'a Raw,
}

impl<'a> Keys<'a> {
    /// Finds the keys, and refuses those of other generations by name.
    fn of(outer: &'a Raw) -> Result<Self, ModelConfigError> {
        if folder::class_of(outer).is_some_and(|class| class != CLASS) {
            let remedy = format!("of DFlash's models {CLASS} is served");
            return Err(outer.unsupported("architectures", remedy));
        }
        let inner = outer.object(DFLASH)?;
        if let Some(inner) = &inner
            && let Some(key) = inner.keys().find(|key| !KEYS.contains(key))
        {
            let remedy = "it changes what is drafted; give a model without it";
            return Err(inner.unsupported(key, remedy));
        }
        Ok(Self { inner, outer })
    }

    /// Returns the object that has `key`, the inner one first.
    fn with(&self, key: &str) -> &Raw {
        let inner = self.inner.as_ref();
        inner
            .filter(|inner| inner.get(key).is_some())
            .unwrap_or(self.outer)
    }

    fn check_target(&self, target: &ModelConfig) -> Result<(), ModelConfigError> {
        let (raw, layers) = (self.with(TARGET), target.layers.len());
        match raw.size(TARGET)? {
            Some(found) if found != layers => {
                let message = format!(
                    "is {found}, and the target has {layers} layers; give the draft trained for \
                     this model"
                );
                Err(raw.wrong(TARGET, message))
            }
            _ => Ok(()),
        }
    }

    fn block_size(&self) -> Result<usize, ModelConfigError> {
        let raw = self.with(BLOCK);
        match raw.size(BLOCK)?.unwrap_or(USUAL_BLOCK) {
            1 => Err(raw.wrong(
                BLOCK,
                "is 1, the known token alone; nothing would be drafted",
            )),
            size => Ok(size),
        }
    }

    /// Reads the mask token, whose embedding is the target's.
    fn mask(&self, vocab: usize) -> Result<u32, ModelConfigError> {
        let raw = self.with(MASK);
        match raw.token_ids(MASK)?.as_slice() {
            [token] if (*token as usize) < vocab => Ok(*token),
            [token] => {
                let message = format!("is {token}, and the target has {vocab} tokens");
                Err(raw.wrong(MASK, message))
            }
            _ => Err(raw.wrong(MASK, "is missing: name the token that stands for drafts")),
        }
    }

    /// Reads the layers whose output the draft reads, and returns the layers behind them, whose
    /// input that is.
    fn captured(&self, num_layers: usize) -> Result<Vec<usize>, ModelConfigError> {
        let raw = self.with(LAYERS);
        let layers: Vec<_> = raw
            .token_ids(LAYERS)?
            .into_iter()
            .map(|id| (id as usize).saturating_add(1))
            .collect();
        let inside = layers.last().is_some_and(|last| *last < num_layers);
        if inside && layers.is_sorted_by(|one, next| one < next) {
            return Ok(layers);
        }
        let message = format!(
            "must name layers in ascending order, of the target's {num_layers} and not the last"
        );
        Err(raw.wrong(LAYERS, message))
    }

    /// Reads the factors of embeddings and of logits.
    fn multipliers(&self) -> Result<Multipliers, ModelConfigError> {
        let number = |key| self.with(key).number(key);
        Ok(Multipliers {
            embedding: number(SCALE)?.map_or(1.0, |scale| scale as f32),
            logits: number(MULTIPLIER)?.map_or(1.0, |factor| (1.0 / factor) as f32),
            logit_softcap: self.softcap()?,
            ..Multipliers::default()
        })
    }

    /// Reads the bound of logits; zero is none.
    fn softcap(&self) -> Result<Option<f32>, ModelConfigError> {
        let raw = self.with(SOFTCAP);
        if raw
            .get(SOFTCAP)
            .is_some_and(|cap| cap.as_f64() == Some(0.0))
        {
            return Ok(None);
        }
        Ok(raw.number(SOFTCAP)?.map(|cap| cap as f32))
    }
}

/// Says of each layer if a token of a block sees no later one. Unless the file says so of all
/// layers, those with sliding windows are causal and others are not.
fn causal(config: &Raw, model: &ModelConfig) -> Result<Vec<bool>, ModelConfigError> {
    let types = config.get("layer_types").and_then(|types| types.as_array());
    let slides = |number: usize| {
        let named = types.and_then(|types| types.get(number));
        let attention = model.layers[number].attention();
        let window = attention.is_some_and(|attention| attention.window.is_some());
        window || named.is_some_and(|kind| kind == "sliding_attention")
    };
    let windows = model.attentions().any(|layer| layer.window.is_some());
    let said = match config.get(CAUSAL) {
        None => None,
        Some(_) => Some(config.flag(CAUSAL, false)?),
    };
    if said == Some(false) && windows {
        let remedy = "layers with sliding windows are served where a token of a block sees no \
                      later one; leave the key out or set it to true";
        return Err(config.unsupported(CAUSAL, remedy));
    }
    let layers = 0..model.layers.len();
    Ok(layers
        .map(|number| said.unwrap_or_else(|| slides(number)))
        .collect())
}
