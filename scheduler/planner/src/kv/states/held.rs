//! The states of one request.

use lockstep_types::step::StateKeep;

/// A copy of a request's state at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StateCopy {
    /// Number of tokens before it.
    pub position: u32,
    pub state: u32,
    /// True if it was asked for in the output, on the grid.
    pub in_output: bool,
    /// True once it is known to be written.
    pub written: bool,
}

/// States of one request: its live state, and copies of it that are not cached yet.
#[derive(Debug, Default)]
pub(crate) struct HeldStates {
    live: Option<u32>,
    /// Cached state that is copied into the live one when the slot opens.
    restore: Option<u32>,
    /// Position that the live state is known to have come to.
    position: u32,
    /// Position of the last copy that was asked for, or of the restored state.
    kept: u32,
    /// Positions of the prompt at which copies are wanted and not asked for yet, ascending; 0 =
    /// none.
    wanted: [u32; 2],
    /// Position in the output of the last copy that was asked for or refused, and its credit.
    tried: (u32, u64),
    /// At most one for each wanted position, and two in the output.
    copies: Vec<StateCopy>,
}

impl HeldStates {
    /// Returns the number of the live state.
    pub fn live(&self) -> Option<u32> {
        self.live
    }

    /// Returns the number of the cached state that the live one is a copy of.
    pub fn restore(&self) -> Option<u32> {
        self.restore
    }

    /// Makes room for copies, so that asking for one does not allocate.
    pub fn reserve(&mut self) {
        if self.live.is_some() {
            self.copies.reserve(self.wanted.len() + 2);
        }
    }

    /// Forgets all states, after they have been given back or are gone.
    pub fn clear(&mut self) {
        self.copies.clear();
        *self = Self {
            copies: std::mem::take(&mut self.copies),
            ..Self::default()
        };
    }

    pub(super) fn enter(&mut self, live: Option<u32>, restore: Option<u32>, position: u32) {
        debug_assert!(self.copies.is_empty());
        (self.live, self.restore) = (live, restore);
        (self.position, self.kept) = (position, position);
    }

    /// Sets the positions, ascending, at which copies are wanted. Those that the state has passed
    /// are left out.
    pub(super) fn want(&mut self, [first, last]: [u32; 2]) {
        let ahead = |at| if at > self.position { at } else { 0 };
        self.wanted = match ahead(first) {
            first if first == last => [0, last],
            first => [first, ahead(last)],
        };
    }

    /// Takes the next wanted position up to `to`.
    pub(super) fn take_wanted(&mut self, to: u32) -> Option<u32> {
        let due = |at: &&mut u32| **at > 0 && **at <= to;
        self.wanted.iter_mut().find(due).map(std::mem::take)
    }

    /// Returns the furthest position up to `to`, of the prompt, at which a copy is asked for or
    /// written, or, if there is `room` for one, wanted; 0 if there is none.
    pub(super) fn promises(&self, to: u32, room: bool) -> u32 {
        let of_prompt = self.copies.iter().filter(|copy| !copy.in_output);
        let copies = of_prompt.map(|copy| copy.position);
        let wanted = self.wanted.iter().copied().filter(|_| room);
        let all = wanted.chain(copies);
        all.filter(|at| *at <= to).max().unwrap_or(0)
    }

    /// Returns the tokens that a copy at `position` saves, behind the last one.
    pub(super) fn gain(&self, position: u32) -> u32 {
        position.saturating_sub(self.kept)
    }

    /// Returns the credit of a copy in the output: `credit`, or what it was when the copy was
    /// refused.
    pub(super) fn first_credit(&mut self, position: u32, credit: u64) -> u64 {
        if self.tried.0 != position {
            self.tried = (position, credit);
        }
        self.tried.1
    }

    /// Notes a copy that the next row may write, and returns it for the plan.
    pub(super) fn ask(&mut self, position: u32, state: u32, in_output: bool) -> StateKeep {
        self.kept = position;
        self.copies.push(StateCopy {
            position,
            state,
            in_output,
            written: false,
        });
        StateKeep { position, state }
    }

    /// Returns the copy in the output that is asked for and not known to be written.
    pub(super) fn asked_in_output(&self) -> Option<StateKeep> {
        let mut asked = self.copies.iter().filter(|copy| !copy.written);
        let asked = asked.find(|copy| copy.in_output)?;
        Some(StateKeep {
            position: asked.position,
            state: asked.state,
        })
    }

    /// Moves the live state's known position on. Copies up to there are written. Returns the
    /// state of a copy in the output if a later one takes its place.
    pub(super) fn pass(&mut self, position: u32) -> Option<u32> {
        self.position = position;
        for copy in &mut self.copies {
            copy.written |= copy.position <= position;
        }
        let mut of_output = (0..self.copies.len()).filter(|at| {
            let copy = &self.copies[*at];
            copy.written && copy.in_output
        });
        let (first, second) = (of_output.next()?, of_output.next());
        second.map(|_| self.copies.remove(first).state)
    }

    /// Returns the written copies, those in the output only if `with_output`.
    pub(super) fn written(&self, with_output: bool) -> impl Iterator<Item = &StateCopy> {
        let counts = move |copy: &&StateCopy| copy.written && (with_output || !copy.in_output);
        self.copies.iter().filter(counts)
    }

    /// Drops the written copies for which `take` returns true, those in the output only if
    /// `with_output`.
    pub(super) fn take_written(
        &mut self,
        with_output: bool,
        mut take: impl FnMut(StateCopy) -> bool,
    ) {
        let counts = |copy: &StateCopy| copy.written && (with_output || !copy.in_output);
        self.copies.retain(|copy| !(counts(copy) && take(*copy)));
    }

    /// Returns the numbers of the copies.
    pub(super) fn copies(&self) -> impl Iterator<Item = u32> {
        self.copies.iter().map(|copy| copy.state)
    }

    /// Returns the numbers of all states.
    pub(super) fn all(&self) -> impl Iterator<Item = u32> {
        self.live.into_iter().chain(self.copies())
    }

    /// Returns true if copies are written exactly up to the known position, which final tokens
    /// cover, and at most one in the output is written and one asked for.
    pub(super) fn is_ordered(&self, committed: u32) -> bool {
        let is_right = |copy: &StateCopy| copy.written == (copy.position <= self.position);
        let in_output = |written| {
            let of = |copy: &&StateCopy| copy.in_output && copy.written == written;
            self.copies.iter().filter(of).count() <= 1
        };
        self.position <= committed
            && self.copies.iter().all(is_right)
            && in_output(false)
            && in_output(true)
    }
}
