//! The folders of an update.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
};

use lockstep_files::Kept;

use super::super::WorkerError;

/// The folders that other weights are read from. They are opened once: the files that are read
/// are the files that were looked at. While this value lives, its paths lead nowhere else.
#[derive(Debug, Clone)]
pub struct Folders {
    model: Kept,
    draft: Option<Kept>,
}

impl Folders {
    /// Opens the folders of a model and of its draft, below `dir`.
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

    /// Returns the path of the model's folder.
    pub fn model(&self) -> &Path {
        self.model.path()
    }

    /// Returns the path of the draft's folder; `None` if the present draft stays.
    pub fn draft(&self) -> Option<&Path> {
        self.draft.as_ref().map(Kept::path)
    }

    /// Returns a word that identifies the folders, for ranks of one machine to compare.
    pub(super) fn identity(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for folder in self.all() {
            folder.identity().hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Checks that all files are as they were when they were first looked for.
    pub(super) fn check(&self) -> Result<(), WorkerError> {
        let unchanged = self.all().try_for_each(Kept::check);
        unchanged.map_err(|error| WorkerError::Reload(error.to_string()))
    }

    fn all(&self) -> impl Iterator<Item = &Kept> {
        std::iter::once(&self.model).chain(&self.draft)
    }
}
