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

/// Tokens of a word of a mask.
const WORD: usize = 32;

/// The bit of each token of a word. Compilers turn loops over it into vectors.
const BITS: [u32; WORD] = {
    let mut bits = [0; WORD];
    let mut at = 0;
    while at < WORD {
        bits[at] = 1 << at;
        at += 1;
    }
    bits
};

/// Sets the logits of tokens that are not allowed to -∞.
pub(crate) fn restrict(logits: &mut [f32], allowed: &[u32]) {
    let words = allowed.iter().copied().chain(std::iter::repeat(0));
    for (logits, word) in logits.chunks_mut(WORD).zip(words) {
        match word {
            u32::MAX => {}
            0 => logits.fill(f32::NEG_INFINITY),
            word => {
                for (logit, bit) in logits.iter_mut().zip(&BITS) {
                    *logit = if_allowed(*logit, word, *bit);
                }
            }
        }
    }
}

/// Returns the allowed token with the largest logit, the lowest id among equals; `None` if none
/// has a finite one. The logits have no NaN and no +∞.
pub(crate) fn most_likely(logits: &[f32], allowed: &[u32]) -> Option<u32> {
    let words = || logits.chunks(WORD).zip(allowed.iter().copied());
    let mut largest = [f32::NEG_INFINITY; WORD];
    for (logits, word) in words().filter(|(_, word)| *word != 0) {
        for ((largest, logit), bit) in largest.iter_mut().zip(logits).zip(&BITS) {
            let logit = if_allowed(*logit, word, *bit);
            *largest = if logit > *largest { logit } else { *largest };
        }
    }
    let max = largest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return None;
    }
    // Which logits of a word are as large, and allowed.
    let equal = |(logits, word): (&[f32], u32)| {
        let equal = |(logit, bit): (&f32, &u32)| if *logit == max { word & bit } else { 0 };
        logits
            .iter()
            .zip(&BITS)
            .map(equal)
            .fold(0, |all, bit| all | bit)
    };
    let mut equals = (0..).zip(words().map(equal));
    let (at, equal) = equals.find(|(_, equal)| *equal != 0)?;
    Some(at * WORD as u32 + equal.trailing_zeros())
}

/// Returns a token's logit, or -∞ if its word has not its bit.
fn if_allowed(logit: f32, word: u32, bit: u32) -> f32 {
    if word & bit == 0 {
        f32::NEG_INFINITY
    } else {
        logit
    }
}
