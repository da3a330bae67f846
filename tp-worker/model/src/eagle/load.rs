//! From files to a head on a device.

use lockstep_backend::{Axis, Backend, MatrixRole};
use lockstep_types::{DraftModel, ModelConfig};

use super::{
    Buffers, EagleHead, Sizes, Wiring,
    hidden::Picks,
    host::{HostHead, HostWiring},
};
use crate::{
    CaptureSpec, FileAccess, ForwardLimits, LoadProgress, ModelError, Shard, Topology, Weights,
    layer::LayerShape,
    loader::{self, Loader},
};

impl<B: Backend> EagleHead<B> {
    /// Opens `draft.model.path`, checks and packs every tensor and allocates
    /// the buffers: passes of at most `limits.max_tokens` tokens, logits in
    /// blocks of `limits.logit_block_rows`, roots for `requests` slots. `target`
    /// is the model it drafts for. The head is whole on this rank.
    ///
    /// # Errors
    /// [`ModelError`]: what is wrong with the files or the memory.
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
        let weights = Weights::of(model, files)?;
        let host = HostHead::describe(&weights, draft, target, &shard)?;
        let capture = CaptureSpec::of_draft(draft);
        let sizes = Sizes {
            features: capture.width(target.hidden_size),
            vocab: host.vocab,
            requests,
            limits,
        };
        let ids = match backend.drafter() {
            Some(device) if !host.targets.is_empty() => Some(device.load_ids(&host.targets)?),
            _ => None,
        };
        weights.read_ahead();
        let mut loader = Loader::checkpoint(&weights, host.matrices(), progress);
        let mut table = |backend: &mut B, table: &Option<_>| {
            let load = |table| loader.matrix(backend, table, MatrixRole::Vocabulary);
            table.as_ref().map(load).transpose()
        };
        Ok(Self {
            embedding: table(backend, &host.embedding)?,
            head: table(backend, &host.head)?,
            fc: loader.matrix(backend, &host.fc, MatrixRole::Projection)?,
            fc_bias: loader::vector(backend, host.fc_bias.as_ref())?,
            layer: loader.layer(backend, &host.layer)?,
            wiring: Wiring::load(backend, &host.wiring)?,
            buffers: Buffers::new(backend, model, &shard, &sizes)?,
            inputs: backend.inputs(&limits.inputs())?,
            passes: B::Passes::default(),
            picks: Picks::new(limits.max_tokens),
            shape: LayerShape::new(backend, Axis::Alone, model, &shard, limits.positions)?,
            capture,
            hidden: model.hidden_size,
            vocab: host.vocab,
            limits,
            requests,
            numbers: (0..requests as u32).collect(),
            targets: host.targets,
            ids,
            fed: 0,
            outputs: 0,
        })
    }
}

impl<B: Backend> Wiring<B> {
    fn load(backend: &mut B, host: &HostWiring) -> Result<Self, ModelError> {
        Ok(match host {
            HostWiring::Eagle { input_norm } => Self::Eagle {
                input_norm: loader::vector(backend, input_norm.as_ref())?,
            },
            HostWiring::Eagle3 {
                embedding_norm,
                hidden_norm,
                norm,
            } => Self::Eagle3 {
                embedding_norm: backend.load_vector(embedding_norm)?,
                hidden_norm: backend.load_vector(hidden_norm)?,
                norm: backend.load_vector(norm)?,
            },
        })
    }
}
