//! New weights for a running worker.

use std::path::Path;

use lockstep_backend::{Axis, Backend};
use lockstep_model::{ForwardLimits, LoadOptions, Transformer};
use lockstep_types::{EngineConfig, ModelConfig};

use super::{Worker, WorkerError, agree, draft_stage::DraftStage};

impl<B: Backend + 'static> Worker<B> {
    /// Takes the weights of `model` and, where a folder is drafted with, those
    /// of `draft`, together: whatever runs next runs on both. `draft = None`
    /// reads the present draft folder again. All ranks call it together, while
    /// no request is running; what the cache holds is of the old weights.
    ///
    /// Old and new weights are in memory at once until the new ones are
    /// complete, so that nothing is lost when they can't be loaded.
    ///
    /// # Errors
    /// [`WorkerError::Reload`] when the new weights can't be loaded on some rank
    /// or do not fit what runs: then every rank keeps the old ones and goes on.
    /// Any other error ends the worker.
    pub fn reload(&mut self, model: &Path, draft: Option<&Path>) -> Result<(), WorkerError> {
        let loaded = self.load_again(model, draft);
        let failures = agree::count(&mut self.backend, loaded.is_err())?;
        let (config, mut transformer, drafting) = match loaded {
            Err(error) => return Err(WorkerError::Reload(error.to_string())),
            Ok(_) if failures > 0 => {
                let reason = format!("{failures} other ranks could not load it");
                return Err(WorkerError::Reload(reason));
            }
            Ok(loaded) => loaded,
        };
        agree::share_capture(&mut self.backend, &mut transformer, &drafting)?;
        self.config = config;
        self.transformer = transformer;
        self.drafting = drafting;
        Ok(())
    }

    /// Whether [`Self::reload`] could take these folders, as far as their
    /// descriptions tell. Nothing changes, and requests may run.
    ///
    /// # Errors
    /// [`WorkerError::Reload`] with what does not fit.
    pub fn check_reload(&self, model: &Path, draft: Option<&Path>) -> Result<(), WorkerError> {
        let target = same_shape(&self.config, model)?;
        if let Some(folder) = draft {
            self.same_draft(&target, folder)?;
        }
        Ok(())
    }

    fn load_again(
        &mut self,
        model: &Path,
        draft: Option<&Path>,
    ) -> Result<(EngineConfig, Transformer<B>, DraftStage<B>), WorkerError> {
        let mut config = self.config.clone();
        config.model = same_shape(&self.config, model)?;
        if let Some(folder) = draft {
            config.speculation.draft = self.same_draft(&config.model, folder)?;
        }
        let limits = ForwardLimits::of_steps(&config.step_limits(), config.model.vocab_size);
        let (backend, progress) = (&mut self.backend, &mut |_| {});
        let options = LoadOptions::new(Axis::Tensor, limits);
        let mut transformer = Transformer::load(backend, &config.model, options, progress)?;
        let drafting =
            DraftStage::load(&config, &self.drafters, backend, &mut transformer, progress)?;
        Ok((config, transformer, drafting))
    }

    /// Describes the draft in `folder`, which must be as the present one.
    fn same_draft(
        &self,
        target: &ModelConfig,
        folder: &Path,
    ) -> Result<Option<lockstep_types::DraftModel>, WorkerError> {
        let refuse = |reason: String| Err(WorkerError::Reload(reason));
        let speculation = &self.config.speculation;
        let (Some(name), Some(present)) = (&speculation.algorithm, &speculation.draft) else {
            return refuse(
                "this server drafts without a model; leave the draft's folder out".into(),
            );
        };
        let algorithms = self.drafters.algorithms();
        let Some(algorithm) = algorithms.find(name) else {
            return refuse(format!("no speculative algorithm is called {name}"));
        };
        let new = match algorithm.load_draft(Some(folder), target) {
            Ok(Some(draft)) => draft,
            Ok(None) => return refuse(format!("{name} drafts without a model")),
            Err(error) => return refuse(error.to_string()),
        };
        let mut like_present = new.clone();
        like_present.model.path.clone_from(&present.model.path);
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

/// Describes the model in `folder`, which must be as the present one.
fn same_shape(config: &EngineConfig, folder: &Path) -> Result<ModelConfig, WorkerError> {
    let context = Some(config.server.context_length);
    let new = lockstep_model_folder::load_for(folder, context)
        .map_err(|error| WorkerError::Reload(error.to_string()))?;
    let mut like_present = new.clone();
    like_present.path.clone_from(&config.model.path);
    if like_present == config.model {
        return Ok(new);
    }
    Err(WorkerError::Reload(format!(
        "the model in {} has another shape or other end tokens than the one that runs; \
         restart the server to serve it",
        folder.display()
    )))
}
