//! The constraint of an output, as sampling sees it: a set of tokens at each position.

use std::fmt::Debug;

use crate::SamplingError;

/// State of a constrained output: the tokens that may come next. What it allows is a function
/// of the tokens taken so far.
pub trait TokenConstraint: Debug {
    /// Returns the allowed tokens: bit `id % 32` of word `id / 32`. Tokens beyond the last word
    /// are not allowed.
    ///
    /// # Errors
    /// [`SamplingError::Constraint`], now and from then on.
    fn allowed(&mut self) -> Result<&[u32], SamplingError>;

    /// Takes in the next token.
    ///
    /// # Errors
    /// [`SamplingError::Constraint`] if the token is not allowed; the state stays as it was.
    fn take(&mut self, token: u32) -> Result<(), SamplingError>;

    /// Forgets the last `tokens` tokens.
    ///
    /// # Errors
    /// [`SamplingError::Constraint`] if fewer were taken.
    fn give_back(&mut self, tokens: usize) -> Result<(), SamplingError>;
}

/// Returns true if `allowed`, in the form of [`TokenConstraint::allowed`], has a token.
pub fn allows(allowed: &[u32], token: u32) -> bool {
    let word = allowed.get(token as usize / 32);
    word.is_some_and(|word| word >> (token % 32) & 1 == 1)
}

/// Sets the logits of tokens that are not allowed to -∞.
pub(crate) fn restrict(logits: &mut [f32], allowed: &[u32]) {
    let words = allowed.iter().copied().chain(std::iter::repeat(0));
    for (logits, word) in logits.chunks_mut(32).zip(words) {
        match word {
            u32::MAX => {}
            0 => logits.fill(f32::NEG_INFINITY),
            word => {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    if word >> bit & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}
