//! What drafts stays while the target gets other weights.

use lockstep_backend::{Axis, Backend};
use lockstep_model::{FileAccess, LoadProgress, Tables, Transformer, WholeTables};
use lockstep_speculation::Drafter;
use lockstep_types::EngineConfig;

use super::{DraftStage, WorkerError};

/// What a drafter reads of its target beside what passes hand it.
pub struct OfTarget<B: Backend> {
    /// Where this rank has a part of the target's tables only.
    pub(super) tables: Option<WholeTables<B>>,
}

impl<B: Backend> OfTarget<B> {
    /// Nothing.
    pub(super) fn none() -> Self {
        Self { tables: None }
    }

    /// Lets `target`, which is that of `config`, keep what `drafter` reads, and loads
    /// what this rank has not. No collective runs.
    pub(super) fn load(
        drafter: &dyn Drafter<B>,
        config: &EngineConfig,
        backend: &mut B,
        target: &mut Transformer<B>,
        files: FileAccess,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, WorkerError> {
        let capture = drafter.capture();
        let (_, size) = backend.group(Axis::World);
        let mut tables = None;
        if size > 1 && !capture.is_empty() {
            let (model, draft) = (&config.model, config.speculation.draft.as_ref());
            let head = draft.is_none_or(|draft| !draft.own_head);
            tables = Some(WholeTables::load(backend, model, head, files, progress)?);
        }
        target.set_capture(backend, capture)?;
        Ok(Self { tables })
    }

    /// The whole tables, of `target` where it has them.
    pub(super) fn tables<'a>(&'a self, target: &'a Transformer<B>) -> Tables<'a, B> {
        let tables = self.tables.as_ref();
        tables.map_or_else(|| target.tables(), WholeTables::tables)
    }
}

impl<B: Backend> DraftStage<B> {
    /// Prepares `target`, which is that of `config`, for what drafts here. Nothing
    /// of the draft is read, and nothing here changes before
    /// [`Self::change_target`]. No collective runs.
    ///
    /// # Errors
    /// [`WorkerError`]: the target's files, or the memory.
    pub fn prepare(
        &self,
        config: &EngineConfig,
        backend: &mut B,
        target: &mut Transformer<B>,
        files: FileAccess,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<OfTarget<B>, WorkerError> {
        match self.drafter.as_deref() {
            Some(drafter) => OfTarget::load(drafter, config, backend, target, files, progress),
            None => Ok(OfTarget::none()),
        }
    }

    /// The prepared target is the one that serves from now on.
    pub fn change_target(&mut self, prepared: OfTarget<B>) {
        self.of_target = prepared;
        // What it has seen are the old weights' texts.
        if let Some(drafter) = &mut self.drafter {
            drafter.forget();
        }
    }
}
