//! What can go wrong in a collective.

use std::time::Duration;

use crate::Operation;
use crate::attachment::Attachment;

/// Why a group could not be formed or an operation could not finish.
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
        /// What the reporting rank runs.
        ours: Operation,
        /// The rank that differs.
        peer: usize,
        /// What that rank runs.
        theirs: Operation,
    },
    /// Two ranks attached what doesn't agree to the same operation.
    #[error(
        "ranks diverged: rank {rank} brings {} to {operation}, and rank {peer} brings {}; \
         what is shared must be equal",
        brings(*shared, ours), brings(*their_shared, theirs)
    )]
    Attached {
        /// The rank that reports.
        rank: usize,
        /// The words that it attached, none if it attached nothing.
        ours: Vec<u32>,
        /// How many of them must be equal on all ranks, from the first.
        shared: usize,
        /// The rank that differs.
        peer: usize,
        /// The words that it attached.
        theirs: Vec<u32>,
        /// How many of them, in that rank's opinion, must be equal.
        their_shared: usize,
        /// What they were attached to.
        operation: Operation,
    },
    /// A peer did not take part before the deadline.
    #[error("rank {rank} waited {waited:?} for rank {missing} in {operation}: it is dead or stuck")]
    Timeout {
        /// The rank that reports.
        rank: usize,
        /// The rank that did not come.
        missing: usize,
        /// What was waited for.
        operation: Operation,
        /// How long.
        waited: Duration,
    },
    /// A peer failed, aborted or was dropped.
    #[error("rank {peer} left the group while rank {rank} waited for it in {operation}")]
    PeerLeft {
        /// The rank that reports.
        rank: usize,
        /// The rank that left.
        peer: usize,
        /// What was waited for.
        operation: Operation,
    },
    /// Two ranks are about to begin different things.
    #[error(
        "ranks diverged: rank {rank} begins with {ours:x?}, and rank {peer} with {theirs:x?}; \
         what they agree on must be equal"
    )]
    Disagree {
        /// The rank that reports.
        rank: usize,
        /// What it would begin with.
        ours: Vec<u32>,
        /// The rank that differs.
        peer: usize,
        /// What that one would.
        theirs: Vec<u32>,
    },
    /// Data of peers did not come by the devices' own way before the deadline, or before
    /// another rank gave it up.
    #[error("rank {rank} waited {waited:?} for data from device to device: {stall}")]
    Stalled {
        /// The rank that reports.
        rank: usize,
        /// How long.
        waited: Duration,
        /// What is known of the reason.
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
    /// The devices' own way failed.
    #[error("rank {rank}: {reason}")]
    Way {
        /// The rank that reports.
        rank: usize,
        /// What failed, and what to do about it.
        reason: String,
    },
    /// This rank was aborted through its [`crate::AbortHandle`].
    #[error("the collectives of rank {rank} were aborted{}", while_waiting(*missing))]
    Aborted {
        /// The rank that reports.
        rank: usize,
        /// The rank that it waited for, where that is known.
        missing: Option<usize>,
    },
    /// The caller's buffers don't fit together.
    #[error("rank {rank}: {reason}")]
    Argument {
        /// The rank that reports.
        rank: usize,
        /// What doesn't fit.
        reason: String,
    },
    /// The group could not be formed.
    #[error("rank {rank} cannot join its group: {reason}")]
    Join {
        /// The rank that reports.
        rank: usize,
        /// Why, and what to do about it.
        reason: String,
    },
    /// The system refused something.
    #[error("rank {rank}: {what}: {source_text}")]
    System {
        /// The rank that reports.
        rank: usize,
        /// What was tried.
        what: String,
        /// The system's own words.
        source_text: String,
    },
}

/// Why data did not come from device to device, as far as ranks see each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stall {
    /// A peer has not come there.
    #[error(
        "rank {peer} has begun {theirs} collectives, and this rank {ours}, the last of them {last}; \
         rank {peer} is dead or stuck"
    )]
    Missing {
        /// The peer.
        peer: usize,
        /// What it has begun.
        theirs: u64,
        /// What this rank has.
        ours: u64,
        /// What this rank has begun last.
        last: String,
    },
    /// A peer waits for something else.
    #[error(
        "the ranks have diverged: this rank has begun {ours} collectives, the last of them {last}, \
         and rank {peer} {theirs}, the last of them {their_last}"
    )]
    Diverged {
        /// The peer.
        peer: usize,
        /// What this rank has begun.
        ours: u64,
        /// And last.
        last: String,
        /// What the peer has begun.
        theirs: u64,
        /// And last.
        their_last: String,
    },
    /// All have begun the same, and a peer gives no sign of life.
    #[error(
        "rank {peer} has begun the same collectives as this rank, and has given no sign of life \
         for {silent:?}; it is dead or stopped"
    )]
    Silent {
        /// The peer.
        peer: usize,
        /// For how long.
        silent: Duration,
    },
    /// All that can be seen have begun the same.
    #[error("one of its peers is dead or stuck, or computes something else")]
    Unknown,
}

impl CollectiveError {
    /// A [`CollectiveError::System`] from anything that describes itself.
    pub(crate) fn system(rank: usize, what: impl Into<String>, source: &impl ToString) -> Self {
        Self::System {
            rank,
            what: what.into(),
            source_text: source.to_string(),
        }
    }

    /// A [`CollectiveError::Attached`]: ranks and what they attached.
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

    /// The same, where it says that this rank was aborted: while it waited for `peer`.
    pub(crate) fn waiting_for(self, peer: usize) -> Self {
        match self {
            Self::Aborted { rank, .. } => Self::Aborted {
                rank,
                missing: Some(peer),
            },
            other => other,
        }
    }

    /// A [`CollectiveError::Join`].
    pub(crate) fn join(rank: usize, reason: impl Into<String>) -> Self {
        Self::Join {
            rank,
            reason: reason.into(),
        }
    }
}

/// Whom an aborted rank waited for.
fn while_waiting(missing: Option<usize>) -> String {
    missing.map_or_else(String::new, |peer| {
        format!(" while it waited for rank {peer}")
    })
}

/// What a rank attached, for people: of many words those that are compared.
fn brings(shared: usize, words: &[u32]) -> String {
    match words.len() {
        0 => "no words".into(),
        count => format!("{count} words with {:?} shared", &words[..shared]),
    }
}
