//! What can go wrong inside the planner.

/// A fault of the configuration or of the engine's answers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlannerError {
    /// A configuration no planner can work with.
    #[error("{field}: {message}")]
    Config {
        /// The field of `PlannerConfig`.
        field: &'static str,
        /// What is wrong and what to do.
        message: String,
    },
    /// Results must come one per plan, in order.
    #[error("result of step {got} arrived, expected {expected:?}")]
    StepOrder {
        /// The oldest step in flight.
        expected: Option<u64>,
        /// The result's step.
        got: u64,
    },
    /// A result that does not fit its plan; the engine is not to be trusted.
    #[error("result of step {step}: {message}")]
    BadResult {
        /// The step.
        step: u64,
        /// What does not fit.
        message: String,
    },
}

/// The operation needs an idle planner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{running} requests are running and {in_flight} steps are in flight")]
pub struct Busy {
    /// Clients' requests that hold a slot; while admission is held, that have begun.
    pub running: u32,
    /// Steps without a result.
    pub in_flight: u32,
}

/// The planner's books do not balance: a bug of the planner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IntegrityError {
    /// A page has no owner, or more than one.
    #[error("page {page} is held {holders} times")]
    Page {
        /// The page.
        page: u32,
        /// Free list, cache nodes and requests that hold it.
        holders: u32,
    },
    /// A slot is neither free, closing nor held by exactly one request.
    #[error("slot {slot} is held {holders} times")]
    Slot {
        /// The slot.
        slot: u32,
        /// Free list, closing list and requests that hold it.
        holders: u32,
    },
    /// A cache node is wrong.
    #[error("cache node {node}: {message}")]
    Cache {
        /// The node.
        node: u32,
        /// What is wrong.
        message: String,
    },
    /// A request's own counters are wrong.
    #[error("request {id}: {message}")]
    Request {
        /// The request.
        id: u64,
        /// What is wrong.
        message: String,
    },
    /// A kept total differs from the sum of its parts.
    #[error("{what}: kept {kept}, counted {counted}")]
    Total {
        /// The total.
        what: &'static str,
        /// As kept.
        kept: u64,
        /// As summed up.
        counted: u64,
    },
}

/// A kept total must be the sum of its parts.
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
