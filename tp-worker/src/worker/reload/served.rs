//! Checks if other weights fit what is served, as far as their descriptions tell.

use std::path::Path;

use lockstep_devices::DeviceFootprint;
use lockstep_model::{FileAccess, Safetensors};
use lockstep_model_folder::Described;
use lockstep_types::{
    Algorithms, DraftKind, DraftModel, EngineConfig, Footprint as _, MemoryUse, ModelConfig,
};

use super::Folders;
use crate::worker::WorkerError;

/// Description of what is served, to compare folders with. It can go to any thread, since
/// looking at files may take long.
#[derive(Debug, Clone)]
pub struct Served {
    pub(super) config: EngineConfig,
    pub(super) algorithms: Algorithms,
    pub(super) rank: usize,
    /// Free bytes of a device with memory of its own; `None` for other devices.
    pub(super) free: Option<u64>,
}

impl Served {
    /// Checks that [`Worker::reload`](crate::worker::Worker::reload) could take these folders.
    /// Looks at descriptions and at the headers of weight files.
    ///
    /// # Errors
    /// [`WorkerError::Reload`] with the mismatch.
    pub fn check(&self, folders: &Folders) -> Result<(), WorkerError> {
        let (model, draft) = (folders.model(), folders.draft());
        self.describe(model, draft, Heads::Believed)?;
        for folder in [Some(model), draft].into_iter().flatten() {
            Safetensors::open(folder, FileAccess::Read)
                .map_err(|error| WorkerError::Reload(error.to_string()))?;
        }
        self.check_room(draft.is_some())
    }

    /// Returns this description for a device with `free` bytes free.
    #[must_use]
    pub fn with_free(self, free: Option<u64>) -> Self {
        Self { free, ..self }
    }

    /// Checks that the new weights fit on the device beside the old ones.
    fn check_room(&self, draft: bool) -> Result<(), WorkerError> {
        let Some(free) = self.free else {
            return Ok(());
        };
        let config = &self.config;
        let memory = DeviceFootprint.rank(&config.shape(), self.rank);
        let loaded = |of: &MemoryUse| of.fixed().saturating_sub(of.host);
        let mut needed = loaded(&memory.target);
        if draft {
            // The draft brings a cache of its own.
            let cache = memory
                .draft
                .kv_bytes(config.kv_pages(), config.kv.page_size);
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

    /// Describes a model and, if one is named, a draft. Both must have the shape of the present
    /// ones.
    pub(super) fn describe(
        &self,
        model: &Path,
        draft: Option<&Path>,
        heads: Heads,
    ) -> Result<(ModelConfig, Option<DraftModel>), WorkerError> {
        let target = self.same_shape(model, heads)?;
        let draft = draft.map(|folder| self.same_draft(&target, folder));
        Ok((target, draft.transpose()?.flatten()))
    }

    /// Describes the model in `folder`, which must have the shape of the present one. The
    /// tokenizer that serves stays, and so does its end token.
    fn same_shape(&self, folder: &Path, heads: Heads) -> Result<ModelConfig, WorkerError> {
        let present = &self.config.model;
        let described = Described::of(folder).and_then(|described| {
            match heads == Heads::Compared || !present.tie_word_embeddings {
                true => described.with_weights(),
                false => described.with_names(),
            }
        });
        let described = described.map_err(|error| WorkerError::Reload(error.to_string()))?;
        let new = ModelConfig {
            quantization: present.quantization,
            ..described.model.with_tokenizer_eos(present.tokenizer_eos_id)
        };
        let new = match present.served() {
            Some(served) => new.serving(served),
            None => new,
        };
        let like_present = ModelConfig {
            path: present.path.clone(),
            load_format: present.load_format,
            // A text model's tensors are named by the age of the files around it.
            names: present.names.clone(),
            ..new.clone()
        };
        if like_present == *present {
            return Ok(new);
        }
        let (folder, reason) = (folder.display(), mismatch(like_present, present));
        Err(WorkerError::Reload(format!(
            "the model in {folder} {reason}; restart the server to serve it"
        )))
    }

    /// Describes the draft in `folder`, which must have the shape of the present one.
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
        let served = present.model.served();
        let new = match algorithm.load_draft(Some(folder), target) {
            Ok(Some(draft)) => DraftModel {
                model: match served {
                    Some(served) => draft.model.serving(served),
                    None => draft.model,
                },
                ..draft
            },
            Ok(None) => return refuse(format!("{name} drafts without a model")),
            Err(error) => return refuse(error.to_string()),
        };
        let mut like_present = new.clone();
        like_present.model.path.clone_from(&present.model.path);
        like_present.model.load_format = present.model.load_format;
        like_present.model.names.clone_from(&present.model.names);
        if let (DraftKind::Nextn { names }, DraftKind::Nextn { names: own }) =
            (&mut like_present.kind, &present.kind)
        {
            names.clone_from(own);
        }
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

/// The way to find out if a new output head is the embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heads {
    /// Assume that it is, if it should be. Head and embedding may be too large for a look.
    Believed,
    /// Compare both, if both are stored.
    Compared,
}

/// Returns the reason for refusing the model `new`, whose place in files is that of the `present`
/// one.
fn mismatch(new: ModelConfig, present: &ModelConfig) -> &'static str {
    let tied = new.tie_word_embeddings;
    let like_head = ModelConfig {
        tie_word_embeddings: present.tie_word_embeddings,
        ..new
    };
    if like_head == *present {
        return other_head(tied);
    }
    if like_head.checkpoint != present.checkpoint {
        return "has weights in another form than the one that runs (`quantization_config`)";
    }
    let like_factors = ModelConfig {
        multipliers: present.multipliers,
        ..like_head
    };
    if like_factors == *present {
        return "has other fixed factors than the one that runs, such as Gemma's multiplier of \
                embeddings, which is rounded to the `dtype` in config.json";
    }
    "has another shape or other end tokens than the one that runs"
}

/// Returns the reason for refusing a model with an output head of its own where the present
/// model has none, or the reverse.
fn other_head(tied: bool) -> &'static str {
    match tied {
        true => {
            "has its embedding for an output head (`tie_word_embeddings`), and the one that runs \
             has a head of its own"
        }
        false => {
            "has an output head (lm_head.weight) of its own, unlike its embedding, and the one \
             that runs has its embedding for that"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::mismatch;

    #[test]
    fn a_refusal_names_what_differs() {
        let gemma = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../tests/fixtures/architectures/gemma3_old_config"
        );
        let present = lockstep_model_folder::load(gemma.as_ref()).unwrap();
        let mut new = present.clone();
        new.multipliers.embedding = 8.5;
        assert!(mismatch(new.clone(), &present).contains("`dtype`"));
        new.hidden_size = 80;
        assert!(mismatch(new, &present).contains("another shape"));
        let mut untied = present.clone();
        untied.tie_word_embeddings = false;
        assert!(mismatch(untied, &present).contains("lm_head.weight"));
    }
}
