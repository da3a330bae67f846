//! Errors of collectives.

use std::time::Duration;

use crate::Operation;
use crate::attachment::Attachment;

/// Reasons why a group could not be formed, or an operation could not finish.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// Two ranks are about to run different operations.
    #[error(
        "ranks diverged: rank {rank} runs {ours} while rank {peer} runs {theirs}; \
         both must issue the same operations in the same order"
    )]
    Mismatch {
        /// The rank that reports.
        rank: usize,
        /// The operation of the reporting rank.
        ours: Operation,
        /// The rank that differs.
        peer: usize,
        /// The operation of the rank that differs.
        theirs: Operation,
    },
    /// Two ranks attached words that don't agree to the same operation.
    #[error(
        "ranks diverged: rank {rank} brings {} to {operation}, and rank {peer} brings {}; \
         what is shared must be equal",
        brings(*shared, ours), brings(*their_shared, theirs)
    )]
    Attached {
        /// The rank that reports.
        rank: usize,
        /// The words that the reporting rank attached; empty if it attached nothing.
        ours: Vec<u32>,
        /// Number of these words, from the first, that must be equal on all ranks.
        shared: usize,
        /// The rank that differs.
        peer: usize,
        /// The words attached by the rank that differs.
        theirs: Vec<u32>,
        /// Number of these words, from the first, that this rank takes to be equal on all.
        their_shared: usize,
        /// The operation that the words were attached to.
        operation: Operation,
    },
    /// A peer did not take part before the deadline.
    #[error("rank {rank} waited {waited:?} for rank {missing} in {operation}: it is dead or stuck")]
    Timeout {
        /// The rank that reports.
        rank: usize,
        /// The rank that did not come.
        missing: usize,
        /// The operation that the rank waited in.
        operation: Operation,
        /// Time that the rank waited.
        waited: Duration,
    },
    /// A peer failed, aborted or was dropped.
    #[error("rank {peer} left the group while rank {rank} waited for it in {operation}")]
    PeerLeft {
        /// The rank that reports.
        rank: usize,
        /// The rank that left.
        peer: usize,
        /// The operation that the rank waited in.
        operation: Operation,
    },
    /// Two ranks are about to begin different work.
    #[error(
        "ranks diverged: rank {rank} begins with {ours:x?}, and rank {peer} with {theirs:x?}; \
         what they agree on must be equal"
    )]
    Disagree {
        /// The rank that reports.
        rank: usize,
        /// The words of the reporting rank.
        ours: Vec<u32>,
        /// The rank that differs.
        peer: usize,
        /// The words of the rank that differs.
        theirs: Vec<u32>,
    },
    /// Data of peers did not come from device to device before the deadline, or before another
    /// rank gave up.
    #[error("rank {rank} waited {waited:?} for data from device to device: {stall}")]
    Stalled {
        /// The rank that reports.
        rank: usize,
        /// Time that the rank waited.
        waited: Duration,
        /// The reason, as far as it is known.
        stall: Stall,
    },
    /// A peer left while its data was on its way from device to device.
    #[error("rank {peer} left the group while rank {rank} waited for its data")]
    Deserted {
        /// The rank that reports.
        rank: usize,
        /// The rank that left.
        peer: usize,
    },
    /// The devices' own way of exchanging data failed.
    #[error("rank {rank}: {reason}")]
    Way {
        /// The rank that reports.
        rank: usize,
        /// The failure, and what to do about it.
        reason: String,
    },
    /// This rank was aborted through its [`crate::AbortHandle`].
    #[error("the collectives of rank {rank} were aborted{}", while_waiting(*missing))]
    Aborted {
        /// The rank that reports.
        rank: usize,
        /// The rank that it waited for, if that is known.
        missing: Option<usize>,
    },
    /// The caller's buffers don't fit together.
    #[error("rank {rank}: {reason}")]
    Argument {
        /// The rank that reports.
        rank: usize,
        /// The buffers that don't fit.
        reason: String,
    },
    /// The group could not be formed.
    #[error("rank {rank} cannot join its group: {reason}")]
    Join {
        /// The rank that reports.
        rank: usize,
        /// The reason, and what to do about it.
        reason: String,
    },
    /// The system refused a call.
    #[error("rank {rank}: {what}: {source_text}")]
    System {
        /// The rank that reports.
        rank: usize,
        /// The action that was tried.
        what: String,
        /// The system's own message.
        source_text: String,
    },
}

/// Reasons why data did not come from device to device, as far as ranks see each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stall {
    /// A peer has not begun this rank's last collective.
    #[error(
        "rank {peer} has begun {theirs} collectives, and this rank {ours}, the last of them {last}; \
         rank {peer} is dead or stuck"
    )]
    Missing {
        /// The peer.
        peer: usize,
        /// Number of collectives that the peer has begun.
        theirs: u64,
        /// Number of collectives that this rank has begun.
        ours: u64,
        /// The last collective that this rank has begun.
        last: String,
    },
    /// A peer waits in another collective.
    #[error(
        "the ranks have diverged: this rank has begun {ours} collectives, the last of them {last}, \
         and rank {peer} {theirs}, the last of them {their_last}"
    )]
    Diverged {
        /// The peer.
        peer: usize,
        /// Number of collectives that this rank has begun.
        ours: u64,
        /// The last collective that this rank has begun.
        last: String,
        /// Number of collectives that the peer has begun.
        theirs: u64,
        /// The last collective that the peer has begun.
        their_last: String,
    },
    /// All ranks have begun the same collectives, and a peer gives no sign of life.
    #[error(
        "rank {peer} has begun the same collectives as this rank, and has given no sign of life \
         for {silent:?}; it is dead or stopped"
    )]
    Silent {
        /// The peer.
        peer: usize,
        /// Time since its last sign of life.
        silent: Duration,
    },
    /// All ranks that can be seen have begun the same collectives.
    #[error("one of its peers is dead or stuck, or computes something else")]
    Unknown,
}

impl CollectiveError {
    /// Makes a [`CollectiveError::System`] from any source that describes itself.
    pub(crate) fn system(rank: usize, what: impl Into<String>, source: &impl ToString) -> Self {
        Self::System {
            rank,
            what: what.into(),
            source_text: source.to_string(),
        }
    }

    /// Makes a [`CollectiveError::Attached`] from two ranks and their attachments.
    pub(crate) fn attached(
        operation: Operation,
        (rank, ours): (usize, &Attachment),
        (peer, theirs): (usize, &Attachment),
    ) -> Self {
        Self::Attached {
            rank,
            ours: ours.words().to_vec(),
            shared: ours.shared().len(),
            peer,
            theirs: theirs.words().to_vec(),
            their_shared: theirs.shared().len(),
            operation,
        }
    }

    /// Adds to an abort of this rank that it waited for `peer`. Other errors stay.
    pub(crate) fn waiting_for(self, peer: usize) -> Self {
        match self {
            Self::Aborted { rank, .. } => Self::Aborted {
                rank,
                missing: Some(peer),
            },
            other => other,
        }
    }

    /// Makes a [`CollectiveError::Join`].
    pub(crate) fn join(rank: usize, reason: impl Into<String>) -> Self {
        Self::Join {
            rank,
            reason: reason.into(),
        }
    }
}

/// Names the rank that an aborted rank waited for.
fn while_waiting(missing: Option<usize>) -> String {
    missing.map_or_else(String::new, |peer| {
        format!(" while it waited for rank {peer}")
    })
}

/// Describes a rank's attachment, for people. Of the words it shows only those that are
/// compared.
fn brings(shared: usize, words: &[u32]) -> String {
    match words.len() {
        0 => "no words".into(),
        count => format!("{count} words with {:?} shared", &words[..shared]),
    }
}
