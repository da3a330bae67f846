//! The engine's end of a worker's stream.

use lockstep_proto::pb::lockstep::{
    DrafterCommand, ForgetWeights, GroupStart, ReloadWeights, StepPlan, WorkerCommand,
    worker_command,
};
use tokio::sync::mpsc;
use tonic::Status;

/// Commands that may wait for one worker: plans, and what operators want.
const LINK_QUEUE: usize = 16;

/// The engine's end of one worker's stream; dropping it ends the worker.
pub struct WorkerLink(mpsc::Sender<Result<WorkerCommand, Status>>);

/// The stream's end of it.
pub type WorkerCommands = mpsc::Receiver<Result<WorkerCommand, Status>>;

impl WorkerLink {
    /// A link and what it feeds.
    pub fn new() -> (Self, WorkerCommands) {
        let (sender, receiver) = mpsc::channel(LINK_QUEUE);
        (Self(sender), receiver)
    }
    /// Sends the start.
    pub fn start(&self, start: GroupStart) -> Result<(), String> {
        self.send(worker_command::Kind::Start(start))
    }
    /// Sends a plan.
    pub fn plan(&self, plan: StepPlan) -> Result<(), String> {
        self.send(worker_command::Kind::Plan(plan))
    }
    /// Asks for other weights.
    pub fn reload(&self, reload: ReloadWeights) -> Result<(), String> {
        self.send(worker_command::Kind::Reload(reload))
    }
    /// Says that the weights that were looked at are not wanted any more.
    pub fn forget_weights(&self) -> Result<(), String> {
        self.send(worker_command::Kind::Forget(ForgetWeights {}))
    }
    /// Sends a command to the drafter.
    pub fn command_drafter(&self, command: DrafterCommand) -> Result<(), String> {
        self.send(worker_command::Kind::Drafter(command))
    }
    /// Ends the stream with an error, so that the worker's node knows that the
    /// engine failed, and by its code whether because ranks have `diverged`;
    /// dropping the link alone says that all is done.
    pub fn fail(&self, reason: &str, diverged: bool) {
        let status = match diverged {
            true => Status::aborted(reason),
            false => Status::unavailable(reason),
        };
        // A worker that is gone already needs no reason.
        let _ = self.0.try_send(Err(status));
    }
    fn send(&self, kind: worker_command::Kind) -> Result<(), String> {
        self.0
            .try_send(Ok(WorkerCommand { kind: Some(kind) }))
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => "does not take commands".to_owned(),
                mpsc::error::TrySendError::Closed(_) => "its stream ended".to_owned(),
            })
    }
}
