//! Keeping the drafter while the target gets other weights.

use lockstep_backend::{Axis, Backend};
use lockstep_model::{
    FileAccess, LoadProgress, Staged, Tables, Transformer, WholeTables, whole_head,
};
use lockstep_speculation::Drafter;
use lockstep_types::EngineConfig;

use super::{DraftStage, WorkerError};

/// The target's tables for a drafter, which it reads beside the features of passes.
pub enum TargetTables<B: Backend> {
    /// The target's own tables on this rank, or none.
    Target,
    /// Whole copies of both tables, because the target has only parts of them on this rank.
    Whole(WholeTables<B>),
    /// A whole copy of the output head, because the target has a part of it on this rank. The
    /// target has the whole embedding. `None` if the embedding is the head, or if the drafter
    /// does not read the head.
    Head(Option<B::Matrix>),
}

impl<B: Backend> TargetTables<B> {
    /// Makes `target`, the model of `config`, keep the features that `drafter` reads. Loads the
    /// tables that this rank lacks. No collective runs.
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
        let mut of_target = Self::Target;
        if size > 1 && !capture.is_empty() {
            let (model, draft) = (&config.model, config.speculation.draft.as_ref());
            let head = draft.is_none_or(|draft| !draft.own_head);
            of_target = if !target.holds_embedding() {
                Self::Whole(WholeTables::load(backend, model, head, files, progress)?)
            } else if head && !model.tie_word_embeddings {
                Self::Head(Some(whole_head(backend, model, files, progress)?))
            } else {
                Self::Head(None)
            };
        }
        target.set_capture(backend, capture)?;
        Ok(of_target)
    }

    /// Returns the whole tables. `own` are the target's tables on this rank, which may be
    /// parts.
    pub(super) fn tables<'a>(&'a self, own: Tables<'a, B>) -> Tables<'a, B> {
        match self {
            Self::Target => own,
            Self::Whole(tables) => tables.tables(),
            Self::Head(head) => Tables {
                embedding: own.embedding,
                head: head.as_ref().unwrap_or(own.embedding),
            },
        }
    }

    /// Returns a staged target of this rank with whole tables.
    pub(super) fn whole<'a>(&'a self, staged: Staged<'a, B>) -> Staged<'a, B> {
        Staged {
            tables: self.tables(staged.tables),
            ..staged
        }
    }

    /// Returns the bytes of the tables that were loaded.
    pub(super) fn weight_bytes(&self, backend: &B) -> usize {
        match self {
            Self::Target | Self::Head(None) => 0,
            Self::Whole(tables) => tables.weight_bytes(backend),
            Self::Head(Some(head)) => backend.matrix_bytes(head),
        }
    }
}

impl<B: Backend> DraftStage<B> {
    /// Prepares `target`, the model of `config`, for this rank's drafter. Nothing of the draft
    /// is read, and nothing here changes before [`Self::change_target`]. No collective runs.
    ///
    /// # Errors
    /// [`WorkerError`] if the target's files can't be used, or for want of memory.
    pub fn prepare(
        &self,
        config: &EngineConfig,
        backend: &mut B,
        target: &mut Transformer<B>,
        files: FileAccess,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<TargetTables<B>, WorkerError> {
        match self.drafter.as_deref() {
            Some(drafter) => TargetTables::load(drafter, config, backend, target, files, progress),
            None => Ok(TargetTables::Target),
        }
    }

    /// Makes the prepared target the one that serves from now on.
    pub fn change_target(&mut self, prepared: TargetTables<B>) {
        self.of_target = prepared;
        // The drafter has seen texts of the old weights.
        if let Some(drafter) = &mut self.drafter {
            drafter.forget();
        }
    }
}
