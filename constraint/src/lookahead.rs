//! Looking ahead of an output, for drafts.

use std::fmt;

use lockstep_sampling::{SamplingError, TokenConstraint};

use crate::Matcher;

/// A second state of a constrained output, which walks along drafts and comes back.
///
/// Nothing that it meets reaches the state that decides about tokens: neither the memory and the
/// work that drafts cost, nor a walk that takes too long. So a text and its end do not depend on
/// drafts. If a walk fails, there are no more forced drafts for this output.
pub struct Lookahead {
    matcher: Matcher,
    /// Tokens of the output that the matcher has taken in.
    known: usize,
}

impl fmt::Debug for Lookahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookahead")
            .field("known", &self.known)
            .finish_non_exhaustive()
    }
}

impl Lookahead {
    /// Makes a lookahead of an empty output.
    pub(crate) fn new(matcher: Matcher) -> Self {
        Self { matcher, known: 0 }
    }

    /// Takes in the tokens of `output` that are new, the whole output so far.
    ///
    /// # Errors
    /// [`SamplingError::Constraint`], for good, if they break the constraint.
    pub fn follow(&mut self, output: &[u32]) -> Result<(), SamplingError> {
        for token in &output[self.known.min(output.len())..] {
            self.matcher.take(*token)?;
            self.known += 1;
        }
        Ok(())
    }

    /// Makes a chain of drafts behind `output` follow the constraint. The chain is cut before
    /// the first token that is forbidden. Forced tokens take the place of the rest, up to `most`
    /// tokens in all, but none follows an end token. Returns the number of drafts that are left.
    pub fn guide(&mut self, output: &[u32], chain: &mut Vec<u32>, most: usize) -> usize {
        let drafted = chain.len();
        if self.matcher.failure().is_some() || self.follow(output).is_err() {
            return drafted;
        }
        let mut left = 0;
        while left < drafted && !self.matcher.has_ended() && self.matcher.take(chain[left]).is_ok()
        {
            left += 1;
        }
        if self.matcher.failure().is_some() {
            return drafted;
        }
        chain.truncate(left);
        while chain.len() < most
            && !self.matcher.has_ended()
            && let Some(token) = self.matcher.forced()
            && self.matcher.take(token).is_ok()
        {
            chain.push(token);
        }
        // A failure here is met again by the next walk.
        let _ = self.matcher.give_back(chain.len());
        left
    }

    /// Returns true if a token ends the output.
    pub fn is_end(&self, token: u32) -> bool {
        self.matcher.is_end(token)
    }
}
