//! Lines on the control socket: one JSON object each, at most 64 KiB.

use serde::{Deserialize, Serialize};

/// Longest accepted line, in bytes.
pub(crate) const MAX_LINE: u64 = 64 * 1024;

/// Message from a child to its launcher. The first one is always [`ChildMessage::Hello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum ChildMessage {
    /// Introduces the child.
    Hello {
        /// The role as displayed, such as `worker 1`.
        role: String,
        /// Process id.
        pid: u32,
    },
    /// Progress of a start-up phase.
    Progress {
        /// Name of the phase, such as `weights`.
        phase: String,
        /// Number of units done.
        done: u64,
        /// Number of all units.
        total: u64,
    },
    /// The role serves.
    Ready {
        /// One line for people.
        detail: String,
    },
    /// The role's own runtime has seen a [`LauncherMessage::Ping`].
    Pong {
        /// Number of log lines that this process has lost.
        lost_log_lines: u64,
    },
    /// The role cannot go on and ends.
    Failed {
        /// Problem and remedy, for people.
        message: String,
    },
}

/// Message from the launcher to a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum LauncherMessage {
    /// Say that clients should go elsewhere, and go on serving: a drain follows.
    Leave,
    /// Stop admitting, finish what runs, exit 0.
    Drain,
    /// Stop now.
    Halt,
    /// Estimate of when requests will be served that can't be served now. While the engine
    /// serves: when they would be, if it failed now.
    Outlook {
        /// Seconds from now, at least one; `None` if the launcher does not know.
        served_in_s: Option<u32>,
    },
    /// Asks whether the role's own runtime still runs.
    Ping {
        /// Number of log lines that all processes of this node have lost.
        lost_log_lines: u64,
    },
}

/// Report of one child to the launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChildReport {
    /// A line arrived.
    Message(ChildMessage),
    /// The child closed the link; its exit follows.
    Closed,
    /// A line was not understood: the child is of another version or broken.
    Garbled(String),
}
