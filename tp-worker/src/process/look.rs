//! A look at other weights, on a thread of its own: plans go on, and files that
//! can't be read in time are refused.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lockstep_files::{Kept, LONGEST_LOOK, within};
use lockstep_proto::pb::lockstep::{
    ReloadWeights, WeightsReloaded, WorkerMessage, worker_message::Kind,
};
use tokio::sync::mpsc::WeakSender;

use super::stream::message;
use crate::worker::{Served, WorkerError};

/// The folders that were looked at last. They stay open until they have been read,
/// or others are looked at.
#[derive(Clone, Default)]
pub struct Looked(Arc<Mutex<Vec<Kept>>>);

impl Looked {
    /// They have been read.
    pub fn forget(&self) {
        self.folders().clear();
    }

    fn folders(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Begins to look at folders inside `dir`; the answer leaves by `outgoing` while that
/// is open.
pub fn begin(
    served: Served,
    wanted: ReloadWeights,
    dir: Option<PathBuf>,
    looked: Looked,
    outgoing: WeakSender<WorkerMessage>,
) {
    std::thread::spawn(move || {
        looked.forget();
        let look = move || look(&served, &wanted, dir.as_deref());
        let error = match within(LONGEST_LOOK, look) {
            Ok(Ok(folders)) => {
                *looked.folders() = folders;
                None
            }
            Ok(Err(reason)) => Some(reason),
            Err(error) => Some(error.to_string()),
        };
        if let Some(outgoing) = outgoing.upgrade() {
            // The stream may have ended meanwhile.
            let _ = outgoing.blocking_send(message(Kind::Reloaded(WeightsReloaded { error })));
        }
    });
}

/// Opens these folders and looks at them, or says why they can't be taken.
fn look(served: &Served, wanted: &ReloadWeights, dir: Option<&Path>) -> Result<Vec<Kept>, String> {
    let Some(dir) = dir else {
        return Err("this node was started without --weight-update-dir; give it there too".into());
    };
    let model = Path::new(&wanted.model_path);
    let draft = wanted.draft_path.as_deref().map(Path::new);
    let open = |folder: &Path| {
        let kept = Kept::below(dir, folder);
        kept.map_err(|error| format!("{}: {error}", folder.display()))
    };
    let folders = [Some(model), draft].into_iter().flatten();
    let kept = folders.map(open).collect::<Result<_, _>>()?;
    match served.check(model, draft) {
        Ok(()) => Ok(kept),
        Err(WorkerError::Reload(reason)) => Err(reason),
        Err(error) => Err(error.to_string()),
    }
}
