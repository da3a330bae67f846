//! The engine's end of a worker's stream.

use lockstep_proto::pb::lockstep::{
    AdapterOrder, DrafterCommand, ForgetWeights, GroupStart, ReloadWeights, StepPlan,
    WorkerCommand, worker_command,
};
use tokio::sync::mpsc;
use tonic::Status;

/// Most commands that wait for one worker: plans, and operators' commands.
const LINK_QUEUE: usize = 16;

/// The engine's end of one worker's stream; dropping it ends the worker.
pub struct WorkerLink(mpsc::Sender<Result<WorkerCommand, Status>>);

/// The stream's end of a link.
pub type WorkerCommands = mpsc::Receiver<Result<WorkerCommand, Status>>;

impl WorkerLink {
    /// Makes a link and the receiver of its commands.
    pub fn new() -> (Self, WorkerCommands) {
        let (sender, receiver) = mpsc::channel(LINK_QUEUE);
        (Self(sender), receiver)
    }
    /// Sends the start of the group.
    pub fn start(&self, start: GroupStart) -> Result<(), String> {
        self.send(worker_command::Kind::Start(start))
    }
    /// Sends a plan.
    pub fn plan(&self, plan: StepPlan) -> Result<(), String> {
        self.send(worker_command::Kind::Plan(plan))
    }
    /// Asks the worker to look at or load other weights.
    pub fn reload(&self, reload: ReloadWeights) -> Result<(), String> {
        self.send(worker_command::Kind::Reload(reload))
    }
    /// Tells the worker to forget the weights that it looked at.
    pub fn forget_weights(&self) -> Result<(), String> {
        self.send(worker_command::Kind::Forget(ForgetWeights {}))
    }
    /// Sends an order about adapters.
    pub fn order_adapter(&self, order: AdapterOrder) -> Result<(), String> {
        self.send(worker_command::Kind::Adapter(order))
    }
    /// Sends a command to the drafter.
    pub fn command_drafter(&self, command: DrafterCommand) -> Result<(), String> {
        self.send(worker_command::Kind::Drafter(command))
    }
    /// Ends the stream with an error, so that the worker's node knows that the engine failed.
    /// The error's code says if ranks have `diverged`. Dropping the link instead means that all
    /// is done.
    pub fn fail(&self, reason: &str, diverged: bool) {
        let status = match diverged {
            true => Status::aborted(reason),
            false => Status::unavailable(reason),
        };
        // A worker that is gone needs no reason.
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
