//! Looking ahead of an output, for drafts.

use std::{
    fmt,
    time::{Duration, Instant},
};

use lockstep_sampling::{SamplingError, TokenConstraint};

use crate::{Matcher, matcher::Computed};

/// Time that the walks of an output may take, all together: this much, and more with each token
/// of the output. Usual walks take a hundredth of it.
const AT_FIRST: Duration = Duration::from_secs(1);
const FOR_EACH_TOKEN: Duration = Duration::from_millis(1);

/// A second state of a constrained output, which walks along drafts and comes back.
///
/// Nothing that it meets reaches the state that decides about tokens: neither the memory and the
/// work that drafts cost, nor a walk that takes too long. So a text and its end do not depend on
/// drafts. If a walk fails, there are no more forced drafts for this output.
///
/// Walks may take a second, and a millisecond for each token of the output. Where the constraint
/// is so hard that they took longer, there are no more walks. So the times of walks change drafts,
/// which a lead tells the other ranks, and never a text.
pub struct Lookahead {
    matcher: Matcher,
    /// Tokens of the output that the matcher has taken in.
    known: usize,
    /// Drafts that the matcher has taken in behind them.
    path: Vec<u32>,
    /// Time that walks took.
    walked: Duration,
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
        Self {
            matcher,
            known: 0,
            path: Vec::new(),
            walked: Duration::ZERO,
        }
    }

    /// Returns the masks computed since the last call.
    pub fn take_computed(&mut self) -> Computed {
        self.matcher.take_computed()
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
    /// If walks have failed or took too long, the chain stays as it is.
    pub fn guide(&mut self, output: &[u32], chain: &mut Vec<u32>, most: usize) -> usize {
        if is_spent(self.walked, output.len()) {
            return chain.len();
        }
        let begun = Instant::now();
        let left = self.walk(output, chain, most);
        self.walked += begun.elapsed();
        left
    }

    fn walk(&mut self, output: &[u32], chain: &mut Vec<u32>, most: usize) -> usize {
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

    /// Returns true if walks behind an output of `tokens` tokens may take more time.
    pub fn walks(&self, tokens: usize) -> bool {
        self.matcher.failure().is_none() && !is_spent(self.walked, tokens)
    }

    /// Returns the mask behind `path`, drafts that follow the whole `output` so far. Returns `None`
    /// if a token of the path is forbidden, or if walks have failed or took too long. The drafts
    /// stay taken in until [`Self::come_back`], so paths with equal beginnings cost these once.
    pub fn allowed_behind(&mut self, output: &[u32], path: &[u32]) -> Option<&[u32]> {
        if !self.walks(output.len()) {
            return None;
        }
        let begun = Instant::now();
        let there = self.walk_to(output, path);
        let there = there.and_then(|()| self.matcher.allowed().map(|_| ()));
        self.walked += begun.elapsed();
        there.and_then(|()| self.matcher.allowed()).ok()
    }

    fn walk_to(&mut self, output: &[u32], path: &[u32]) -> Result<(), SamplingError> {
        let shared = self.path.iter().zip(path);
        let shared = shared.take_while(|(own, token)| own == token).count();
        self.back_to(shared)?;
        self.follow(output)?;
        for token in &path[shared..] {
            self.matcher.take(*token)?;
            self.path.push(*token);
        }
        Ok(())
    }

    fn back_to(&mut self, drafts: usize) -> Result<(), SamplingError> {
        let back = self.path.len() - drafts;
        self.path.truncate(drafts);
        self.matcher.give_back(back)
    }

    /// Gives back the drafts that [`Self::allowed_behind`] has taken in.
    pub fn come_back(&mut self) {
        // A failure here is met again by the next walk.
        let _ = self.back_to(0);
    }

    /// Returns true if a token ends the output.
    pub fn is_end(&self, token: u32) -> bool {
        self.matcher.is_end(token)
    }
}

/// Returns true if walks that took this time may take no more of it, `tokens` into the output.
fn is_spent(walked: Duration, tokens: usize) -> bool {
    let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
    walked > AT_FIRST + FOR_EACH_TOKEN * tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_walks_grows_with_the_output() {
        let longest = Duration::from_millis(1300);
        assert!(!is_spent(Duration::ZERO, 0) && !is_spent(longest, 300));
        assert!(is_spent(longest, 299) && !is_spent(longest, usize::MAX));
    }
}
