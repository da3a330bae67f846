//! New weights for a running worker.

mod served;

use std::path::Path;

use lockstep_backend::{Axis, Backend};
use lockstep_model::{FileAccess, ForwardLimits, LoadOptions, Transformer};
use lockstep_types::EngineConfig;

pub use served::Served;

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

    /// What folders are compared with before [`Self::reload`] takes them.
    pub fn served(&self) -> Served {
        Served {
            config: self.config.clone(),
            algorithms: self.drafters.algorithms(),
        }
    }

    fn load_again(
        &mut self,
        model: &Path,
        draft: Option<&Path>,
    ) -> Result<(EngineConfig, Transformer<B>, DraftStage<B>), WorkerError> {
        let served = self.served();
        let mut config = self.config.clone();
        config.model = served.same_shape(model)?;
        if let Some(folder) = draft {
            config.speculation.draft = served.same_draft(&config.model, folder)?;
        }
        let limits = ForwardLimits::of_steps(&config.step_limits(), config.model.vocab_size);
        let (backend, progress) = (&mut self.backend, &mut |_| {});
        let files = FileAccess::Read;
        let options = LoadOptions {
            files,
            ..LoadOptions::new(Axis::Tensor, limits)
        };
        let mut transformer = Transformer::load(backend, &config.model, options, progress)?;
        let drafting = DraftStage::load(
            &config,
            &self.drafters,
            backend,
            &mut transformer,
            files,
            progress,
        )?;
        Ok((config, transformer, drafting))
    }
}
