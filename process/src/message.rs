//! Lines on the control socket: one JSON object each, at most 64 KiB.

use serde::{Deserialize, Serialize};

/// Longest accepted line, bytes.
pub(crate) const MAX_LINE: u64 = 64 * 1024;

/// From a child to its launcher; the first is always [`ChildMessage::Hello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum ChildMessage {
    /// Who is talking.
    Hello {
        /// The role as displayed, such as `worker 1`.
        role: String,
        /// Process id.
        pid: u32,
    },
    /// How far a start-up phase is.
    Progress {
        /// What is being done, such as `weights`.
        phase: String,
        /// Units done.
        done: u64,
        /// Units in all.
        total: u64,
    },
    /// The role serves.
    Ready {
        /// One line for people.
        detail: String,
    },
    /// The role's own runtime has seen a [`LauncherMessage::Ping`].
    Pong {
        /// Log lines that this process has lost.
        lost_log_lines: u64,
    },
    /// The role cannot go on and ends.
    Failed {
        /// What happened and what to do, for people.
        message: String,
    },
}

/// From the launcher to a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum LauncherMessage {
    /// Say that clients should go elsewhere, and go on serving: a drain follows.
    Leave,
    /// Stop admitting, finish what runs, exit 0.
    Drain,
    /// Stop now.
    Halt,
    /// When requests that can't be served will be, if the launcher knows. While the
    /// engine serves: if it failed now.
    Outlook {
        /// Seconds from now, at least one.
        served_in_s: Option<u32>,
    },
    /// Asks whether the role's own runtime still runs.
    Ping {
        /// Log lines that all processes of this node have lost.
        lost_log_lines: u64,
    },
}

/// What a launcher learns from one child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChildReport {
    /// A line arrived.
    Message(ChildMessage),
    /// The child closed the link; its exit follows.
    Closed,
    /// A line was not understood; the child is of another version or broken.
    Garbled(String),
}
