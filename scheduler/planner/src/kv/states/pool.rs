//! The recurrent states of a DP rank: who has each of them, and which cached one is evicted.

/// Stands where there is no state, or no block.
const NONE: u32 = u32::MAX;

/// Holder of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    Free,
    /// The live state of a request.
    Live,
    /// A copy that a request keeps, or has asked for.
    Copy,
    /// The end of a cached block.
    Cached,
}

/// A cached state.
#[derive(Debug, Clone, Copy)]
struct Cached {
    /// Page of the first group of the block at whose end it stands.
    block: u32,
    /// Number of tokens before it.
    position: u32,
    /// The next cached state above it on its path; [`NONE`] if there is none.
    above: u32,
    /// Credit by which it stays, see [`StatePool`].
    credit: u64,
    /// Time of its last use.
    used: u64,
}

impl Cached {
    const NONE: Self = Self {
        block: NONE,
        position: 0,
        above: NONE,
        credit: 0,
        used: 0,
    };
}

/// Pool of states, which are all of one size.
///
/// A slot has one live state at most, and `slots` states are set aside for these: requests hold
/// no more copies than there are states beyond that. Cached states take whatever is left over.
///
/// The cached state with the least credit is evicted (GreedyDual). When a state is cached or
/// used, its credit becomes the tokens between it and the next cached state above on its path,
/// which would have to be computed again without it, plus the credit of the last evicted state.
/// So it counts tokens saved, for states that cost equally many bytes, and old ones lose against
/// new ones. If a state is evicted, those below it on the path gain the tokens that it saved.
/// Among equal credits, the state used least recently is evicted. Credits are integers.
#[derive(Debug)]
pub(super) struct StatePool {
    /// States set aside for live ones.
    slots: u32,
    free: Vec<u32>,
    holders: Vec<Holder>,
    cached: Vec<Cached>,
    /// State at the end of each cached block; [`NONE`] if it has none.
    of_block: Vec<u32>,
    /// Numbers of live states, and of copies of requests.
    live: u32,
    copies: u32,
    /// Credit of the last evicted state.
    level: u64,
    /// Counter of uses.
    clock: u64,
    faults: u64,
}

impl StatePool {
    /// Makes a pool of `states` free states for `slots` slots, and blocks of `num_blocks` pages
    /// of the first group.
    pub fn new(states: u32, slots: u32, num_blocks: u32) -> Self {
        // A model without recurrent layers keeps nothing.
        let blocks = if states == 0 { 0 } else { num_blocks };
        let mut pool = Self {
            slots,
            free: Vec::with_capacity(states as usize),
            holders: vec![Holder::Free; states as usize],
            cached: vec![Cached::NONE; states as usize],
            of_block: vec![NONE; blocks as usize],
            live: 0,
            copies: 0,
            level: 0,
            clock: 0,
            faults: 0,
        };
        pool.reset();
        pool
    }

    /// Returns the number of all states.
    pub fn capacity(&self) -> u32 {
        // Made of a `u32`.
        self.holders.len() as u32
    }

    /// Returns the numbers of live states and of copies, which requests hold.
    pub fn held(&self) -> u32 {
        self.live + self.copies
    }

    /// Returns the number of copies, which requests hold.
    pub fn copies(&self) -> u32 {
        self.copies
    }

    /// Returns the most copies that requests may hold: the states that are not set aside for slots.
    pub fn most_copies(&self) -> u32 {
        self.capacity().saturating_sub(self.slots)
    }

    /// Returns the number of cached states. All of them can be evicted.
    pub fn cached(&self) -> u32 {
        self.capacity() - self.held() - self.free.len() as u32
    }

    /// Returns the state at the end of a cached block.
    pub fn of_block(&self, block: u32) -> Option<u32> {
        let state = self.of_block.get(block as usize);
        state.copied().filter(|state| *state != NONE)
    }

    /// Takes a live state. There is one for each slot: the caller has a free slot.
    pub fn take_live(&mut self) -> Option<u32> {
        self.take(Holder::Live)
    }

    /// Returns the credit of a state that will save `gain` tokens, as of now.
    pub fn credit(&self, gain: u32) -> u64 {
        self.level + u64::from(gain)
    }

    /// Takes a state for a copy. Returns `None` if it might be wanted for a slot, or if the copy
    /// would be the first to be evicted.
    pub fn take_copy(&mut self, credit: u64) -> Option<u32> {
        if self.copies >= self.most_copies() {
            return None;
        }
        let least = self.least().filter(|_| self.free.is_empty());
        if least.is_some_and(|least| self.cached[least as usize].credit > credit) {
            // As if it had been cached and evicted, so that the others age. Once: if it is tried
            // again, its credit is not above the level any more.
            self.level = self.level.max(credit);
            return None;
        }
        self.take(Holder::Copy)
    }

    fn take(&mut self, holder: Holder) -> Option<u32> {
        if self.free.is_empty() {
            self.evict();
        }
        let state = self.free.pop()?;
        self.holders[state as usize] = holder;
        *self.count(holder) += 1;
        Some(state)
    }

    /// Frees a request's live state or copy. A row in flight may still write it: workers execute
    /// plans in order, so that write ends before the next holder's first.
    pub fn release(&mut self, state: u32) {
        match self.holders.get(state as usize) {
            Some(&holder @ (Holder::Live | Holder::Copy)) => {
                *self.count(holder) -= 1;
                self.set_free(state);
            }
            _ => self.faults += 1,
        }
    }

    /// Makes a request's copy the state at the end of the last of `blocks`, which are cached: the
    /// first group's pages of a path from the beginning. A block that has a state keeps its own,
    /// and the copy is freed.
    pub fn cache(&mut self, state: u32, blocks: &[u32], position: u32) {
        let Some(&block) = blocks.last() else {
            return self.release(state);
        };
        if self.of_block(block).is_some() {
            self.release(state);
            return self.touch(blocks);
        }
        debug_assert_eq!(self.holders[state as usize], Holder::Copy);
        self.copies -= 1;
        self.holders[state as usize] = Holder::Cached;
        self.of_block[block as usize] = state;
        self.cached[state as usize] = Cached {
            block,
            position,
            ..Cached::NONE
        };
        self.touch(blocks);
    }

    /// Counts a use of the state at the end of the last of `blocks`, which are cached: the first
    /// group's pages of a path from the beginning.
    pub fn touch(&mut self, blocks: &[u32]) {
        let Some((last, above)) = blocks.split_last() else {
            return;
        };
        let Some(state) = self.of_block(*last) else {
            return;
        };
        let mut above = above.iter().rev();
        let above = above.find_map(|block| self.of_block(*block));
        self.clock += 1;
        let position = self.cached[state as usize].position;
        let gain = position - above.map_or(0, |above| self.cached[above as usize].position);
        let cached = &mut self.cached[state as usize];
        cached.above = above.unwrap_or(NONE);
        cached.credit = self.level + u64::from(gain);
        cached.used = self.clock;
    }

    /// Frees the state of a block that is no longer cached, if it has one.
    pub fn uncache(&mut self, block: u32) {
        if let Some(state) = self.of_block(block) {
            self.drop_cached(state);
        }
    }

    /// Gives the state of block `from`, which is no longer cached, to block `to`, which is.
    pub fn move_block(&mut self, from: u32, to: u32) {
        if let Some(state) = self.of_block(from) {
            debug_assert_eq!(self.of_block(to), None, "block {to} was not cached");
            self.of_block[from as usize] = NONE;
            self.of_block[to as usize] = state;
            self.cached[state as usize].block = to;
        }
    }

    /// Frees all states, whoever has them.
    pub fn reset(&mut self) {
        self.holders.fill(Holder::Free);
        self.cached.fill(Cached::NONE);
        self.of_block.fill(NONE);
        self.free.clear();
        self.free.extend((0..self.capacity()).rev());
        (self.live, self.copies) = (0, 0);
    }

    /// Returns the cached state that is evicted next.
    fn least(&self) -> Option<u32> {
        let all = (0..self.capacity()).filter(|state| self.is_cached(*state));
        all.min_by_key(|state| {
            let cached = &self.cached[*state as usize];
            (cached.credit, cached.used)
        })
    }

    fn evict(&mut self) {
        if let Some(state) = self.least() {
            self.level = self.cached[state as usize].credit;
            self.drop_cached(state);
        }
    }

    /// Frees a cached state. States right below it on the path save its tokens too from now on.
    fn drop_cached(&mut self, state: u32) {
        let gone = std::mem::replace(&mut self.cached[state as usize], Cached::NONE);
        self.of_block[gone.block as usize] = NONE;
        let above = match gone.above {
            NONE => 0,
            above => self.cached[above as usize].position,
        };
        for below in self.cached.iter_mut().filter(|below| below.above == state) {
            below.above = gone.above;
            below.credit += u64::from(gone.position - above);
        }
        self.set_free(state);
    }

    fn set_free(&mut self, state: u32) {
        self.holders[state as usize] = Holder::Free;
        self.free.push(state);
    }

    fn is_cached(&self, state: u32) -> bool {
        self.holders[state as usize] == Holder::Cached
    }

    fn count(&mut self, holder: Holder) -> &mut u32 {
        match holder {
            Holder::Live => &mut self.live,
            _ => &mut self.copies,
        }
    }
}

/// Access for checks.
impl StatePool {
    /// Checks that every state has one holder and that all lists agree. `live` and `copies` count
    /// the requests that have each state so. `cached` says if a block is cached. Returns the
    /// state at fault and the number of its holders.
    pub fn check(
        &self,
        live: &[u32],
        copies: &[u32],
        cached: impl Fn(u32) -> bool,
    ) -> Result<(), (u32, u32)> {
        let mut free = vec![0; self.holders.len()];
        self.free
            .iter()
            .for_each(|state| free[*state as usize] += 1);
        for (state, holder) in (0..).zip(&self.holders) {
            let at = state as usize;
            let of = &self.cached[at];
            let holds = |kind| u32::from(*holder == kind);
            let of_cache = of.block != NONE
                && self.of_block(of.block) == Some(state)
                && cached(of.block)
                && (of.above == NONE || self.cached[of.above as usize].position < of.position);
            let right = free[at] == holds(Holder::Free)
                && live[at] == holds(Holder::Live)
                && copies[at] == holds(Holder::Copy)
                && (of_cache || *holder != Holder::Cached && of.block == NONE);
            if !right {
                return Err((
                    state,
                    free[at] + live[at] + copies[at] + u32::from(of_cache),
                ));
            }
        }
        let with_state = self.of_block.iter().filter(|state| **state != NONE);
        let sums = [
            (self.live, live.iter().sum()),
            (self.copies, copies.iter().sum()),
            (self.cached(), with_state.count() as u32),
            (self.faults as u32, 0),
        ];
        match sums.iter().find(|(kept, counted)| kept != counted) {
            Some((kept, _)) => Err((NONE, *kept)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
