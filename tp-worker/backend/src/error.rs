//! Errors of a device.

use lockstep_collective::CollectiveError;

use crate::{CollectiveCall, PassKey, collective_call::named};

/// A failed device operation.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The device has no room.
    #[error(
        "{what} needs {bytes} bytes, which the device does not have; lower --mem-fraction-static or --max-total-tokens"
    )]
    OutOfMemory {
        /// The allocation.
        what: &'static str,
        /// Number of bytes that it needs.
        bytes: usize,
    },
    /// A combination that this backend does not implement.
    #[error("{0}")]
    Unsupported(String),
    /// The device failed. The error says what to do.
    #[error("{0}")]
    Device(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The work of a recorded pass asks for another collective than was planned.
    #[error(
        "a pass of {key} asks for {} as its collective {at}, and for {} by its schedule: this is a bug, and --disable-cuda-graph goes around it",
        named(*asked), named(*planned)
    )]
    Unplanned {
        /// The size of the pass.
        key: PassKey,
        /// Number of the collective in the pass, from 0.
        at: usize,
        /// The collective that the work asks for, if any.
        asked: Option<CollectiveCall>,
        /// The collective of the plan, if any.
        planned: Option<CollectiveCall>,
    },
    /// A peer is gone or out of step.
    #[error("collective failed: {0}")]
    Collective(#[source] Box<CollectiveError>),
}

impl From<CollectiveError> for BackendError {
    fn from(error: CollectiveError) -> Self {
        Self::Collective(Box::new(error))
    }
}
