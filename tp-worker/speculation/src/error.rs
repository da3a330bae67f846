use lockstep_backend::BackendError;
use lockstep_model::ModelError;

/// Reasons why drafting failed. The rank can't go on.
#[derive(Debug, thiserror::Error)]
pub enum DraftError {
    /// The device failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The draft model's files are wrong, or a pass of the model failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// No algorithm of that name is registered.
    #[error("no speculative algorithm is called {0}; this program was built without it")]
    Unknown(String),
    /// A drafter broke a rule for all drafters.
    #[error("{algorithm} broke the rules of drafters: {reason}")]
    Rules {
        /// The algorithm.
        algorithm: String,
        /// The drafter's act, and the rule.
        reason: String,
    },
    /// Something that the configuration promised is missing.
    #[error("{algorithm} can't start: {reason}")]
    Config {
        /// The algorithm.
        algorithm: String,
        /// The missing part, and the remedy.
        reason: String,
    },
}
