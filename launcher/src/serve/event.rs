//! What the tasks around a child report.

use lockstep_process::{ChildReport, LauncherMessage, Role};
use tokio::sync::mpsc::UnboundedSender;

use super::end::Ending;

/// Tells links apart: who is replaced may still have said something.
pub(super) type LinkNumber = u64;

/// What happened to a child.
pub(super) enum Event {
    /// It has opened its control link; by displayed role.
    Linked(String, LinkNumber, UnboundedSender<LauncherMessage>),
    /// Something was said over a link.
    Report(LinkNumber, ChildReport),
    /// It ended.
    Exited(Role, Ending),
}
