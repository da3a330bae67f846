//! Reloading: a running worker exchanges its weights for new ones.

mod folders;
mod served;

use std::{io, path::Path, time::Duration};

use lockstep_backend::Backend;
use lockstep_files::{LONGEST_STALL, TimeLimits, on_reader_thread, patiently};
use lockstep_model::{FileAccess, ForwardLimits, LoadOptions, Transformer};
use lockstep_types::EngineConfig;

pub use folders::Folders;
use served::Heads;
pub use served::Served;

use super::{
    Worker, WorkerError, WorkerLimits, agreement,
    draft_stage::{DraftStage, TargetTables},
    load_options,
};

impl<B: Backend + 'static> Worker<B> {
    /// Loads new weights of the model from `folders`, and of the draft if `folders` name one. The
    /// next step runs on them. If no draft is named, the loaded draft stays, and its folder is not
    /// touched. A rank that lacks the folders passes `None`.
    ///
    /// All ranks call this together, while no request is running: the keys and values in the
    /// cache belong to the old weights. Old and new weights are in memory at once until the new
    /// ones are complete. So nothing is lost if the new ones can't be loaded. Adapters belong to the
    /// old weights, and are gone.
    ///
    /// # Errors
    /// [`WorkerError::Reload`] if a rank can't load the new weights, if the weights do not fit the
    /// server, or if files changed before all of them were read. Every rank then keeps the old
    /// weights and goes on. Any other error ends the worker.
    pub fn reload(&mut self, folders: Option<&Folders>) -> Result<(), WorkerError> {
        let lacking = agreement::count(&mut self.backend, folders.is_none())?;
        let own = folders.map_or(0, Folders::identity);
        let per_node = self.config.ranks_per_node();
        let alike = agreement::alike_on_nodes(&mut self.backend, own, per_node)?;
        let refuse = |reason: String| Err(WorkerError::Reload(reason));
        let loaded = match folders {
            None => refuse("this rank has not looked at them; ask again".into()),
            Some(_) if lacking > 0 => refuse(format!(
                "{lacking} other ranks have not looked at them; ask again"
            )),
            Some(_) if !alike => refuse(
                "ranks of one machine found different folders: one was exchanged meanwhile".into(),
            ),
            Some(folders) => self.load_in_time(folders),
        };
        let failures = agreement::count(&mut self.backend, loaded.is_err())?;
        let loaded = match loaded {
            Err(error) => return Err(WorkerError::Reload(error.to_string())),
            Ok(_) if failures > 0 => {
                let reason = format!("{failures} other ranks could not load it");
                return Err(WorkerError::Reload(reason));
            }
            Ok(loaded) => loaded,
        };
        self.transformer = loaded.transformer;
        self.config = loaded.config;
        match loaded.drafting {
            Drafting::Anew(drafting) => self.drafting = *drafting,
            Drafting::Stays(of_target) => self.drafting.change_target(of_target),
        }
        let (backend, target) = (&mut self.backend, &mut self.transformer);
        agreement::share_drafting(backend, target, &mut self.drafting)?;
        // The recorded passes were of the old weights.
        self.record(&mut |_| {})
    }

    /// Describes the served model and draft. An update's folders are compared with this
    /// description before [`Self::reload`] takes them.
    pub fn served(&self) -> Served {
        Served {
            config: self.config.clone(),
            algorithms: self.drafters.algorithms(),
            rank: self.group().0,
            free: None,
        }
    }

    /// Loads the weights within the time limits for files. A load that takes too long fails while
    /// the other ranks still wait for this rank, so they learn of the failure.
    fn load_in_time(&mut self, folders: &Folders) -> Result<Loaded<B>, WorkerError> {
        let patience = TimeLimits {
            stall: LONGEST_STALL,
            total: Duration::from_secs(self.config.timeouts.weight_update_s),
            set_by: "--weight-update-timeout",
        };
        patiently(patience, || self.load_again(folders)).map_err(|error| unread(&error))?
    }

    fn load_again(&mut self, folders: &Folders) -> Result<Loaded<B>, WorkerError> {
        let draft = folders.draft();
        let served = self.served();
        let mut config = self.config.clone();
        let (model, draft_folder) = (folders.model().to_owned(), draft.map(Path::to_owned));
        let described = on_reader_thread(move || {
            Ok(served.describe(&model, draft_folder.as_deref(), Heads::Compared))
        });
        let (model, draft_model) = described.map_err(|error| unread(&error))??;
        config.model = model;
        if draft.is_some() {
            config.speculation.draft = draft_model;
        }
        let limits = WorkerLimits::new(&config);
        let limits = ForwardLimits::of_steps(&limits.step, limits.page_size, &config.model);
        let (backend, progress) = (&mut self.backend, &mut |_| {});
        let files = FileAccess::Read;
        let options = LoadOptions {
            files,
            ..load_options(&config, limits)
        };
        let mut transformer = Transformer::load(backend, &config.model, options, progress)?;
        let target = &mut transformer;
        let stays = draft.is_none() && config.speculation.draft.is_some();
        let drafting = if stays {
            let present = &self.drafting;
            Drafting::Stays(present.prepare(&config, backend, target, files, progress)?)
        } else {
            let drafters = &self.drafters;
            let load = DraftStage::load(&config, drafters, backend, target, files, progress);
            Drafting::Anew(Box::new(load?))
        };
        folders.check()?;
        Ok(Loaded {
            config,
            transformer,
            drafting,
        })
    }
}

/// Makes the error for files that can't be read.
fn unread(error: &io::Error) -> WorkerError {
    WorkerError::Reload(error.to_string())
}

/// New weights of one rank, until all ranks are known to have read theirs.
struct Loaded<B: Backend> {
    config: EngineConfig,
    transformer: Transformer<B>,
    drafting: Drafting<B>,
}

/// The drafter for the new weights.
enum Drafting<B: Backend> {
    /// A new drafter for the new target: it has another draft's weights, or no model at all.
    Anew(Box<DraftStage<B>>),
    /// The present drafter, with the tables of the new target.
    Stays(TargetTables<B>),
}
