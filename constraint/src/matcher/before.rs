//! Free text before the constrained part of an output.

use std::sync::Arc;

use lockstep_sampling::{SamplingError, allows};

use crate::{
    Vocabulary,
    blanks::{MOST_BLANKS, is_blank},
    mark::{Mark, Step},
};

/// The marks and the limit of free text, as a constraint has them.
#[derive(Debug, Clone)]
pub(crate) struct FreeText {
    /// The mark with which it begins; without it there is none. `None` = it has begun.
    pub open: Option<Arc<Mark>>,
    /// The mark that ends it.
    pub close: Arc<Mark>,
    /// Most tokens between the marks.
    pub limit: Option<u32>,
    /// True if it may begin again where anything may follow it.
    pub again: bool,
    /// Other tokens that end it, and with it the constraint.
    pub breaks: Vec<u32>,
}

/// Place in an output that has no constrained token yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing came but this length of the opening mark: free text or the constrained part may
    /// come.
    Open(usize),
    /// In the free text.
    Free {
        /// Length of the closing mark that is matched.
        matched: usize,
        /// Tokens since the opening mark.
        spent: u32,
    },
    /// Behind the mark and this many bytes of blanks, which models like to write there.
    Closed(usize),
    /// Behind a token that ended the free text and the constraint.
    Broken,
    /// Outside of free text that may begin again, while anything may come.
    Between {
        /// Length of the opening mark that is matched.
        matched: usize,
        /// Tokens of free text so far.
        spent: u32,
    },
}

/// The free text of one output.
#[derive(Debug, Clone)]
pub(super) struct Before {
    text: FreeText,
    /// Tokens of an opening mark with which the output began. They are the constrained part's if
    /// that goes on with them and the mark does not.
    pub opening: Vec<u32>,
    /// For each token, the state before it.
    earlier: Vec<State>,
    pub state: State,
}

impl Before {
    pub fn new(text: FreeText) -> Self {
        let free = State::Free {
            matched: 0,
            spent: 0,
        };
        Self {
            state: text.open.as_ref().map_or(free, |_| State::Open(0)),
            text,
            opening: Vec::new(),
            earlier: Vec::new(),
        }
    }

    /// True inside the free text.
    pub fn is_free(&self) -> bool {
        matches!(self.state, State::Free { .. })
    }

    /// True behind a token that ended the constraint inside the free text.
    pub fn is_broken(&self) -> bool {
        self.state == State::Broken
    }

    /// True where the free text is as long as it may be, and is being closed.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Free { spent, .. } if self.is_spent(spent))
    }

    fn breaks(&self, token: u32) -> bool {
        self.text.breaks.contains(&token)
    }

    fn is_spent(&self, spent: u32) -> bool {
        self.text.limit.is_some_and(|limit| spent >= limit)
    }

    /// Adds the allowed tokens of free text to an empty mask. With `any`, that is all of them while
    /// the text may go on, since the output may then end inside it.
    pub fn free_mask(&self, any: bool, vocabulary: &Vocabulary, mask: &mut Vec<u32>) {
        let State::Free { matched, spent } = self.state else {
            return;
        };
        let close = &self.text.close;
        match self.is_spent(spent) {
            true => mask.extend_from_slice(close.next(matched, vocabulary)),
            false if any => vocabulary.all(mask),
            false => {
                mask.extend_from_slice(close.allowed(matched, vocabulary));
                for token in &self.text.breaks {
                    if let Some(word) = mask.get_mut(*token as usize / 32) {
                        *word |= 1 << (token % 32);
                    }
                }
            }
        }
    }

    /// Returns the tokens that spell the opening mark on from what is there of it, as a mask.
    pub fn opening_mask(&self, vocabulary: &Vocabulary) -> Option<&[u32]> {
        match self.state {
            State::Open(matched) => Some(self.text.open.as_ref()?.next(matched, vocabulary)),
            _ => None,
        }
    }

    /// Returns the tokens that must not come where anything else may: those that would open free
    /// text again when its limit is reached.
    pub fn forbidden_mask(&self, vocabulary: &Vocabulary) -> Option<&[u32]> {
        let State::Between { matched, spent } = self.state else {
            return None;
        };
        let open = self.text.open.as_ref()?;
        // The begin of a mark of several tokens may also begin something else.
        let opens = matched > 0 || open.is_token();
        (opens && self.is_spent(spent)).then(|| open.next(matched, vocabulary))
    }

    /// Takes in a token of the free text, of its marks, or of the blanks behind it. Returns false
    /// for another token, which is the constrained part's. `is_constrained` says if that part may
    /// begin with a token.
    pub fn take(
        &mut self,
        token: u32,
        vocabulary: &Vocabulary,
        is_constrained: impl FnOnce(u32) -> Result<bool, SamplingError>,
    ) -> Result<bool, SamplingError> {
        let word = vocabulary.word(token);
        let next = match self.state {
            State::Open(matched) => match self.opened(matched, token, vocabulary) {
                Some(next) => next,
                None => return Ok(false),
            },
            State::Free { spent, .. } if !self.is_spent(spent) && self.breaks(token) => {
                State::Broken
            }
            State::Broken => State::Broken,
            State::Free { .. } if word.is_empty() => return Err(SamplingError::Constraint),
            State::Free { matched, spent } => {
                match self.freed((matched, spent), token, vocabulary)? {
                    Step::EndsInside => return Err(SamplingError::Constraint),
                    Step::Within(matched) => State::Free {
                        matched,
                        spent: spent.saturating_add(1),
                    },
                    Step::Ends(blanks) => State::Closed(blanks),
                }
            }
            // Blanks with which the constrained part may begin are that part's.
            State::Closed(blanks) => {
                let blanks = blanks + word.len();
                if word.is_empty() || !is_blank(word) || blanks > MOST_BLANKS {
                    return Ok(false);
                }
                if is_constrained(token)? {
                    return Ok(false);
                }
                State::Closed(blanks)
            }
            State::Between { .. } => return Ok(false),
        };
        if matches!(next, State::Open(_)) {
            self.opening.push(token);
        }
        self.go(next);
        Ok(true)
    }

    /// Takes in a token where anything may follow the free text. Returns false behind the last
    /// free text.
    pub fn take_any(&mut self, token: u32, vocabulary: &Vocabulary) -> Result<bool, SamplingError> {
        let word = vocabulary.word(token);
        let next = match self.state {
            State::Open(0) if !word.is_empty() && is_blank(word) => State::Open(0),
            State::Open(matched) => match self.opened(matched, token, vocabulary) {
                Some(next) => next,
                None => self.between(token, (0, 0), vocabulary),
            },
            State::Free { matched, spent } => {
                match self.freed((matched, spent), token, vocabulary)? {
                    Step::Within(matched) if !self.breaks(token) => State::Free {
                        matched,
                        spent: spent.saturating_add(1),
                    },
                    _ if self.text.again => State::Between { matched: 0, spent },
                    _ => State::Closed(0),
                }
            }
            State::Between { matched, spent } => self.between(token, (matched, spent), vocabulary),
            State::Closed(_) | State::Broken => return Ok(false),
        };
        self.go(next);
        Ok(true)
    }

    /// Returns the state behind a token that spells the opening mark on; `None` if it doesn't.
    fn opened(&self, matched: usize, token: u32, vocabulary: &Vocabulary) -> Option<State> {
        let open = self.text.open.as_ref()?;
        if !allows(open.next(matched, vocabulary), token) {
            return None;
        }
        let matched = matched + vocabulary.word(token).len();
        Some(match matched < open.len() {
            true => State::Open(matched),
            false => State::Free {
                matched: 0,
                spent: 0,
            },
        })
    }

    /// Returns what a token does to the closing mark.
    ///
    /// # Errors
    /// [`SamplingError::Constraint`] if the text is too long for anything but the mark.
    fn freed(
        &self,
        (matched, spent): (usize, u32),
        token: u32,
        vocabulary: &Vocabulary,
    ) -> Result<Step, SamplingError> {
        let close = &self.text.close;
        if self.is_spent(spent) && !allows(close.next(matched, vocabulary), token) {
            return Err(SamplingError::Constraint);
        }
        Ok(close.step(matched, token, vocabulary.word(token)))
    }

    /// Returns the state behind a token outside the free text.
    fn between(
        &self,
        token: u32,
        (matched, spent): (usize, u32),
        vocabulary: &Vocabulary,
    ) -> State {
        let Some(open) = self.text.open.as_ref().filter(|_| self.text.again) else {
            return State::Closed(0);
        };
        let length = vocabulary.word(token).len();
        let continues = |matched: usize| allows(open.next(matched, vocabulary), token);
        let matched = match continues(matched) {
            true => matched + length,
            false if continues(0) => length,
            false => 0,
        };
        match matched < open.len() {
            true => State::Between { matched, spent },
            false => State::Free { matched: 0, spent },
        }
    }

    fn go(&mut self, next: State) {
        self.earlier.push(self.state);
        self.state = next;
    }

    /// Forgets the last tokens. Returns the number of those that are none of its own.
    pub fn give_back(&mut self, mut tokens: usize) -> usize {
        while tokens > 0
            && let Some(state) = self.earlier.pop()
        {
            if matches!(self.state, State::Open(_)) {
                self.opening.pop();
            }
            self.state = state;
            tokens -= 1;
        }
        tokens
    }
}
