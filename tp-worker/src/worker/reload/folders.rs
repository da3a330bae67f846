//! The folders of an update.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
};

use lockstep_files::Kept;

use super::super::WorkerError;

/// The folders that other weights are read from. They are opened once: what is read
/// is what was looked at, and while this lasts nobody is led elsewhere.
#[derive(Debug, Clone)]
pub struct Folders {
    model: Kept,
    draft: Option<Kept>,
}

impl Folders {
    /// Opens those of a model and of what drafts for it, below `dir`.
    ///
    /// # Errors
    /// [`WorkerError::Reload`] names the folder that is not there.
    pub fn below(dir: &Path, model: &Path, draft: Option<&Path>) -> Result<Self, WorkerError> {
        let open = |folder: &Path| {
            let kept = Kept::below(dir, folder);
            kept.map_err(|error| WorkerError::Reload(format!("{}: {error}", folder.display())))
        };
        let kept = open(model)?;
        let draft = match draft {
            // One path leads to one folder.
            Some(draft) if draft == model => Some(kept.clone()),
            draft => draft.map(open).transpose()?,
        };
        Ok(Self { model: kept, draft })
    }

    /// Where the model lies.
    pub fn model(&self) -> &Path {
        self.model.path()
    }

    /// Where the draft lies; `None` where the present one stays.
    pub fn draft(&self) -> Option<&Path> {
        self.draft.as_ref().map(Kept::path)
    }

    /// Which folders they are, in a word that ranks of one machine compare.
    pub(super) fn identity(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for folder in self.all() {
            folder.identity().hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Whether all is as it was when it was first looked for.
    pub(super) fn check(&self) -> Result<(), WorkerError> {
        let unchanged = self.all().try_for_each(Kept::check);
        unchanged.map_err(|error| WorkerError::Reload(error.to_string()))
    }

    fn all(&self) -> impl Iterator<Item = &Kept> {
        std::iter::once(&self.model).chain(&self.draft)
    }
}
