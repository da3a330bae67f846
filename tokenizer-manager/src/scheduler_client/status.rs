//! The state of the stream, and what the scheduler reports about itself.

use lockstep_proto::pb::lockstep::{WeightsInUse, frontend_client::FrontendClient};
use tokio::sync::watch;
use tonic::transport::Channel;

/// The state of the stream to the scheduler.
#[derive(Debug, Clone)]
pub enum LinkState {
    /// There is no scheduler yet, or the stream ended; the link tries again.
    Connecting,
    /// Connected; requests can be submitted.
    Ready(FrontendClient<Channel>),
    /// The scheduler has another configuration; connecting again would not help.
    Incompatible(String),
    /// Shut down.
    Closed,
}

/// State that the scheduler reports about itself.
#[derive(Debug, Clone)]
pub(super) struct SchedulerStatus {
    /// Weights in use; `None` = the weights of the start.
    pub(super) weights: watch::Sender<Option<WeightsInUse>>,
    /// True if steps run on every rank, as far as is known without another step.
    pub(super) healthy: watch::Sender<bool>,
}

impl SchedulerStatus {
    /// Records that steps run on every rank, or that they do not.
    pub(super) fn set_healthy(&self, healthy: bool) {
        let change = |known: &mut bool| std::mem::replace(known, healthy) != healthy;
        self.healthy.send_if_modified(change);
    }
}
