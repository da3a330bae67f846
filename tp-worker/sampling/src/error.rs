//! Reasons why no token can be chosen.

/// Logits that no token can be chosen from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SamplingError {
    /// A logit is NaN or +∞, or all are -∞: the model's arithmetic overflowed.
    #[error(
        "the model's logits are not finite (token {token}); its weights are damaged or overflow \
         in this --dtype: try --dtype float32"
    )]
    NotFinite {
        /// The first token with such a logit.
        token: u32,
    },
    /// The output's constraint can't be followed: it reached a limit, or the model gives every
    /// allowed token the probability 0.
    #[error("the output's constraint leaves no token")]
    Constraint,
    /// The row's length is not the vocabulary's.
    #[error("a row of {found} logits came for a vocabulary of {expected}")]
    WrongWidth {
        /// Length of the row.
        found: usize,
        /// Size of the vocabulary.
        expected: usize,
    },
}
