//! Errors of the planner.

/// A fault of the configuration or of the engine's answers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlannerError {
    /// A configuration that no planner can work with.
    #[error("{field}: {message}")]
    Config {
        /// The field of `PlannerConfig`.
        field: &'static str,
        /// The fault and the remedy.
        message: String,
    },
    /// A result of another step than the oldest one in flight.
    #[error("result of step {got} arrived, expected {expected:?}")]
    StepOrder {
        /// The oldest step in flight.
        expected: Option<u64>,
        /// The result's step.
        got: u64,
    },
    /// A result that does not fit its plan. The engine can't be trusted.
    #[error("result of step {step}: {message}")]
    BadResult {
        /// The step.
        step: u64,
        /// The mismatch.
        message: String,
    },
}

/// Refusal of an operation that needs an idle planner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{running} requests are running and {in_flight} steps are in flight")]
pub struct Busy {
    /// Clients' requests that hold a slot; while admission is held, clients' requests that have
    /// begun.
    pub running: u32,
    /// Steps without a result.
    pub in_flight: u32,
}

/// A contradiction in the planner's state: a bug of the planner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IntegrityError {
    /// A page has no owner, or more than one.
    #[error("page {page} of group {group} is held {holders} times")]
    Page {
        /// The page's group of layers.
        group: usize,
        /// The page.
        page: u32,
        /// Number of holders: free list, cache nodes and requests.
        holders: u32,
    },
    /// A recurrent state has no owner, or more than one.
    #[error("state {state} is held {holders} times")]
    State {
        /// The state.
        state: u32,
        /// Number of holders: free list, cached blocks and requests.
        holders: u32,
    },
    /// A slot that is neither free nor held by exactly one request, or is both.
    #[error("slot {slot} is held {holders} times")]
    Slot {
        /// The slot.
        slot: u32,
        /// Number of holders: free list and requests.
        holders: u32,
    },
    /// A cache node is wrong.
    #[error("cache node {node}: {message}")]
    Cache {
        /// The node.
        node: u32,
        /// The fault.
        message: String,
    },
    /// A request whose own counters are wrong.
    #[error("request {id}: {message}")]
    Request {
        /// The request.
        id: u64,
        /// The fault.
        message: String,
    },
    /// A kept total differs from the sum of its parts.
    #[error("{what}: kept {kept}, counted {counted}")]
    Total {
        /// Name of the total.
        what: &'static str,
        /// The total as kept.
        kept: u64,
        /// The total as summed up.
        counted: u64,
    },
}

/// Checks that a kept total is the sum of its parts.
pub(crate) fn total(what: &'static str, kept: u64, counted: u64) -> Result<(), IntegrityError> {
    if kept == counted {
        return Ok(());
    }
    Err(IntegrityError::Total {
        what,
        kept,
        counted,
    })
}
