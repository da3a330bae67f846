//! Loading of a head from files to a device.

use lockstep_backend::{Axis, Backend};
use lockstep_types::{DraftKind, DraftModel, ModelConfig};

use super::{Buffers, EagleHead, Sizes, hidden::Picks};
use crate::{
    CaptureSpec, FileAccess, ForwardLimits, LoadProgress, ModelError, Shard, Topology,
    blocks::LayerContext,
    checkpoint::{
        WeightCheck,
        found::locate,
        loader::Loader,
        source::{self, Source},
    },
    models::eagle::{self, Eagle, Present},
    runner::transformer::scaling,
};

impl<B: Backend> EagleHead<B> {
    /// Opens `draft.model.path`, checks and packs every tensor, and allocates the buffers.
    /// They hold passes of at most `limits.max_tokens` tokens, logits in blocks of
    /// `limits.logit_block_rows` rows, and roots of `requests` slots. `target` is the model
    /// that the head drafts for. The head is whole on this rank.
    ///
    /// # Errors
    /// [`ModelError`] names the problem with the files or the memory.
    pub fn load(
        backend: &mut B,
        draft: &DraftModel,
        target: &ModelConfig,
        requests: usize,
        limits: ForwardLimits,
        files: FileAccess,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, ModelError> {
        let (model, limits) = (&draft.model, limits.sensible());
        let shard = Shard::new(model, Topology::alone())?;
        let source = source::open(model, files)?;
        let source = source.as_ref();
        let vocab = eagle::vocab(draft, target);
        let present = present(source, draft, target)?;
        let listed = Eagle::listed(draft, target, present);
        let found = locate(source, &listed, model)?;
        let targets = targets(source, draft, target)?;
        let capture = CaptureSpec::of_draft(draft);
        let sizes = Sizes {
            features: capture.width(target.hidden_size),
            joined_norm: eagle::norms(draft).before_projection,
            layers: draft.layers_in_turn(),
            vocab,
            requests,
            limits,
        };
        let scaling = match present.head {
            true => None,
            false => scaling(&target.multipliers),
        };
        let ids = match backend.drafter() {
            Some(device) if !targets.is_empty() => Some(device.load_ids(&targets)?),
            _ => None,
        };
        source.read_ahead();
        let mut loader = Loader::checkpoint(source, &found, progress);
        Ok(Self {
            weights: loader.load(backend, &found)?,
            buffers: Buffers::new(backend, model, &shard, &sizes)?,
            inputs: backend.inputs(&limits.inputs())?,
            passes: (0..sizes.layers).map(|_| B::Passes::default()).collect(),
            picks: Picks::new(limits.max_tokens),
            context: LayerContext::new(backend, Axis::Alone, model, limits.positions)?,
            capture,
            hidden: model.hidden_size,
            vocab,
            limits,
            requests,
            numbers: (0..requests as u32).collect(),
            targets,
            scaling,
            ids,
            fed: 0,
            outputs: 0,
            turn: 0,
            sources: match sizes.layers {
                0 | 1 => Vec::new(),
                _ => Vec::with_capacity(limits.max_tokens),
            },
        })
    }
}

/// Checks the tensors of a head's checkpoint.
///
/// # Errors
/// The errors of [`EagleHead::load`] before a tensor is looked at.
pub(crate) fn check(draft: &DraftModel, target: &ModelConfig) -> Result<WeightCheck, ModelError> {
    let source = source::open(&draft.model, FileAccess::Mapped)?;
    let present = present(source.as_ref(), draft, target)?;
    let listed = Eagle::listed(draft, target, present);
    let mut found = WeightCheck::of(source.as_ref(), &listed, &draft.model);
    found
        .faults
        .extend(targets(source.as_ref(), draft, target).err());
    Ok(found)
}

/// Returns the optional tensors that the head's checkpoint has.
///
/// # Errors
/// [`ModelError::HeadWidth`] where the head reads tables or hidden states of another width
/// than its own; [`ModelError::NotAHead`] for a whole model.
fn present(
    source: &dyn Source,
    draft: &DraftModel,
    target: &ModelConfig,
) -> Result<Present, ModelError> {
    let (found, expected) = (draft.model.hidden_size, target.hidden_size);
    let same_width = || match found == expected {
        true => Ok(()),
        false => Err(ModelError::HeadWidth {
            folder: draft.model.path.clone(),
            found,
            expected,
        }),
    };
    let embedding = source.contains(eagle::EMBEDDING);
    let head = match &draft.kind {
        DraftKind::Eagle => {
            same_width()?;
            false
        }
        // Copies of the target's tables may lie beside a draft layer; the target's are read.
        DraftKind::Nextn { .. } => return Ok(Present::NONE),
        DraftKind::Eagle3 {
            draft_vocab_size,
            norms,
            ..
        } => {
            // A head over the target's whole vocabulary may leave its output head out. The
            // head reads the target's then.
            let own = *draft_vocab_size != target.vocab_size || source.contains(eagle::HEAD);
            // So does a head that norms each of the target's hidden states.
            if !embedding || !own || norms.of_layers {
                same_width()?;
            }
            own
        }
        DraftKind::Model | DraftKind::Dflash(_) => {
            return Err(ModelError::NotAHead {
                folder: draft.model.path.clone(),
            });
        }
    };
    Ok(Present {
        embedding,
        head,
        fc_bias: source.contains(eagle::FC_BIAS),
        input_norm: source.contains(&format!("{}.weight", eagle::INPUT_NORM)),
    })
}

/// Returns the target's token for each token of the head; empty where the two are the same.
/// EAGLE-3's `d2t` holds the distance from each draft token to the target's. Example: with a
/// `d2t` of 98, draft token 49 is the target's 147.
fn targets(
    source: &dyn Source,
    draft: &DraftModel,
    target: &ModelConfig,
) -> Result<Vec<u32>, ModelError> {
    let vocab = match draft.kind {
        DraftKind::Eagle3 {
            draft_vocab_size, ..
        } => draft_vocab_size,
        DraftKind::Model | DraftKind::Eagle | DraftKind::Nextn { .. } | DraftKind::Dflash(_) => {
            return Ok(Vec::new());
        }
    };
    if vocab == target.vocab_size && !source.contains("d2t") {
        return Ok(Vec::new());
    }
    let offsets = source.integers("d2t", vocab)?;
    let all = target.vocab_size as i64;
    let target = |(draft, offset): (i64, &i64)| {
        let target = draft.checked_add(*offset).filter(|t| (0..all).contains(t));
        target
            .and_then(|target| u32::try_from(target).ok())
            .ok_or_else(|| ModelError::Damaged {
                file: source.file_of("d2t"),
                reason: format!(
                    "d2t moves draft token {draft} by {offset}, out of the target's {all}"
                ),
            })
    };
    (0..).zip(&offsets).map(target).collect()
}
