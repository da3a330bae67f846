//! The state of one constrained output.

mod before;
mod grammar;

use std::{fmt, sync::Arc, time::Duration};

use before::{Before, State};
use grammar::Grammar;
use llguidance::CancellationHandle;
use lockstep_sampling::{SamplingError, TokenConstraint, allows};

pub(crate) use before::FreeText;

use crate::{Vocabulary, blanks::MOST_BLANKS, forced::forced, watch::Watch};

/// The state of one constrained output: tokens that were taken, tokens that may follow.
///
/// Once the constraint is fulfilled and can't go on, end tokens alone are allowed, any number of
/// times. Where anything may follow the free text, nothing is ever fulfilled or ended: an end token
/// is a token like others, as in an output without a constraint.
pub struct Matcher {
    /// `None` = anything may follow the free text.
    grammar: Option<Grammar>,
    vocabulary: Arc<Vocabulary>,
    before: Option<Before>,
    /// Tokens of the constrained part, behind those of `before`.
    taken: usize,
    /// End tokens behind them.
    ended: usize,
    /// The allowed tokens of this state; empty = not known yet.
    mask: Vec<u32>,
    failure: Option<String>,
}

/// The masks that a grammar computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Computed {
    /// Their number.
    pub masks: u64,
    /// Their time.
    pub took: Duration,
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matcher")
            .field("before", &self.before)
            .field("taken", &self.taken)
            .field("ended", &self.ended)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

impl Matcher {
    /// Makes the state of an empty output: first `before`, then the words of `grammar`, or
    /// anything.
    pub(crate) fn new(
        grammar: Option<llguidance::Matcher>,
        vocabulary: Arc<Vocabulary>,
        before: Option<FreeText>,
    ) -> Self {
        Self {
            mask: Vec::with_capacity(vocabulary.width().div_ceil(32)),
            grammar: grammar.map(Grammar::new),
            vocabulary,
            before: before.map(Before::new),
            taken: 0,
            ended: 0,
            failure: None,
        }
    }

    /// Lets no mask and no token take longer than a moment. The constraint fails if one does.
    pub(crate) fn watched(self, watch: Arc<Watch>) -> Self {
        Self {
            grammar: self.grammar.map(|grammar| grammar.watched(watch)),
            ..self
        }
    }

    /// Makes the state give up earlier, since nothing but drafts needs it.
    pub(crate) fn for_drafts(self) -> Self {
        Self {
            grammar: self.grammar.map(Grammar::for_drafts),
            ..self
        }
    }

    /// Returns why the constraint can't be followed any further, if that is so.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns the masks computed since the last call.
    pub fn take_computed(&mut self) -> Computed {
        let grammar = self.grammar.as_mut();
        grammar.map_or_else(Computed::default, |grammar| {
            std::mem::take(&mut grammar.computed)
        })
    }

    /// Returns true if the output may end here.
    ///
    /// # Errors
    /// [`SamplingError::Constraint`], for good.
    pub fn is_fulfilled(&mut self) -> Result<bool, SamplingError> {
        match self.before() {
            before if self.grammar.is_none() => Ok(!before.is_some_and(Before::is_over)),
            Some(before) if before.is_broken() => Ok(true),
            Some(before) if before.is_free() => Ok(false),
            _ if self.ended > 0 => Ok(true),
            _ => {
                let accepting = self.behind_opening(|grammar, _| grammar.is_accepting())?;
                Ok(accepting.unwrap_or(false))
            }
        }
    }

    /// Returns the token that spells most of the text that must come next: a likely draft, since
    /// other tokens may spell that text too. Returns `None` if several texts may come, or if the
    /// constraint fails. It computes the mask of this place unless it is known, and keeps it until
    /// a token is taken or given back.
    pub fn forced(&mut self) -> Option<u32> {
        self.allowed().ok()?;
        forced(&self.mask, &self.vocabulary)
    }

    /// Returns true if a token ends the output.
    pub(crate) fn is_end(&self, token: u32) -> bool {
        self.vocabulary.end_tokens().contains(&token)
    }

    /// Returns true if an end token was taken.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended > 0
    }

    /// Returns the work of all masks so far. It is the same on every machine.
    pub(crate) fn spent(&self) -> u64 {
        self.grammar.as_ref().map_or(0, Grammar::spent)
    }

    /// Returns a handle by which another thread ends a mask that takes too long. The constraint
    /// fails then.
    pub(crate) fn cancellation(&mut self) -> Option<CancellationHandle> {
        self.grammar.as_ref()?.cancellation()
    }

    /// Returns the text before the constrained part; `None` in that part.
    fn before(&self) -> Option<&Before> {
        self.before.as_ref().filter(|_| self.taken == 0)
    }

    fn fail(&mut self, why: String) -> SamplingError {
        self.failure.get_or_insert(why);
        SamplingError::Constraint
    }

    /// Runs `read` on the grammar's state, and gives it the empty mask to fill. The tokens of an
    /// opening mark that is not whole are taken in for as long as that takes. Returns `None` if
    /// they can't begin the constrained part, or without a grammar.
    fn behind_opening<T>(
        &mut self,
        read: impl FnOnce(&mut Grammar, &mut Vec<u32>) -> Result<T, String>,
    ) -> Result<Option<T>, SamplingError> {
        let Some(grammar) = &mut self.grammar else {
            return Ok(None);
        };
        let before = self.before.as_ref().filter(|_| self.taken == 0);
        let opening = match before {
            Some(before) if matches!(before.state, State::Open(_)) => before.opening.as_slice(),
            _ => &[],
        };
        let run = || {
            if !opening.is_empty() && !grammar.allows(opening)? {
                return Ok(None);
            }
            grammar.take(opening)?;
            let found = read(grammar, &mut self.mask);
            grammar.give_back(opening.len())?;
            found.map(Some)
        };
        run().map_err(|why| self.fail(why))
    }

    /// Computes the mask of this state.
    fn compute(&mut self) -> Result<(), SamplingError> {
        if self.ended > 0 {
            self.vocabulary.ends(&mut self.mask);
            return Ok(());
        }
        let before = self.before.as_ref().filter(|_| self.taken == 0);
        if let Some(before) = before.filter(|before| before.is_free()) {
            before.free_mask(self.grammar.is_none(), &self.vocabulary, &mut self.mask);
            return Ok(());
        }
        if self.grammar.is_none() || before.is_some_and(Before::is_broken) {
            self.vocabulary.all(&mut self.mask);
            if let Some(forbidden) = before.and_then(|own| own.forbidden_mask(&self.vocabulary)) {
                let words = self.mask.iter_mut().zip(forbidden);
                words.for_each(|(word, forbidden)| *word &= !forbidden);
            }
            return Ok(());
        }
        let vocabulary = self.vocabulary.clone();
        self.behind_opening(|grammar, mask| match grammar.is_stopped() {
            true => {
                vocabulary.ends(mask);
                Ok(())
            }
            false => grammar.mask(mask),
        })?;
        let Some(before) = self.before.as_ref().filter(|_| self.taken == 0) else {
            return Ok(());
        };
        self.mask.resize(vocabulary.width().div_ceil(32), 0);
        if let Some(opening) = before.opening_mask(&vocabulary) {
            let words = self.mask.iter_mut().zip(opening);
            words.for_each(|(word, opening)| *word |= opening);
        }
        if let State::Closed(blanks) = before.state {
            let left = MOST_BLANKS.saturating_sub(blanks);
            for (token, _) in vocabulary.blanks().filter(|(_, len)| *len <= left) {
                self.mask[token as usize / 32] |= 1 << (token % 32);
            }
        }
        Ok(())
    }

    /// Takes in a token where anything may follow the free text.
    fn take_any(&mut self, token: u32) -> Result<(), SamplingError> {
        let before = self.before.as_mut().filter(|_| self.taken == 0);
        let is_free = match before {
            None => false,
            Some(before) => {
                let forbidden = before.forbidden_mask(&self.vocabulary);
                if forbidden.is_some_and(|mask| allows(mask, token)) {
                    return Err(SamplingError::Constraint);
                }
                before.take_any(token, &self.vocabulary)?
            }
        };
        self.taken += usize::from(!is_free);
        Ok(())
    }

    /// Takes in a token of the free text, of its marks, or of the blanks behind it. Returns false
    /// if the token is the grammar's.
    fn take_free(&mut self, token: u32) -> Result<bool, SamplingError> {
        let (Some(before), Some(grammar)) = (&mut self.before, &mut self.grammar) else {
            return Ok(false);
        };
        if self.taken > 0 {
            return Ok(false);
        }
        let mut failure = None;
        let taken = before.take(token, &self.vocabulary, |token| {
            let allowed = grammar.allows(&[token]);
            allowed.map_err(|why| {
                failure = Some(why);
                SamplingError::Constraint
            })
        });
        match failure {
            Some(why) => Err(self.fail(why)),
            None => taken,
        }
    }

    /// Gives a token to the grammar, behind an opening mark that is not whole.
    fn take_constrained(&mut self, token: u32) -> Result<(), SamplingError> {
        // A known mask answers faster.
        let known = match self.mask.is_empty() {
            false if !allows(&self.mask, token) => return Err(SamplingError::Constraint),
            known => !known,
        };
        let taken = self.behind_opening(|grammar, _| {
            Ok(!grammar.is_stopped() && (known || grammar.allows(&[token])?))
        })?;
        if taken != Some(true) {
            return Err(SamplingError::Constraint);
        }
        let (Some(grammar), before) = (&mut self.grammar, &self.before) else {
            return Err(SamplingError::Constraint);
        };
        let opening = match before {
            Some(Before {
                state: State::Open(_),
                opening,
                ..
            }) if self.taken == 0 => &opening[..],
            _ => &[],
        };
        let taken = grammar.take(opening).and_then(|()| grammar.take(&[token]));
        taken.map_err(|why| self.fail(why))?;
        self.taken += 1;
        Ok(())
    }

    /// Takes back tokens of the grammar. Without any, those of an opening mark that is not whole
    /// are none of its either.
    fn give_back_constrained(&mut self, tokens: usize) -> Result<(), SamplingError> {
        self.taken -= tokens;
        let (Some(grammar), true) = (&mut self.grammar, tokens > 0) else {
            return Ok(());
        };
        let opening = match &self.before {
            Some(Before {
                state: State::Open(_),
                opening,
                ..
            }) if self.taken == 0 => opening.len(),
            _ => 0,
        };
        let given_back = grammar.give_back(tokens + opening);
        given_back.map_err(|why| self.fail(why))
    }
}

impl TokenConstraint for Matcher {
    fn allowed(&mut self) -> Result<&[u32], SamplingError> {
        if self.failure.is_some() {
            return Err(SamplingError::Constraint);
        }
        if self.mask.is_empty() {
            self.compute()?;
        }
        Ok(&self.mask)
    }

    fn take(&mut self, token: u32) -> Result<(), SamplingError> {
        if self.failure.is_some() || token as usize >= self.vocabulary.width() {
            return Err(SamplingError::Constraint);
        }
        if self.grammar.is_none() {
            self.take_any(token)?;
        } else if self.is_end(token) {
            if !self.is_fulfilled()? {
                return Err(SamplingError::Constraint);
            }
            self.ended += 1;
        } else if self.ended > 0 {
            return Err(SamplingError::Constraint);
        } else if !self.take_free(token)? {
            self.take_constrained(token)?;
        }
        self.mask.clear();
        Ok(())
    }

    fn give_back(&mut self, tokens: usize) -> Result<(), SamplingError> {
        if tokens == 0 {
            return Ok(());
        }
        if self.failure.is_some() {
            return Err(SamplingError::Constraint);
        }
        self.mask.clear();
        let ends = tokens.min(self.ended);
        self.ended -= ends;
        let constrained = (tokens - ends).min(self.taken);
        self.give_back_constrained(constrained)?;
        let free = tokens - ends - constrained;
        let left = match &mut self.before {
            Some(before) => before.give_back(free),
            None => free,
        };
        match left {
            0 => Ok(()),
            _ => Err(SamplingError::Constraint),
        }
    }
}
