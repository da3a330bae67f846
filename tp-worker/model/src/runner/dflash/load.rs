//! Loading of a DFlash model from files to a device.

use lockstep_backend::{Axis, Backend};
use lockstep_types::{DraftKind, DraftModel, ModelConfig};

use super::{Buffers, DflashModel, Sizes};
use crate::{
    CaptureSpec, FileAccess, ForwardLimits, LoadProgress, ModelError, Shard, Topology,
    blocks::LayerContext,
    checkpoint::{found::locate, loader::Loader, source},
    models::dflash::Dflash,
    runner::transformer::scaling,
};

impl<B: Backend> DflashModel<B> {
    /// Opens `draft.model.path`, checks and packs every tensor, and allocates the buffers.
    /// They hold passes of at most `limits.max_tokens` tokens, and logits in blocks of
    /// `limits.logit_block_rows` rows. `target` is the model that the draft was made for. The
    /// draft is whole on this rank.
    ///
    /// # Errors
    /// [`ModelError`] names the problem with the files or the memory.
    pub fn load(
        backend: &mut B,
        draft: &DraftModel,
        target: &ModelConfig,
        limits: ForwardLimits,
        files: FileAccess,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, ModelError> {
        let model = &draft.model;
        let DraftKind::Dflash(spec) = &draft.kind else {
            return Err(ModelError::NotDflash {
                folder: model.path.clone(),
            });
        };
        let limits = Sizes::limits(spec, limits);
        let shard = Shard::new(model, Topology::alone())?;
        let source = source::open(model, files)?;
        let source = source.as_ref();
        let found = locate(source, &Dflash::listed(draft, target), model)?;
        let capture = CaptureSpec::of_draft(draft);
        let sizes = Sizes {
            features: capture.width(target.hidden_size),
            vocab: target.vocab_size,
            limits,
        };
        source.read_ahead();
        let mut loader = Loader::checkpoint(source, &found, progress);
        let causal = spec.causal.contains(&true);
        Ok(Self {
            weights: loader.load(backend, &found)?,
            buffers: Buffers::new(backend, model, &shard, &sizes)?,
            inputs: backend.inputs(&limits.inputs())?,
            causal: match causal {
                true => Some(backend.inputs(&limits.inputs())?),
                false => None,
            },
            rows: Vec::with_capacity(limits.requests),
            context: LayerContext::new(backend, Axis::Alone, model, limits.positions)?,
            vocab: target.vocab_size,
            scaling: scaling(&model.multipliers),
            spec: spec.clone(),
            model: model.clone(),
            shard,
            capture,
            limits,
            outputs: 0,
        })
    }
}
