//! Texts to draft from, on their way to the rank that drafts.

use lockstep_proto::pb::lockstep::{CorporaEdit, CorporaEdited};
use lockstep_types::request::{ErrorKind, RequestError};
use tokio::sync::oneshot;

use super::{Engine, Phase, requests::unavailable};
use crate::error::RunError;

/// Changes that may wait for rank 0: each may be tens of megabytes.
const MOST_WAITING: usize = 4;

impl Engine {
    /// Hands a change on to rank 0, or says why not.
    pub(super) fn edit_corpora(
        &mut self,
        edit: CorporaEdit,
        reply: oneshot::Sender<CorporaEdited>,
    ) -> Result<(), RunError> {
        let error = if !matches!(self.phase, Phase::Serving | Phase::Draining) {
            unavailable("The engine is starting.".to_owned())
        } else if self.corpora.len() >= MOST_WAITING {
            let message = "Other changes of the corpora are under way; try again later.";
            RequestError::new(ErrorKind::Overloaded, message)
        } else {
            self.group.edit_corpora(edit).map_err(RunError::Group)?;
            self.corpora.push_back(reply);
            return Ok(());
        };
        let refused = CorporaEdited {
            error: Some(error.into()),
            corpora: Vec::new(),
        };
        // The asker may have given up.
        let _ = reply.send(refused);
        Ok(())
    }

    /// Takes rank 0's answer, which come in the order of the changes.
    pub(super) fn corpora_edited(&mut self, edited: CorporaEdited) {
        if let Some(reply) = self.corpora.pop_front() {
            // The asker may have given up.
            let _ = reply.send(edited);
        }
    }
}
