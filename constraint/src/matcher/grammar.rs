//! llguidance's matcher, within bounds of time and work.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use llguidance::CancellationHandle;

use super::Computed;
use crate::{
    vocabulary::MOST_WORK,
    watch::{Watch, Watched},
};

/// Longest time of one mask or of one token. Most take microseconds.
const LONGEST: Duration = Duration::from_secs(5);

/// Longest time of one mask of a lookahead, and most work of all its masks. All its walks together
/// have a time of their own too ([`crate::Lookahead`]).
const LONGEST_AHEAD: Duration = Duration::from_secs(1);
const MOST_WORK_AHEAD: u64 = MOST_WORK / 10;

/// The state of a grammar.
///
/// Three things spoil llguidance's matcher for good: to ask a stopped one for a mask, to give it
/// anything after it stopped, or to give it a forbidden token. So it is never asked for the first,
/// and every token is checked before it is given. End tokens are not given to it at all.
pub(super) struct Grammar {
    inner: llguidance::Matcher,
    /// Ends what takes too long.
    watch: Option<Arc<Watch>>,
    /// Longest time of a mask, and most work of all masks.
    longest: Duration,
    most_work: u64,
    /// Work of the lexer so far, each unit of which keeps a byte or some.
    work: u64,
    /// Items of the parser so far.
    items: u64,
    pub computed: Computed,
}

impl Grammar {
    pub fn new(inner: llguidance::Matcher) -> Self {
        Self {
            inner,
            watch: None,
            longest: LONGEST,
            most_work: MOST_WORK,
            work: 0,
            items: 0,
            computed: Computed::default(),
        }
    }

    /// Lets no mask and no token take longer than a moment.
    pub fn watched(self, watch: Arc<Watch>) -> Self {
        Self {
            inner: self.inner.into_cancellable(),
            watch: Some(watch),
            ..self
        }
    }

    /// Makes it give up earlier, since nothing but drafts needs it.
    pub fn for_drafts(self) -> Self {
        Self {
            longest: LONGEST_AHEAD,
            most_work: MOST_WORK_AHEAD,
            ..self
        }
    }

    fn begin(&self) -> Option<Watched> {
        let handle = self.inner.cancellation_handle()?;
        Some(self.watch.as_ref()?.begin(handle, self.longest))
    }

    /// Returns a handle by which another thread ends a mask that takes too long.
    pub fn cancellation(&self) -> Option<CancellationHandle> {
        self.inner.cancellation_handle()
    }

    /// Returns the work of all masks so far, of the lexer and of the parser.
    pub fn spent(&self) -> u64 {
        self.work + self.items
    }

    /// Returns true if nothing may follow.
    pub fn is_stopped(&self) -> bool {
        self.inner.is_stopped() && !self.inner.is_error()
    }

    /// Returns true if nothing has to follow.
    ///
    /// # Errors
    /// The reason why it can't be followed any further; here and below, for good.
    pub fn is_accepting(&mut self) -> Result<bool, String> {
        if self.is_stopped() {
            return Ok(true);
        }
        let accepting = self.inner.is_accepting();
        accepting.map_err(|error| error.to_string())
    }

    /// Adds the mask of this state to an empty one. It must not be stopped.
    pub fn mask(&mut self, out: &mut Vec<u32>) -> Result<(), String> {
        let (_watched, begun) = (self.begin(), Instant::now());
        let mask = self.inner.compute_mask();
        self.computed.masks += 1;
        self.computed.took += begun.elapsed();
        let mask = mask.map_err(|error| error.to_string())?;
        out.extend_from_slice(mask.as_slice());
        if let Ok(spent) = self.inner.last_step_stats() {
            self.work += spent.lexer_cost;
            self.items += spent.all_items as u64;
        }
        if self.work > self.most_work {
            out.clear();
            return Err("its automaton takes too much memory; simplify it".to_owned());
        }
        Ok(())
    }

    /// Returns true if it allows these tokens, one after the other.
    pub fn allows(&mut self, tokens: &[u32]) -> Result<bool, String> {
        let _watched = self.begin();
        let valid = self.inner.validate_tokens(tokens);
        Ok(valid.map_err(|error| error.to_string())? == tokens.len())
    }

    /// Takes in tokens that it allows.
    pub fn take(&mut self, tokens: &[u32]) -> Result<(), String> {
        if tokens.is_empty() {
            return Ok(());
        }
        let _watched = self.begin();
        for token in tokens {
            let consumed = self.inner.consume_token(*token);
            consumed.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Forgets the last tokens.
    pub fn give_back(&mut self, tokens: usize) -> Result<(), String> {
        if tokens == 0 {
            return Ok(());
        }
        let rolled = self.inner.rollback(tokens);
        rolled.map_err(|error| error.to_string())?;
        // It keeps the last mask by the place in its own table, which now holds other rows.
        self.inner.invalidate_bias_cache();
        Ok(())
    }
}
