//! The look at other weights, on a thread of its own. Plans go on meanwhile, and files that
//! can't be read in time are refused.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lockstep_files::{LONGEST_LOOK, within};
use lockstep_proto::pb::lockstep::{
    ReloadWeights, WeightsReloaded, WorkerMessage, worker_message::Kind,
};
use tokio::sync::mpsc::WeakSender;

use super::stream::message;
use crate::worker::{Folders, Served, WorkerError};

/// The folders that were looked at last. They stay open until they are taken, until others are
/// looked at, or until the update is off.
#[derive(Clone, Default)]
pub struct InspectedFolders(Arc<Mutex<Option<Folders>>>);

impl InspectedFolders {
    /// Takes the folders if they are the wanted ones. The files that are read now are then the
    /// files that were looked at; nothing else is opened.
    pub fn take(&self, wanted: &ReloadWeights) -> Option<Folders> {
        let (model, draft) = paths(wanted);
        let are_wanted = |open: &Folders| (open.model(), open.draft()) == (model, draft);
        self.folders().take().filter(are_wanted)
    }

    /// Closes the folders.
    pub fn forget(&self) {
        self.folders().take();
    }

    fn folders(&self) -> MutexGuard<'_, Option<Folders>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Begins to look at folders inside `dir`. The answer leaves by `outgoing` while that channel
/// is open.
pub fn begin(
    served: Served,
    wanted: ReloadWeights,
    dir: Option<PathBuf>,
    looked: InspectedFolders,
    outgoing: WeakSender<WorkerMessage>,
) {
    std::thread::spawn(move || {
        looked.forget();
        let look = move || look(&served, &wanted, dir.as_deref());
        let error = match within(LONGEST_LOOK, look) {
            Ok(Ok(folders)) => {
                *looked.folders() = Some(folders);
                None
            }
            Ok(Err(WorkerError::Reload(reason))) => Some(reason),
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(outgoing) = outgoing.upgrade() {
            // The stream may have ended meanwhile.
            let _ = outgoing.blocking_send(message(Kind::Reloaded(WeightsReloaded { error })));
        }
    });
}

/// Opens the wanted folders and looks at them. Returns the folders, or the reason why they
/// can't be taken.
fn look(
    served: &Served,
    wanted: &ReloadWeights,
    dir: Option<&Path>,
) -> Result<Folders, WorkerError> {
    let without = "this node was started without --weight-update-dir; give it there too";
    let dir = dir.ok_or_else(|| WorkerError::Reload(without.into()))?;
    let (model, draft) = paths(wanted);
    let folders = Folders::below(dir, model, draft)?;
    served.check(&folders)?;
    Ok(folders)
}

fn paths(wanted: &ReloadWeights) -> (&Path, Option<&Path>) {
    let draft = wanted.draft_path.as_deref().map(Path::new);
    (Path::new(&wanted.model_path), draft)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_looked_at_is_taken_once_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = |name: &str| {
            let folder = dir.path().join(name);
            std::fs::create_dir_all(&folder).expect("made");
            folder.to_str().expect("UTF-8").to_owned()
        };
        let wanted = |model: &str, draft: Option<&str>| ReloadWeights {
            model_path: folder(model),
            draft_path: draft.map(folder),
            check_only: false,
        };
        let looked = InspectedFolders::default();
        let look_at = |wanted: &ReloadWeights| {
            let (model, draft) = paths(wanted);
            let folders = Folders::below(dir.path(), model, draft).expect("there");
            *looked.folders() = Some(folders);
        };
        let cases = [("a", None), ("b", None), ("a", Some("b")), ("a", Some("a"))];
        for (model, draft) in cases {
            let these = wanted(model, draft);
            assert!(looked.take(&these).is_none(), "not looked at");
            for (model, draft) in cases {
                look_at(&these);
                let others = wanted(model, draft);
                assert_eq!(looked.take(&others).is_some(), others == these);
                assert!(looked.take(&these).is_none(), "it is over");
            }
            look_at(&these);
            looked.forget();
            assert!(looked.take(&these).is_none(), "the update was off");
        }
    }
}
