//! What drafts stays while the target gets other weights.

use lockstep_backend::{Axis, Backend};
use lockstep_model::{
    FileAccess, LoadProgress, Staged, Tables, Transformer, WholeTables, whole_head,
};
use lockstep_speculation::Drafter;
use lockstep_types::EngineConfig;

use super::{DraftStage, WorkerError};

/// What a drafter reads of its target beside what passes hand it.
pub enum OfTarget<B: Backend> {
    /// What the target has on this rank, or nothing.
    Target,
    /// Tables of which the target has parts on this rank.
    Whole(WholeTables<B>),
    /// The output head, of which the target has a part on this rank, while it has
    /// the whole embedding; `None` where that is the head, or nobody asks for one.
    Head(Option<B::Matrix>),
}

impl<B: Backend> OfTarget<B> {
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

    /// The whole tables, where `own`, those of the target on this rank, may be parts.
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

    /// With whole tables, of a target that is staged on this rank.
    pub(super) fn whole<'a>(&'a self, staged: Staged<'a, B>) -> Staged<'a, B> {
        Staged {
            tables: self.tables(staged.tables),
            ..staged
        }
    }

    /// Bytes of the tables that were loaded.
    pub(super) fn weight_bytes(&self, backend: &B) -> usize {
        match self {
            Self::Target | Self::Head(None) => 0,
            Self::Whole(tables) => tables.weight_bytes(backend),
            Self::Head(Some(head)) => backend.matrix_bytes(head),
        }
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
            None => Ok(OfTarget::Target),
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
