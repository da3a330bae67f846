//! A look at other weights, on a thread of its own: plans go on, and files that
//! can't be read in time are refused.

use std::path::Path;

use lockstep_files::{LONGEST_LOOK, within};
use lockstep_proto::pb::lockstep::{
    ReloadWeights, WeightsReloaded, WorkerMessage, worker_message::Kind,
};
use tokio::sync::mpsc::WeakSender;

use super::stream::message;
use crate::worker::{Served, WorkerError};

/// Begins to look; the answer leaves by `outgoing` while that is open.
pub fn begin(served: Served, wanted: ReloadWeights, outgoing: WeakSender<WorkerMessage>) {
    std::thread::spawn(move || {
        let error = refusal(served, wanted);
        if let Some(outgoing) = outgoing.upgrade() {
            // The stream may have ended meanwhile.
            let _ = outgoing.blocking_send(message(Kind::Reloaded(WeightsReloaded { error })));
        }
    });
}

/// Why these weights can't be taken.
fn refusal(served: Served, wanted: ReloadWeights) -> Option<String> {
    let look = move || {
        let draft = wanted.draft_path.as_deref().map(Path::new);
        served.check(Path::new(&wanted.model_path), draft)
    };
    match within(LONGEST_LOOK, look) {
        Ok(Ok(())) => None,
        Ok(Err(WorkerError::Reload(reason))) => Some(reason),
        Ok(Err(error)) => Some(error.to_string()),
        Err(error) => Some(error.to_string()),
    }
}
