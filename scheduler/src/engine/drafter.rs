//! Commands to the drafter, on their way to rank 0.

use lockstep_proto::pb::lockstep::{DrafterCommand, DrafterReply};
use lockstep_types::{
    drafter::DrafterResult,
    request::{ErrorKind, RequestError},
};
use tokio::sync::oneshot;

use super::{Engine, Phase, requests::unavailable};
use crate::error::RunError;

/// Commands that may wait for rank 0: each may be tens of megabytes.
const MOST_WAITING: usize = 4;

impl Engine {
    /// Sends a command to rank 0, or answers why not.
    pub(super) fn command_drafter(
        &mut self,
        command: DrafterCommand,
        reply: oneshot::Sender<DrafterReply>,
    ) -> Result<(), RunError> {
        let error = if !matches!(self.phase, Phase::Serving | Phase::Draining) {
            unavailable("The engine is starting.".to_owned())
        } else if self.drafter_replies.len() >= MOST_WAITING {
            let message = "Other changes of the corpora are under way; try again later.";
            RequestError::new(ErrorKind::Overloaded, message)
        } else {
            self.group
                .command_drafter(command)
                .map_err(RunError::Group)?;
            self.drafter_replies.push_back(reply);
            return Ok(());
        };
        // The client may have given up.
        let _ = reply.send(DrafterResult::Err(error).into());
        Ok(())
    }

    /// Passes an answer of rank 0 on: they arrive in the order of the commands.
    pub(super) fn drafter_replied(&mut self, answer: DrafterReply) {
        if let Some(reply) = self.drafter_replies.pop_front() {
            // The client may have given up.
            let _ = reply.send(answer);
        }
    }
}
