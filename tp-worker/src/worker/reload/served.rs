//! Whether other weights fit what is served, as far as their descriptions tell.

use std::path::Path;

use lockstep_devices::DeviceFootprint;
use lockstep_model::{FileAccess, Weights};
use lockstep_types::{
    Algorithms, DraftModel, EngineConfig, Footprint as _, MemoryUse, ModelConfig,
};

use super::Folders;
use crate::worker::WorkerError;

/// What is served, to compare folders with on any thread: looking at files may
/// take long.
#[derive(Debug, Clone)]
pub struct Served {
    pub(super) config: EngineConfig,
    pub(super) algorithms: Algorithms,
    pub(super) rank: usize,
    /// Bytes that a device with memory of its own has free.
    pub(super) free: Option<u64>,
}

impl Served {
    /// Whether [`Worker::reload`](crate::worker::Worker::reload) could take these
    /// folders: looks at descriptions and at the headers of weight files.
    ///
    /// # Errors
    /// [`WorkerError::Reload`] with what does not fit.
    pub fn check(&self, folders: &Folders) -> Result<(), WorkerError> {
        let (model, draft) = (folders.model(), folders.draft());
        self.describe(model, draft)?;
        for folder in [Some(model), draft].into_iter().flatten() {
            Weights::open_with(folder, FileAccess::Read)
                .map_err(|error| WorkerError::Reload(error.to_string()))?;
        }
        self.check_room(draft.is_some())
    }

    /// The same of a device that has so many bytes free.
    #[must_use]
    pub fn with_free(self, free: Option<u64>) -> Self {
        Self { free, ..self }
    }

    /// Old and new weights are on the device at once.
    fn check_room(&self, draft: bool) -> Result<(), WorkerError> {
        let Some(free) = self.free else {
            return Ok(());
        };
        let config = &self.config;
        let memory = DeviceFootprint.rank(&config.shape(), self.rank);
        let loaded = |of: &MemoryUse| of.fixed().saturating_sub(of.host);
        let mut needed = loaded(&memory.target);
        if draft {
            // It brings a cache of its own.
            let cells = config.kv.num_pages * config.kv.page_size;
            let cache = memory.draft.kv_per_token.saturating_mul(cells as u64);
            let draft = loaded(&memory.draft).saturating_add(cache);
            needed = needed.saturating_add(draft);
        }
        if needed <= free {
            return Ok(());
        }
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        Err(WorkerError::Reload(format!(
            "new weights take {:.2} GiB beside the present ones, and the device has {:.2} GiB free; \
             start the server with a lower --mem-fraction-static or --max-total-tokens, or with \
             these weights",
            gib(needed),
            gib(free),
        )))
    }

    /// Describes a model and, where one is named, a draft, which must be as the present
    /// ones.
    pub(super) fn describe(
        &self,
        model: &Path,
        draft: Option<&Path>,
    ) -> Result<(ModelConfig, Option<DraftModel>), WorkerError> {
        let target = self.same_shape(model)?;
        let draft = draft.map(|folder| self.same_draft(&target, folder));
        Ok((target, draft.transpose()?.flatten()))
    }

    /// Describes the model in `folder`, which must be as the present one.
    fn same_shape(&self, folder: &Path) -> Result<ModelConfig, WorkerError> {
        let context = Some(self.config.server.context_length);
        let new = lockstep_model_folder::load_for(folder, context)
            .map_err(|error| WorkerError::Reload(error.to_string()))?;
        let mut like_present = new.clone();
        like_present.path.clone_from(&self.config.model.path);
        like_present.load_format = self.config.model.load_format;
        if like_present == self.config.model {
            return Ok(new);
        }
        Err(WorkerError::Reload(format!(
            "the model in {} has another shape or other end tokens than the one that runs; \
             restart the server to serve it",
            folder.display()
        )))
    }

    /// Describes the draft in `folder`, which must be as the present one.
    fn same_draft(
        &self,
        target: &ModelConfig,
        folder: &Path,
    ) -> Result<Option<DraftModel>, WorkerError> {
        let refuse = |reason: String| Err(WorkerError::Reload(reason));
        let speculation = &self.config.speculation;
        let (Some(name), Some(present)) = (&speculation.algorithm, &speculation.draft) else {
            return refuse(
                "this server drafts without a model; leave the draft's folder out".into(),
            );
        };
        let Some(algorithm) = self.algorithms.find(name) else {
            return refuse(format!("no speculative algorithm is called {name}"));
        };
        let new = match algorithm.load_draft(Some(folder), target) {
            Ok(Some(draft)) => draft,
            Ok(None) => return refuse(format!("{name} drafts without a model")),
            Err(error) => return refuse(error.to_string()),
        };
        let mut like_present = new.clone();
        like_present.model.path.clone_from(&present.model.path);
        like_present.model.load_format = present.model.load_format;
        if like_present != *present {
            return refuse(format!(
                "the draft in {} has another shape than the one that runs; \
                 restart the server to serve it",
                folder.display()
            ));
        }
        Ok(Some(new))
    }
}
