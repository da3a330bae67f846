//! What the tasks around a child report.

use lockstep_process::{ChildReport, LauncherMessage, Role};
use tokio::sync::mpsc::UnboundedSender;

use super::end::Ending;

/// What happened to a child.
pub(super) enum Event {
    /// It has opened its control link; by displayed role.
    Linked(String, UnboundedSender<LauncherMessage>),
    /// It said something; by displayed role.
    Report(String, ChildReport),
    /// It ended.
    Exited(Role, Ending),
}
