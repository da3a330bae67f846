//! Reports of the tasks around a child.

use lockstep_process::{ChildReport, LauncherMessage, Role};
use tokio::sync::mpsc::UnboundedSender;

use super::end::Ending;

/// Tells links apart: a process that was replaced may still have sent messages.
pub(super) type LinkNumber = u64;

/// An event of a child.
pub(super) enum Event {
    /// The child has opened its control link; the name is that of its role.
    Linked(String, LinkNumber, UnboundedSender<LauncherMessage>),
    /// A message came over a link.
    Report(LinkNumber, ChildReport),
    /// The child ended.
    Exited(Role, Ending),
}
