//! Requests in the form that a worker knows them.

use lockstep_sampling::TokenHistory;
use lockstep_speculation::Requests;
use lockstep_types::{
    generation::GenerationParams,
    sampling::SamplingParams,
    step::{SlotExtend, SlotOpen},
};

use super::{PlanError, WorkerLimits, constraints::SlotConstraint, pages::PageTables};

/// Stands for a token if a row has none.
pub use lockstep_backend::FAILED;

/// One request.
#[derive(Debug, Default)]
pub struct Slot {
    open: bool,
    /// Tokens of the prompt and of the output.
    pub tokens: Vec<u32>,
    /// Position of the first output token.
    pub prompt_len: u32,
    /// Number of tokens whose keys and values are in the cache.
    pub kv_len: u32,
    /// True if the drafter, too, has the keys and values of the cached tokens that the slot was
    /// opened with.
    pub drafted: bool,
    pub generation: GenerationParams,
    /// Token counts for penalties; empty for requests without penalties.
    pub history: TokenHistory,
    /// State of a constrained output, on the lead alone. It has taken in the tokens of the
    /// output.
    pub constraint: Option<SlotConstraint>,
    /// True once the request's logits were not finite, or its constraint could not be followed.
    /// It emits nothing from then on.
    pub failed: bool,
    /// Number of the last step that extended the slot.
    extended: u64,
}

/// A step's row for one request. The plan sets the first fields, and the batch sets the others
/// when it is laid out.
#[derive(Debug, Clone, Copy)]
pub struct RowTask {
    pub slot: usize,
    /// The first new position.
    pub start: u32,
    /// Number of new tokens, without drafts.
    pub q_len: u32,
    /// True if a token is chosen after the last one.
    pub sample: bool,
    /// True if the row goes on from the token sampled last, so that it may have drafts.
    pub decodes: bool,
    /// Index of the row's drafts among the step's drafts.
    pub drafts: Option<usize>,
    /// Depth of the row's drafts.
    pub draft_depth: u32,
    /// Number of the row's first draft that its constraint forced: all drafts from there on are
    /// forced; 0 if none is. Only the lead knows.
    pub forced: u32,
    /// Index of the output that reports the row.
    pub output: Option<usize>,
    /// Index of the row among the rows that sample, if it samples.
    pub choice: usize,
}

impl RowTask {
    /// Returns the number of forced drafts among accepted ones. `path` has their numbers.
    pub fn forced_in(&self, path: &[u32]) -> u32 {
        let forced = |node: &&u32| self.forced > 0 && **node >= self.forced;
        path.iter().filter(forced).count() as u32
    }
}

/// All slots and their pages.
#[derive(Debug)]
pub struct Slots {
    slots: Vec<Slot>,
    pages: PageTables,
    positions: usize,
    vocab: usize,
}

impl Slots {
    /// Makes closed slots. `windows` are those of the last groups of layers.
    pub fn new(limits: &WorkerLimits, windows: &[usize]) -> Self {
        Self {
            slots: (0..limits.step.requests).map(|_| Slot::default()).collect(),
            pages: PageTables::new(limits, windows),
            positions: limits.step.positions,
            vocab: limits.vocab,
        }
    }

    /// Returns the number of slots.
    pub fn count(&self) -> usize {
        self.slots.len()
    }

    /// Returns a slot of a validated row.
    pub fn get(&self, slot: usize) -> &Slot {
        &self.slots[slot]
    }

    /// Returns the constraint of a validated row, with the output so far.
    pub fn constraint(&mut self, slot: usize) -> Option<(&mut SlotConstraint, &[u32])> {
        let slot = &mut self.slots[slot];
        let output = &slot.tokens[slot.prompt_len as usize..];
        Some((slot.constraint.as_mut()?, output))
    }

    /// Returns a slot of a validated row, to change.
    pub fn get_mut(&mut self, slot: usize) -> &mut Slot {
        &mut self.slots[slot]
    }

    /// Returns the page tables.
    pub fn pages(&self) -> &PageTables {
        &self.pages
    }

    /// Hands out the table entries for a pass.
    pub fn lend_tables(&mut self) -> Vec<u32> {
        std::mem::take(self.pages.entries())
    }

    /// Takes back the entries that [`Self::lend_tables`] handed out.
    pub fn return_tables(&mut self, entries: Vec<u32>) {
        *self.pages.entries() = entries;
    }

    /// Frees a slot.
    ///
    /// # Errors
    /// [`PlanError::UnknownSlot`], [`PlanError::NotOpen`].
    pub fn close(&mut self, slot: u32) -> Result<(), PlanError> {
        let at = self.opened(slot)?;
        self.slots[at].open = false;
        self.slots[at].constraint = None;
        self.pages.release(at);
        Ok(())
    }

    /// Gives a slot to a request.
    ///
    /// # Errors
    /// [`PlanError`] if the slot is in use or its numbers contradict each other.
    pub fn open(&mut self, open: &SlotOpen) -> Result<(), PlanError> {
        let at = self.existing(open.slot)?;
        self.check_open(open)?;
        let slot = &mut self.slots[at];
        if slot.open {
            return Err(PlanError::AlreadyOpen { slot: open.slot });
        }
        slot.open = true;
        slot.tokens.clear();
        slot.tokens.extend_from_slice(&open.token_ids);
        slot.prompt_len = open.prompt_len;
        slot.kv_len = open.cached_len;
        slot.drafted = open.drafted;
        slot.generation.clone_from(&open.generation);
        slot.constraint = None;
        slot.failed = false;
        slot.extended = 0;
        slot.history.clear();
        if slot.generation.sampling.has_penalties() {
            let (prompt, output) = open.token_ids.split_at(open.prompt_len as usize);
            slot.history.reset(prompt);
            output.iter().for_each(|token| slot.history.push(*token));
        }
        Ok(())
    }

    /// Checks one row and grants its pages.
    ///
    /// # Errors
    /// [`PlanError`] if the slot can't be extended like that.
    pub fn extend(&mut self, step: u64, extend: &SlotExtend) -> Result<RowTask, PlanError> {
        let at = self.opened(extend.slot)?;
        let slot = &mut self.slots[at];
        if slot.extended == step {
            return Err(PlanError::ExtendedTwice { slot: extend.slot });
        }
        slot.extended = step;
        let q_len = row_length(slot, extend)?;
        let end = slot.kv_len + q_len;
        if end as usize > self.positions {
            return Err(PlanError::Context {
                slot: extend.slot,
                end,
                limit: self.positions,
            });
        }
        let task = RowTask {
            slot: at,
            start: slot.kv_len,
            q_len,
            sample: extend.sample,
            decodes: extend.prefill_len == 0,
            drafts: None,
            draft_depth: 0,
            forced: 0,
            output: None,
            choice: 0,
        };
        self.pages.grant(at, slot.kv_len, &extend.new_pages)?;
        Ok(task)
    }

    /// Takes in the outcome of a row: the row's own tokens, its accepted drafts, and one more
    /// token. Nothing is sampled in the middle of a prompt.
    pub fn commit(&mut self, task: RowTask, sampled: &[u32]) {
        let slot = &mut self.slots[task.slot];
        let accepted = sampled.len().saturating_sub(1) as u32;
        slot.kv_len += task.q_len + accepted;
        match sampled {
            // Keeps the slot's lengths as its scheduler expects them.
            [FAILED] => {
                slot.tokens.push(0);
                slot.failed = true;
            }
            tokens => slot.tokens.extend_from_slice(tokens),
        }
        self.pages.forget_behind(task.slot, slot.kv_len);
    }

    /// Returns the most tokens of a slot.
    pub fn positions(&self) -> usize {
        self.positions
    }

    fn existing(&self, slot: u32) -> Result<usize, PlanError> {
        let slots = self.slots.len();
        let at = slot as usize;
        if at < slots {
            Ok(at)
        } else {
            Err(PlanError::UnknownSlot { slot, slots })
        }
    }

    fn opened(&self, slot: u32) -> Result<usize, PlanError> {
        let at = self.existing(slot)?;
        if self.slots[at].open {
            Ok(at)
        } else {
            Err(PlanError::NotOpen { slot })
        }
    }

    fn check_open(&self, open: &SlotOpen) -> Result<(), PlanError> {
        let tokens = open.token_ids.len();
        let fits = open.prompt_len as usize <= tokens && (open.cached_len as usize) < tokens;
        let whole = open.drafted || open.cached_len.is_multiple_of(self.pages.table().page_size);
        if !fits || !whole || tokens > self.positions {
            return Err(PlanError::Lengths {
                slot: open.slot,
                tokens,
                prompt_len: open.prompt_len,
                cached_len: open.cached_len,
            });
        }
        if let Some(start) = open.generation.logprobs.prompt_start
            && start < open.prompt_len
            && open.cached_len > start.saturating_sub(1)
        {
            return Err(PlanError::ScoredPrefixCached {
                slot: open.slot,
                start,
                cached_len: open.cached_len,
            });
        }
        let outside = |token: &&u32| **token as usize >= self.vocab;
        match open.token_ids.iter().find(outside) {
            None => Ok(()),
            Some(token) => Err(PlanError::Token {
                slot: open.slot,
                token: *token,
                vocab: self.vocab,
            }),
        }
    }
}

/// Returns the number of new tokens of a row.
fn row_length(slot: &Slot, extend: &SlotExtend) -> Result<u32, PlanError> {
    let (kv_len, tokens) = (slot.kv_len, slot.tokens.len());
    if extend.prefill_len == 0 && kv_len as usize + 1 != tokens {
        return Err(PlanError::NotDecoding {
            slot: extend.slot,
            kv_len,
            tokens,
        });
    }
    let q_len = extend.prefill_len.max(1);
    let known = tokens - kv_len as usize;
    if q_len as usize > known {
        return Err(PlanError::PrefillPastEnd {
            slot: extend.slot,
            prefill_len: extend.prefill_len,
            kv_len,
            tokens,
        });
    }
    let ends = q_len as usize == known;
    let decodes = extend.prefill_len == 0;
    if extend.sample && !ends || decodes && !extend.sample {
        return Err(PlanError::Sample {
            slot: extend.slot,
            end: kv_len + q_len,
            tokens,
            sample: extend.sample,
        });
    }
    Ok(q_len)
}

impl Requests for Slots {
    fn tokens(&self, slot: usize) -> &[u32] {
        &self.slots[slot].tokens
    }

    fn prompt_len(&self, slot: usize) -> usize {
        self.slots[slot].prompt_len as usize
    }

    fn sampling(&self, slot: usize) -> &SamplingParams {
        &self.slots[slot].generation.sampling
    }
}
