use lockstep_backend::BackendError;
use lockstep_model::ModelError;

/// Why drafting failed; the rank can't go on.
#[derive(Debug, thiserror::Error)]
pub enum DraftError {
    /// The device.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The draft model's files, or a pass of it.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Nobody registered an algorithm of that name.
    #[error("no speculative algorithm is called {0}; this program was built without it")]
    Unknown(String),
    /// A drafter did what none may.
    #[error("{algorithm} broke the rules of drafters: {reason}")]
    Rules {
        /// The algorithm.
        algorithm: String,
        /// What it did, and the rule.
        reason: String,
    },
    /// What the configuration promised is not there.
    #[error("{algorithm} can't start: {reason}")]
    Config {
        /// The algorithm.
        algorithm: String,
        /// What is missing, and the remedy.
        reason: String,
    },
}
