//! The state of one constrained output.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use llguidance::CancellationHandle;
use lockstep_sampling::{SamplingError, TokenConstraint, allows};

use crate::{
    Vocabulary,
    blanks::{MOST_BLANKS, is_blank},
    forced::forced,
    mark::{Mark, Step},
    vocabulary::MOST_WORK,
    watch::{Watch, Watched},
};

/// Longest time of one mask or of one token. Most take microseconds.
const LONGEST: Duration = Duration::from_secs(5);

/// Longest time of one mask of a lookahead, and most work of all its masks. All its walks together
/// have a time of their own too ([`crate::Lookahead`]).
const LONGEST_AHEAD: Duration = Duration::from_secs(1);
const MOST_WORK_AHEAD: u64 = MOST_WORK / 10;

/// The state of one constrained output: tokens that were taken, tokens that may follow.
///
/// Three things spoil llguidance's matcher for good: to ask a stopped one for a mask, to give it
/// anything after it stopped, or to give it a forbidden token. So it is never asked for the first,
/// and every token is checked before it is given. End tokens are not given to it at all. Once the constraint is fulfilled and can't go on, they
/// alone are allowed, any number of times.
pub struct Matcher {
    grammar: llguidance::Matcher,
    vocabulary: Arc<Vocabulary>,
    /// Ends what takes too long.
    watch: Option<Arc<Watch>>,
    /// Longest time of a mask, and most work of all masks.
    longest: Duration,
    most_work: u64,
    before: Option<Before>,
    /// Tokens that the grammar took, behind those of `before`.
    taken: usize,
    /// End tokens behind them.
    ended: usize,
    /// Work of the lexer so far, each unit of which keeps a byte or some.
    work: u64,
    /// The allowed tokens of this state; empty = not known yet.
    mask: Vec<u32>,
    computed: Computed,
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

/// Free text before the constrained part.
#[derive(Debug, Clone)]
struct Before {
    close: Arc<Mark>,
    /// Token that begins the free text; without it there is none. `None` = it has begun.
    open: Option<u32>,
    /// For each free token, the state before it.
    earlier: Vec<State>,
    state: State,
}

/// Place in an output that has no constrained token yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The output is empty: free text or the constrained part may come.
    Open,
    /// In the free text, with this length of the closing mark matched.
    Free(usize),
    /// Behind the mark and this many bytes of blanks, which models like to write there.
    Closed(usize),
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
            earlier: Vec::new(),
            state: open.map_or(State::Free(0), |_| State::Open),
        });
        Self {
            mask: Vec::with_capacity(vocabulary.width().div_ceil(32)),
            grammar,
            vocabulary,
            watch: None,
            longest: LONGEST,
            most_work: MOST_WORK,
            before,
            taken: 0,
            ended: 0,
            work: 0,
            computed: Computed::default(),
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

    /// Makes the state give up earlier, since nothing but drafts needs it.
    pub(crate) fn for_drafts(self) -> Self {
        Self {
            longest: LONGEST_AHEAD,
            most_work: MOST_WORK_AHEAD,
            ..self
        }
    }

    fn begin(&self) -> Option<Watched> {
        let handle = self.grammar.cancellation_handle()?;
        Some(self.watch.as_ref()?.begin(handle, self.longest))
    }

    /// Returns why the constraint can't be followed any further, if that is so.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns the masks computed since the last call.
    pub fn take_computed(&mut self) -> Computed {
        std::mem::take(&mut self.computed)
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

    /// Returns a handle by which another thread ends a mask that takes too long. The constraint
    /// fails then.
    pub(crate) fn cancellation(&mut self) -> Option<CancellationHandle> {
        self.grammar.cancellation_handle()
    }

    /// Returns the place before the constrained part; `None` in that part.
    fn before(&self) -> Option<(&Before, State)> {
        let before = self.before.as_ref().filter(|_| self.taken == 0)?;
        Some((before, before.state))
    }

    fn is_free(&self) -> bool {
        matches!(self.before(), Some((_, State::Free(_))))
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
        if let Some((before, State::Free(matched))) = self.before() {
            let close = before.close.clone();
            let allowed = close.allowed(matched, &self.vocabulary);
            self.mask.extend_from_slice(allowed);
            return Ok(());
        }
        self.compute_constrained()?;
        let Some((before, state)) = self.before() else {
            return Ok(());
        };
        let (open, blanks) = match state {
            State::Open => (before.open, 0),
            State::Closed(blanks) => (None, MOST_BLANKS.saturating_sub(blanks)),
            State::Free(_) => (None, 0),
        };
        let blanks = self.vocabulary.blanks().filter(|(_, len)| *len <= blanks);
        for token in open.into_iter().chain(blanks.map(|(token, _)| token)) {
            if let Some(word) = self.mask.get_mut(token as usize / 32) {
                *word |= 1 << (token % 32);
            }
        }
        Ok(())
    }

    /// Computes the mask of the grammar alone.
    fn compute_constrained(&mut self) -> Result<(), SamplingError> {
        let (_watched, begun) = (self.begin(), Instant::now());
        let mask = self.grammar.compute_mask();
        self.computed.masks += 1;
        self.computed.took += begun.elapsed();
        match mask {
            Ok(mask) => self.mask.extend_from_slice(mask.as_slice()),
            Err(error) => return Err(self.fail(error.to_string())),
        }
        let spent = self.grammar.last_step_stats();
        self.work += spent.map_or(0, |spent| spent.lexer_cost);
        if self.work > self.most_work {
            self.mask.clear();
            return Err(self.fail("its automaton takes too much memory; simplify it".to_owned()));
        }
        Ok(())
    }

    /// Takes in a token of the free text, or of the blanks behind it. Returns false if the token
    /// is the grammar's.
    fn take_free(&mut self, token: u32) -> Result<bool, SamplingError> {
        let Some((before, state)) = self.before() else {
            return Ok(false);
        };
        let word = self.vocabulary.word(token);
        let next = match state {
            State::Open if before.open == Some(token) => State::Free(0),
            State::Open => return Ok(false),
            State::Free(matched) => match before.close.step(matched, word) {
                _ if word.is_empty() => return Err(SamplingError::Constraint),
                Step::EndsInside => return Err(SamplingError::Constraint),
                Step::Within(matched) => State::Free(matched),
                Step::Ends(blanks) => State::Closed(blanks),
            },
            // Blanks with which the constrained part may begin are that part's.
            State::Closed(blanks) => {
                let blanks = blanks + word.len();
                if !is_blank(word) || blanks > MOST_BLANKS || self.is_constrained(token)? {
                    return Ok(false);
                }
                State::Closed(blanks)
            }
        };
        if let Some(before) = &mut self.before {
            before.earlier.push(state);
            before.state = next;
        }
        Ok(true)
    }

    /// Returns true if the grammar allows a token.
    fn is_constrained(&mut self, token: u32) -> Result<bool, SamplingError> {
        let _watched = self.begin();
        let valid = self.grammar.validate_tokens(&[token]);
        let valid = valid.map_err(|error| self.fail(error.to_string()))?;
        Ok(valid == 1)
    }

    /// Gives a token to the grammar.
    fn take_constrained(&mut self, token: u32) -> Result<(), SamplingError> {
        if self.is_stopped() {
            return Err(SamplingError::Constraint);
        }
        // A known mask answers faster.
        let allowed = match self.mask.is_empty() {
            false => allows(&self.mask, token),
            true => self.is_constrained(token)?,
        };
        if !allowed {
            return Err(SamplingError::Constraint);
        }
        let _watched = self.begin();
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
        let rolled = self.grammar.rollback(constrained);
        rolled.map_err(|error| self.fail(error.to_string()))?;
        if constrained > 0 {
            // It keeps the last mask by the place in its own table, which now holds other rows.
            self.grammar.invalidate_bias_cache();
        }
        self.taken -= constrained;
        let mut free = tokens - ends - constrained;
        while free > 0
            && let Some(before) = &mut self.before
            && let Some(state) = before.earlier.pop()
        {
            before.state = state;
            free -= 1;
        }
        match free {
            0 => Ok(()),
            _ => Err(SamplingError::Constraint),
        }
    }
}
