//! The child's end of the control link.

use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use rustix::process::{getpid, getppid};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::message::ChildMessage;
use crate::role::{Role, RoleError};

mod driver;

/// Requests to end the process.
#[derive(Debug, Clone, Default)]
pub struct Lifecycle {
    /// Clients should go elsewhere, and are served meanwhile. Not cancelled if a drain begins
    /// without it.
    pub leave: CancellationToken,
    /// Stop admitting, finish what runs, exit 0.
    pub drain: CancellationToken,
    /// Stop now: the launcher is gone, or said so. A second and a half later the process is
    /// ended from outside the role's runtime.
    pub halt: CancellationToken,
}

/// Contents of the launcher's pings.
#[derive(Debug, Clone, Copy, Default)]
struct Pings {
    count: u64,
    /// Log lines that all processes of this node have lost.
    lost_log_lines: u64,
}

/// The launcher's estimate of when requests will be served that can't be served now. While the
/// engine serves: when they would be, if it failed now.
#[derive(Debug, Clone)]
pub struct Outlook(watch::Receiver<Option<u32>>);

impl Outlook {
    /// Seconds, counted from a moment ago; `None` if the launcher does not know.
    pub fn seconds(&self) -> Option<u32> {
        *self.0.borrow()
    }
}

impl From<Option<u32>> for Outlook {
    /// Makes an outlook that never changes.
    fn from(seconds: Option<u32>) -> Self {
        Self(watch::channel(seconds).1)
    }
}

/// Time from the halt to the end of the process, at most.
pub(crate) const HALT_GRACE: Duration = Duration::from_millis(1500);

/// Channels for the launcher's messages.
type LauncherSenders = (watch::Sender<Pings>, watch::Sender<Option<u32>>);

/// A child's connection to its launcher. Cheap to clone; no method blocks.
#[derive(Debug, Clone)]
pub struct ControlLink {
    outgoing: UnboundedSender<ChildMessage>,
    lifecycle: Lifecycle,
    pings: watch::Receiver<Pings>,
    outlook: Outlook,
    /// Cancelled when no more reports will come.
    closing: CancellationToken,
    /// Disconnected when all reports are written.
    written: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl ControlLink {
    /// Connects to the launcher's socket and says hello. Returns before the launcher has read
    /// it. A thread of its own serves the link. So the end of the launcher ends this process,
    /// whatever the role's threads do.
    ///
    /// # Errors
    /// If nobody listens, or if the listener is not this process's parent: then the parent
    /// died, and the death signal watches the wrong process.
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

    /// Serves the link over a connected socket. `end` is called with an exit code if the
    /// process must end and has not done so by itself.
    pub(crate) fn over(
        stream: std::os::unix::net::UnixStream,
        role: Role,
        end: impl FnOnce(u8) + Send + 'static,
    ) -> Result<Self, RoleError> {
        let (written_all, written) = mpsc::channel();
        let (link, outgoing, (pings, outlook)) = Self::new(written);
        let pid = getpid().as_raw_nonzero().get().unsigned_abs();
        link.send(ChildMessage::Hello {
            role: role.to_string(),
            pid,
        });
        let reports = driver::Reports {
            outgoing,
            pings,
            outlook,
            closing: link.closing.clone(),
            written_all,
        };
        driver::start(stream, reports, link.lifecycle.clone(), end).map_err(RoleError::Link)?;
        Ok(link)
    }

    /// A link without a launcher, for a role that runs inside another process. Reports can be
    /// read from the receiver, and the caller cancels the [`Lifecycle`].
    pub fn detached() -> (Self, UnboundedReceiver<ChildMessage>) {
        let (link, reports, _nobody_tells) = Self::new(mpsc::channel().1);
        (link, reports)
    }

    /// The link with another outlook, the launcher's estimate of when a restart will serve.
    pub fn with_outlook(self, outlook: impl Into<Outlook>) -> Self {
        let outlook = outlook.into();
        Self { outlook, ..self }
    }

    fn new(
        written: mpsc::Receiver<()>,
    ) -> (Self, UnboundedReceiver<ChildMessage>, LauncherSenders) {
        let (outgoing, reports) = unbounded_channel();
        let (pinged, pings) = watch::channel(Pings::default());
        let (foreseen, outlook) = watch::channel(None);
        let written = Arc::new(Mutex::new(written));
        let (lifecycle, closing) = (Lifecycle::default(), CancellationToken::new());
        (
            Self {
                outgoing,
                lifecycle,
                pings,
                outlook: Outlook(outlook),
                closing,
                written,
            },
            reports,
            (pinged, foreseen),
        )
    }

    /// Reports the progress of `phase`: `done` of `total` units.
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

    /// Answers the launcher's pings until the link ends. A role runs this on the runtime that
    /// does its work, so that a missing answer shows that the role hangs. The launcher then
    /// ends the process (`--ping-timeout`).
    pub async fn answer_pings(&self) -> Infallible {
        let mut pings = self.pings.clone();
        while pings.changed().await.is_ok() {
            self.send(ChildMessage::Pong {
                lost_log_lines: crate::logging::lost_lines(),
            });
        }
        // There is no launcher to answer. The lifecycle tells its end.
        std::future::pending().await
    }

    /// Log lines that the processes of this node have lost, by the last ping. If this process
    /// alone knows of more, its own number.
    pub fn lost_log_lines(&self) -> u64 {
        let all = self.pings.borrow().lost_log_lines;
        all.max(crate::logging::lost_lines())
    }

    /// The launcher's estimate of when requests will be served that can't be served now.
    pub fn outlook(&self) -> &Outlook {
        &self.outlook
    }

    /// Requests to end this process.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    /// Closes the link once everything reported so far has been written, and waits for that, at
    /// most `limit`.
    pub(crate) fn close(&self, limit: Duration) {
        self.closing.cancel();
        if let Ok(written) = self.written.lock() {
            // Ends by disconnection or by the limit; nothing is ever sent.
            let _ = written.recv_timeout(limit);
        }
    }

    fn send(&self, message: ChildMessage) {
        // Fails only if the link is closed, and then the lifecycle says so.
        let _ = self.outgoing.send(message);
    }
}

#[cfg(test)]
mod tests;
