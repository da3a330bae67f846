//! The child's end of the control link.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{getpid, getppid};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;

use crate::message::ChildMessage;
use crate::role::{Role, RoleError};

mod driver;

/// When a process shall end.
#[derive(Debug, Clone, Default)]
pub struct Lifecycle {
    /// Stop admitting, finish what runs, exit 0.
    pub drain: CancellationToken,
    /// Stop now: the launcher is gone, or said so. The process is ended from
    /// outside the role's runtime after [`HALT_GRACE`].
    pub halt: CancellationToken,
}

/// From the halt to the end of the process at the latest.
pub(crate) const HALT_GRACE: Duration = Duration::from_millis(1500);

/// A child's line to its launcher. Cheap to clone; no method blocks.
#[derive(Debug, Clone)]
pub struct ControlLink {
    outgoing: UnboundedSender<ChildMessage>,
    lifecycle: Lifecycle,
    finished: Arc<std::sync::Mutex<Receiver<()>>>,
}

impl ControlLink {
    /// Connects to the launcher's socket and says hello. Returns before the
    /// launcher has read it. A thread of its own serves the link, so that the
    /// end of the launcher ends this process whatever the role's threads do.
    ///
    /// # Errors
    /// When nobody listens, or when the listener is not this process's parent:
    /// then the parent died and the death signal watches the wrong process.
    pub fn connect(socket: &Path, role: Role) -> Result<Self, RoleError> {
        let stream = std::os::unix::net::UnixStream::connect(socket).map_err(|source| {
            RoleError::NoLauncher {
                socket: socket.to_owned(),
                source,
            }
        })?;
        let peer = rustix::net::sockopt::socket_peercred(&stream)
            .map_err(|error| RoleError::Link(error.into()))?;
        if getppid() != Some(peer.pid) {
            return Err(RoleError::Orphan);
        }
        Self::over(stream, role, |code| crate::exit::exit_now(code))
    }

    /// Serves the link over a connected socket. `end` is called with an exit
    /// code when the process must end and has not by itself.
    pub(crate) fn over(
        stream: std::os::unix::net::UnixStream,
        role: Role,
        end: impl Fn(u8) + Send + 'static,
    ) -> Result<Self, RoleError> {
        let (link, outgoing, finish) = Self::unconnected();
        let pid = getpid().as_raw_nonzero().get().unsigned_abs();
        link.send(ChildMessage::Hello {
            role: role.to_string(),
            pid,
        });
        driver::start(stream, outgoing, link.lifecycle.clone(), finish, end)
            .map_err(RoleError::Link)?;
        Ok(link)
    }

    /// A link to nobody, for a role that runs inside another process: reports
    /// can be read from the receiver, and the [`Lifecycle`] is the caller's to
    /// cancel.
    pub fn detached() -> (Self, UnboundedReceiver<ChildMessage>) {
        let (link, outgoing, _) = Self::unconnected();
        (link, outgoing)
    }

    fn unconnected() -> (
        Self,
        UnboundedReceiver<ChildMessage>,
        std::sync::mpsc::Sender<()>,
    ) {
        let (sender, outgoing) = unbounded_channel();
        let (finish, finished) = channel();
        let finished = Arc::new(std::sync::Mutex::new(finished));
        (
            Self {
                outgoing: sender,
                lifecycle: Lifecycle::default(),
                finished,
            },
            outgoing,
            finish,
        )
    }

    /// Reports how far `phase` is: `done` of `total` units.
    pub fn progress(&self, phase: &str, done: u64, total: u64) {
        self.send(ChildMessage::Progress {
            phase: phase.into(),
            done,
            total,
        });
    }

    /// Reports that the role serves; `detail` is one line for people.
    pub fn ready(&self, detail: &str) {
        self.send(ChildMessage::Ready {
            detail: detail.into(),
        });
    }

    /// Reports that the role cannot go on, and why. The process should end next.
    pub fn failed(&self, message: &str) {
        self.send(ChildMessage::Failed {
            message: message.into(),
        });
    }

    /// When this process shall end.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    /// Waits until everything reported has been written, at most `limit`.
    pub(crate) fn flush(self, limit: Duration) {
        let Self {
            outgoing, finished, ..
        } = self;
        drop(outgoing);
        if let Ok(finished) = finished.lock() {
            // Disconnected: the driver has written all and ended.
            let _: Result<(), RecvTimeoutError> = finished.recv_timeout(limit);
        };
    }

    fn send(&self, message: ChildMessage) {
        // Fails only when the link is closed, and then the lifecycle says so.
        let _ = self.outgoing.send(message);
    }
}

#[cfg(test)]
mod tests;
