//! The state of one constrained output.

use std::{fmt, sync::Arc, time::Duration};

use llguidance::CancellationHandle;
use lockstep_sampling::{SamplingError, TokenConstraint, allows};

use crate::{
    Vocabulary,
    mark::{Mark, Step},
    watch::{Watch, Watched},
};

/// Longest time of one mask or of one token. Most take microseconds.
const LONGEST: Duration = Duration::from_millis(500);

/// The state of one constrained output: tokens that were taken, tokens that may follow.
///
/// Three things spoil llguidance's matcher for good: to ask a stopped one for a mask, to give it
/// anything after it stopped, or to give it a forbidden token. None of them happens here. End
/// tokens are not given to it at all. Once the constraint is fulfilled and can't go on, they
/// alone are allowed, any number of times.
pub struct Matcher {
    grammar: llguidance::Matcher,
    vocabulary: Arc<Vocabulary>,
    /// Ends what takes too long.
    watch: Option<Arc<Watch>>,
    before: Option<Before>,
    /// Tokens that the grammar took, behind those of `before`.
    taken: usize,
    /// End tokens behind them.
    ended: usize,
    /// The allowed tokens of this state; empty = not known yet.
    mask: Vec<u32>,
    failure: Option<String>,
}

/// Free text before the constrained part.
#[derive(Debug, Clone)]
struct Before {
    close: Arc<Mark>,
    /// Token that begins the free text; without it there is none. `None` = it has begun.
    open: Option<u32>,
    /// For each free token, how much of the closing mark was matched before it.
    matched: Vec<usize>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The output is empty: free text or the constrained part may come.
    Open,
    /// In the free text, with this length of the closing mark matched.
    Free(usize),
    /// Behind it.
    Closed,
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
    /// Makes the state of an empty output. `open` is the token that may begin free text;
    /// `close` ends that text.
    pub(crate) fn new(
        grammar: llguidance::Matcher,
        vocabulary: Arc<Vocabulary>,
        before: Option<(Option<u32>, Arc<Mark>)>,
    ) -> Self {
        let before = before.map(|(open, close)| Before {
            close,
            open,
            matched: Vec::new(),
            state: open.map_or(State::Free(0), |_| State::Open),
        });
        Self {
            mask: Vec::with_capacity(vocabulary.width().div_ceil(32)),
            grammar,
            vocabulary,
            watch: None,
            before,
            taken: 0,
            ended: 0,
            failure: None,
        }
    }

    /// Lets no mask and no token take longer than a moment. The constraint fails if one does.
    pub(crate) fn watched(self, watch: Arc<Watch>) -> Self {
        Self {
            grammar: self.grammar.into_cancellable(),
            watch: Some(watch),
            ..self
        }
    }

    fn begin(&self) -> Option<Watched> {
        let handle = self.grammar.cancellation_handle()?;
        Some(self.watch.as_ref()?.begin(handle, LONGEST))
    }

    /// Returns why the constraint can't be followed any further, if that is so.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns true if the output may end here.
    ///
    /// # Errors
    /// [`SamplingError::Constraint`], for good.
    pub fn is_fulfilled(&mut self) -> Result<bool, SamplingError> {
        if self.ended > 0 || self.is_stopped() {
            return Ok(true);
        }
        if self.is_free() {
            return Ok(false);
        }
        let accepting = self.grammar.is_accepting();
        accepting.map_err(|error| self.fail(error.to_string()))
    }

    /// Returns true if an end token was taken.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended > 0
    }

    /// Returns a handle by which another thread ends a mask that takes too long. The constraint
    /// fails then.
    pub(crate) fn cancellation(&mut self) -> Option<CancellationHandle> {
        self.grammar.cancellation_handle()
    }

    fn is_free(&self) -> bool {
        let state = self.before.as_ref().map(|before| before.state);
        matches!(state, Some(State::Free(_)))
    }

    fn is_stopped(&self) -> bool {
        self.grammar.is_stopped() && !self.grammar.is_error()
    }

    fn fail(&mut self, why: String) -> SamplingError {
        self.failure.get_or_insert(why);
        SamplingError::Constraint
    }

    /// Computes the mask of this state.
    fn compute(&mut self) -> Result<(), SamplingError> {
        if self.ended > 0 || self.is_stopped() {
            self.mask.resize(self.vocabulary.width().div_ceil(32), 0);
            for token in self.vocabulary.end_tokens() {
                self.mask[*token as usize / 32] |= 1 << (token % 32);
            }
            return Ok(());
        }
        if let Some(before) = &self.before
            && let State::Free(matched) = before.state
        {
            let allowed = before.close.allowed(matched, &self.vocabulary);
            self.mask.extend_from_slice(allowed);
            return Ok(());
        }
        let _watched = self.begin();
        match self.grammar.compute_mask() {
            Ok(mask) => self.mask.extend_from_slice(mask.as_slice()),
            Err(error) => return Err(self.fail(error.to_string())),
        }
        if let Some(Before {
            state: State::Open,
            open: Some(open),
            ..
        }) = self.before
            && let Some(word) = self.mask.get_mut(open as usize / 32)
        {
            *word |= 1 << (open % 32);
        }
        Ok(())
    }

    /// Takes in a token of the free text, or the first token of the output. Returns true if
    /// nothing is left for the grammar.
    fn take_free(&mut self, token: u32) -> Result<bool, SamplingError> {
        let Some(before) = &mut self.before else {
            return Ok(false);
        };
        let matched = match before.state {
            State::Closed => return Ok(false),
            State::Open if before.open != Some(token) => {
                before.state = State::Closed;
                return Ok(false);
            }
            State::Open => {
                before.matched.push(0);
                before.state = State::Free(0);
                return Ok(true);
            }
            State::Free(matched) => matched,
        };
        let word = self.vocabulary.word(token);
        let next = match before.close.step(matched, word) {
            _ if word.is_empty() => return Err(SamplingError::Constraint),
            Step::EndsInside => return Err(SamplingError::Constraint),
            Step::Within(matched) => State::Free(matched),
            Step::Ends => State::Closed,
        };
        before.matched.push(matched);
        before.state = next;
        Ok(true)
    }

    /// Gives a token to the grammar.
    fn take_constrained(&mut self, token: u32) -> Result<(), SamplingError> {
        if self.is_stopped() {
            return Err(SamplingError::Constraint);
        }
        let _watched = self.begin();
        // A known mask answers faster.
        let valid = match self.mask.is_empty() {
            false => Ok(usize::from(allows(&self.mask, token))),
            true => self.grammar.validate_tokens(&[token]),
        };
        match valid {
            Ok(1) => {}
            Ok(_) => return Err(SamplingError::Constraint),
            Err(error) => return Err(self.fail(error.to_string())),
        }
        let consumed = self.grammar.consume_token(token);
        consumed.map_err(|error| self.fail(error.to_string()))?;
        self.taken += 1;
        Ok(())
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
        if self.vocabulary.end_tokens().contains(&token) {
            if !self.is_fulfilled()? {
                return Err(SamplingError::Constraint);
            }
            self.ended += 1;
        } else if self.ended > 0 {
            return Err(SamplingError::Constraint);
        } else {
            let opened = self.before.as_ref().map(|before| before.state);
            if !self.take_free(token)?
                && let Err(error) = self.take_constrained(token)
            {
                if let (Some(before), Some(state)) = (&mut self.before, opened) {
                    before.state = state;
                }
                return Err(error);
            }
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
        let rolled = self.grammar.rollback(constrained);
        rolled.map_err(|error| self.fail(error.to_string()))?;
        if constrained > 0 {
            // It keeps the last mask by the place in its own table, which now holds other rows.
            self.grammar.invalidate_bias_cache();
        }
        self.taken -= constrained;
        let mut free = tokens - ends - constrained;
        if let Some(before) = &mut self.before {
            while free > 0
                && let Some(matched) = before.matched.pop()
            {
                before.state = State::Free(matched);
                free -= 1;
            }
            if before.matched.is_empty() && self.taken == 0 && before.open.is_some() {
                before.state = State::Open;
            }
        }
        match free {
            0 => Ok(()),
            _ => Err(SamplingError::Constraint),
        }
    }
}
